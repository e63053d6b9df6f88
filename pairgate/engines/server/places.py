"""The two servers that an evaluation talks to: with the draft, and the target alone.

`Started` runs them here: side by side where memory allows (an idle one costs nothing that can be
measured), else one at a time, and then each change of arm is a start. `Attached` are servers that
somebody else runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pairgate.domain.profile import ServingProfile
from pairgate.engines.server.asking import base_url, healthy
from pairgate.engines.server.dialect import Dialect, Identity
from pairgate.engines.server.process import ServerProcess, existing_python, free_port
from pairgate.engines.server.room import may_run_side_by_side
from pairgate.errors import InvalidInput, Refused, Unavailable
from pairgate.ports import EngineLimits, MaterialisedPair

START_TIMEOUT_S = 900.0
_ENDING_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One server that answers, and what it says about itself."""

    url: str
    identity: Identity
    with_draft: bool


class Places(Protocol):
    """Where the servers of a pair are."""

    started_here: bool

    def prepare(self, pair: MaterialisedPair, limits: EngineLimits) -> None:
        """Before the first `endpoint`; other limits than before end what runs."""
        ...

    def endpoint(self, *, with_draft: bool) -> Endpoint: ...

    def require_alive(self, endpoint: Endpoint) -> None:
        """Raises `Unavailable`, with the log's tail of a server of ours, when it is gone."""
        ...

    def facts(self) -> tuple[tuple[str, str], ...]:
        """What belongs into the evidence about how the servers came to be."""
        ...

    def processes(self, endpoint: Endpoint) -> int | None:
        """The process whose descendants are the server, if it runs here."""
        ...

    def close(self) -> None: ...


class Started:
    """Servers on this machine. `launch` is the command up to the arguments; `say` tells people
    what takes its time."""

    started_here = True

    def __init__(
        self,
        dialect: Dialect,
        profile: ServingProfile,
        launch: Sequence[str],
        *,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._dialect = dialect
        self._profile = profile
        self._launch = tuple(launch)
        self._say = say or (lambda text: None)
        self._pair: MaterialisedPair | None = None
        self._limits: EngineLimits | None = None
        self._running: dict[bool, tuple[ServerProcess, Endpoint]] = {}
        self._commands: dict[bool, tuple[str, ...]] = {}
        self._config: dict[bool, str] = {}
        self._side_by_side = True

    def prepare(self, pair: MaterialisedPair, limits: EngineLimits) -> None:
        if (pair, limits) == (self._pair, self._limits):
            return
        self.close()
        self._pair, self._limits = pair, limits
        self._side_by_side = may_run_side_by_side(pair, self._profile, limits)

    def endpoint(self, *, with_draft: bool) -> Endpoint:
        found = self._running.get(with_draft)
        if found is not None:
            return found[1]
        if not self._side_by_side:
            self._stop_all()
        return self._start(with_draft)

    def require_alive(self, endpoint: Endpoint) -> None:
        process, _ = self._running[endpoint.with_draft]
        if healthy(endpoint.url + self._dialect.health_path):
            return
        if process.ends_within(_ENDING_S):
            del self._running[endpoint.with_draft]
            process.stop(keep_log=True)
            raise process.died()
        raise Unavailable(
            f"the server at {endpoint.url} runs and does not answer; its log ends with\n"
            f"{process.tail()}",
            hint="stored blocks are kept, the same command goes on from them",
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        arms = {True: "with_draft", False: "without_draft"}
        return (
            ("mode", "started side by side" if self._side_by_side else "started one at a time"),
            *((f"command.{arms[a]}", " ".join(c)) for a, c in sorted(self._commands.items())),
            *((f"config.{arms[a]}", text) for a, text in sorted(self._config.items())),
        )

    def processes(self, endpoint: Endpoint) -> int | None:
        return self._running[endpoint.with_draft][0].pid

    def close(self) -> None:
        self._stop_all()

    def _start(self, with_draft: bool) -> Endpoint:
        if self._pair is None or self._limits is None:
            raise Unavailable("the server engine was not started")
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = self._dialect.command(
            self._launch,
            self._pair,
            self._profile,
            self._limits,
            port=port,
            with_draft=with_draft,
        )
        what = f"the {self._dialect.name} server {'with' if with_draft else 'without'} draft"
        self._say(f"starting {what}")
        process = ServerProcess.start(
            command,
            # The profile's word wins over this shell's, and both over the adapter's.
            environment={
                **self._dialect.environment(self._pair, self._limits),
                **os.environ,
                **dict(setting.split("=", 1) for setting in self._profile.environment),
            },
            health_url=url + self._dialect.health_path,
            timeout_s=START_TIMEOUT_S,
            what=what,
        )
        try:
            identity = self._dialect.identity(url)
        except BaseException:
            process.stop()
            raise
        endpoint = Endpoint(url=url, identity=identity, with_draft=with_draft)
        self._running[with_draft] = (process, endpoint)
        self._commands[with_draft] = command
        self._config[with_draft] = _resolved_line(process.log_text())
        return endpoint

    def _stop_all(self) -> None:
        while self._running:
            _, (process, _) = self._running.popitem()
            process.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Servers that run already, and the version (`LINE@N`) that their owner says they serve."""

    endpoint: str
    baseline_endpoint: str
    serves: str
    pair_digest: str


class Attached:
    """Servers that somebody else runs; pairgate neither starts nor stops them."""

    started_here = False

    def __init__(self, dialect: Dialect, attachment: Attachment) -> None:
        self._dialect = dialect
        self._attachment = attachment
        self._urls = {
            True: base_url(attachment.endpoint),
            False: base_url(attachment.baseline_endpoint),
        }
        if self._urls[True] == self._urls[False]:
            raise InvalidInput(
                "--endpoint and --baseline-endpoint name the same server",
                hint="the baseline serves the target without its draft",
            )
        self._known: dict[bool, Endpoint] = {}

    def prepare(self, pair: MaterialisedPair, limits: EngineLimits) -> None:
        if pair.pair.digest != self._attachment.pair_digest:
            raise Refused(
                f"the servers serve {self._attachment.serves}, not pair {pair.pair.digest[:19]}"
            )
        for with_draft in (True, False):
            endpoint = self.endpoint(with_draft=with_draft)
            served = endpoint.identity.max_model_len
            if served is not None and served < limits.max_model_len:
                raise Refused(
                    f"the server at {endpoint.url} takes {served} tokens, the slice needs "
                    f"{limits.max_model_len}",
                    hint="set max_model_len of the profile to what is served, with a slice that "
                    "fits, or start the server with a larger --max-model-len",
                )
        lengths = [self.endpoint(with_draft=a).identity.max_model_len for a in (True, False)]
        if lengths[0] != lengths[1]:
            raise Refused(
                f"the server with the draft takes {lengths[0]} tokens, the baseline {lengths[1]}",
                hint="start both with the same --max-model-len",
            )

    def endpoint(self, *, with_draft: bool) -> Endpoint:
        if with_draft not in self._known:
            url = self._urls[with_draft]
            identity = self._dialect.identity(url)
            self._known[with_draft] = Endpoint(url=url, identity=identity, with_draft=with_draft)
        return self._known[with_draft]

    def require_alive(self, endpoint: Endpoint) -> None:
        if not healthy(endpoint.url + self._dialect.health_path):
            raise Unavailable(
                f"the server at {endpoint.url} no longer answers",
                hint="stored blocks are kept; once it runs again, the same command goes on",
            )

    def facts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("mode", "attached"),
            ("serves", f"{self._attachment.serves} (stated, not verified)"),
            ("endpoint.with_draft", self._urls[True]),
            ("endpoint.without_draft", self._urls[False]),
        )

    def processes(self, endpoint: Endpoint) -> int | None:
        return None

    def close(self) -> None:
        self._known.clear()


def launch_with(dialect: Dialect, *, python: Path | None, command: str | None) -> tuple[str, ...]:
    """How to start a server: a command up to its arguments, the Python of another environment, or
    this one where the engine is installed here. Raises `InvalidInput`, `Unavailable`."""
    if command is not None:
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            raise InvalidInput(
                f"--engine-command {command!r} starts nothing on this machine",
                hint="write what comes before the arguments, e.g. 'vllm serve' without a model",
            )
        return tuple(words)
    if python is not None:
        return dialect.default_launch(existing_python(python))
    here = Path(sys.executable)
    probe = subprocess.run(
        [
            str(here),
            "-c",
            f"import importlib.util as u; exit(u.find_spec('{dialect.name}') is None)",
        ],
        check=False,
    )
    if probe.returncode:
        raise Unavailable(
            f"{dialect.name} is not installed beside pairgate",
            hint="name its environment with --engine-python PATH (or PAIRGATE_ENGINE_PYTHON), or "
            "attach to running servers with --endpoint and --baseline-endpoint",
        )
    return dialect.default_launch(here)


def _resolved_line(log: str) -> str:
    """The line in which the engine prints the configuration that it arrived at."""
    lines = [line for line in log.splitlines() if "engine" in line and "with config:" in line]
    return lines[0].partition("with config:")[2].strip() if lines else ""
