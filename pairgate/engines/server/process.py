"""Starts a server on this machine and stops it; nothing of it outlives pairgate."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pairgate.engines.server.asking import healthy
from pairgate.errors import InvalidInput, Unavailable

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_GRACE_S = 15.0
_TAIL_LINES = 12
_ERROR = re.compile(r"\b\w*(Error|Exception): ")
_LOOK_S = 0.25


class ServerProcess:
    """A running server with its log. `start` waits until it is healthy."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, what: str) -> None:
        self._process = process
        self.log = log
        self._what = what

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        health_url: str,
        timeout_s: float,
        what: str,
    ) -> ServerProcess:
        """Raises `Unavailable` with the log's tail when it ends or is not healthy in time.

        `environment` is the server's whole environment.
        """
        handle, name = tempfile.mkstemp(prefix="pairgate-server-", suffix=".log")
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", str(_SUPERVISOR), str(_GRACE_S), *command],
                stdin=subprocess.PIPE,
                stdout=handle,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C in the terminal reaches pairgate alone
            )
        finally:
            os.close(handle)
        server = cls(process, Path(name), what)
        try:
            server._wait_healthy(health_url, timeout_s)
        except BaseException:
            server.stop(keep_log=True)
            raise
        return server

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Whether it is gone, or is gone soon: its last connection closes before it does."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pid(self) -> int:
        """Of the supervisor; the server's processes are its descendants."""
        return self._process.pid

    def tail(self) -> str:
        """The last lines of the log; before them the last error, which a shutdown often buries."""
        lines = self.log_text().splitlines() if self.log.exists() else []
        last = lines[-_TAIL_LINES:]
        errors = [line for line in lines[: -len(last)] if _ERROR.search(line)]
        return "\n".join([*errors[-1:], *last]) or "(the log is empty)"

    def log_text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def died(self) -> Unavailable:
        """What to raise when it is no longer there."""
        return Unavailable(
            f"{self._what} ended by itself (exit code {self._process.poll()}); its log ends with\n"
            f"{self.tail()}",
            hint=f"the whole log is in {self.log}; stored blocks are kept, the same command goes "
            "on from them",
        )

    def stop(self, *, keep_log: bool = False) -> None:
        """End the server and all that it started; the log is kept only on request."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._process.wait()
        if not keep_log:
            self.log.unlink(missing_ok=True)

    def _wait_healthy(self, url: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not healthy(url):
            if not self.alive:
                raise self.died()
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{self._what} was not healthy within {timeout_s:g} s; its log ends with\n"
                    f"{self.tail()}",
                    hint=f"the whole log is in {self.log}",
                )
            time.sleep(_LOOK_S)


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def existing_python(path: Path) -> Path:
    """The interpreter itself, or that of a virtual environment's folder. Raises `InvalidInput`."""
    found = path / "bin" / "python" if path.is_dir() else path
    if not (found.is_file() and os.access(found, os.X_OK)):
        raise InvalidInput(
            f"{path} is no Python",
            hint="name the interpreter of the environment that holds the server, e.g. "
            "/opt/vllm/bin/python",
        )
    return found
