"""Every step that outlives a process, counted as it is taken; at one of them the process dies.

A step is what the outside could see half done: a file opened for writing, the moment after it was
opened and is still empty, a write that got half way, an fsync, a rename, a link, a deletion, a
change of mode, a folder; a statement that changes the database, and both sides of a commit.
Files are seen by the interpreter's audit hook, so a new way of writing them is counted by itself.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import signal
import sys
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy.engine.default import DefaultDialect

_EVENTS = {
    "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod",
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = re.compile(r"\s*(INSERT|UPDATE|DELETE|CREATE|ALTER|DROP)\b", re.IGNORECASE)
_RANDOM = re.compile(r"[0-9a-f]{8,32}(?![0-9a-f])|tmp\w{8}|\.\w{8}\.tmp")


class Recorder:
    """Counts the steps under `root` and ends the process with SIGKILL before step `kill_at`."""

    def __init__(self, root: Path, kill_at: int | None) -> None:
        self.root = str(root)
        self.kill_at = kill_at
        self.steps: list[str] = []
        self._lock = Lock()
        self._on = False

    def install(self) -> None:
        """For the rest of the process: an audit hook cannot be taken back."""
        self._watch_files()
        self._watch_databases()
        sys.addaudithook(self._heard)
        self._on = True

    def stop(self) -> None:
        self._on = False

    def step(self, name: str) -> None:
        if self.next_is_last(name):
            os.kill(os.getpid(), signal.SIGKILL)

    def next_is_last(self, name: str) -> bool:
        """Count a step; whether the process shall die at it."""
        if not self._on:
            return False
        with self._lock:
            self.steps.append(_RANDOM.sub("*", name))
            return len(self.steps) - 1 == self.kill_at

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if self._ours(path) and flags & _WRITING:
                self.step(f"open {self._shown(path)}")
        elif event in _EVENTS and self._ours(arguments[0]):
            self.step(f"{event.removeprefix('os.')} {self._shown(arguments[0])}")

    def _ours(self, path: object) -> bool:
        # A descriptor or a name within an open folder (rmtree): nothing else here uses those.
        if isinstance(path, int):
            return True
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        text = os.fsdecode(path)
        return not os.path.isabs(text) or text.startswith(self.root)

    def _shown(self, path: object) -> str:
        if isinstance(path, int):
            return "a descriptor"
        return os.fsdecode(path).removeprefix(self.root)  # type: ignore[arg-type]

    def _watch_files(self) -> None:
        recorder, plain_open, plain_os_open, plain_sync = self, io.open, os.open, os.fsync

        class Torn(io.FileIO):
            """An unbuffered file whose write can end half way."""

            def write(self, data: Any, /) -> int:
                if recorder.next_is_last("half a write"):
                    super().write(memoryview(data)[: len(data) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().write(data) or 0

        def opened(path: object, mode: str) -> None:
            if set(mode) & set("wxa+") and self._ours(path):
                self.step(f"opened {self._shown(path)}")

        def recorded_open(
            file: Any, mode: str = "r", buffering: int = -1, *a: Any, **k: Any
        ) -> Any:
            raw = buffering == 0 and set(mode) & set("wxa+") and not isinstance(file, int)
            made: Any = Torn(file, mode) if raw else plain_open(file, mode, buffering, *a, **k)
            opened(file, mode)
            return made

        def recorded_os_open(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
            fd = plain_os_open(path, flags, *arguments, **named)
            opened(path, "w" if flags & _WRITING else "r")
            return fd

        def recorded_sync(fd: Any) -> None:
            self.step("fsync")
            plain_sync(fd)

        io.open = builtins.open = recorded_open  # type: ignore[assignment]
        os.open, os.fsync = recorded_os_open, recorded_sync  # type: ignore[assignment]

    def _watch_databases(self) -> None:
        def changing(name: str) -> None:
            plain = getattr(DefaultDialect, name)

            def recorded(dialect: Any, cursor: Any, statement: str, *a: Any, **k: Any) -> Any:
                if _CHANGES.match(statement):
                    self.step(" ".join(statement.split())[:40])
                return plain(dialect, cursor, statement, *a, **k)

            setattr(DefaultDialect, name, recorded)

        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            changing(name)
        plain_commit = DefaultDialect.do_commit

        def committing(dialect: Any, connection: Any) -> None:
            self.step("commit")
            plain_commit(dialect, connection)
            self.step("committed")

        DefaultDialect.do_commit = committing  # type: ignore[method-assign]
