"""The folder of one evaluation: who works in it, which attempt it is, how a killed one resumes."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from pairgate.errors import Conflict
from pairgate.store.streams import naming

_STATE = "run.json"
_STAGED = f".{_STATE}.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt; `resumed` says that an earlier process left it unfinished."""

    folder: Path
    attempt: int
    started_at: str
    resumed: bool

    @property
    def traces_dir(self) -> Path:
        return self.folder / "traces"

    def finish(self) -> None:
        """From now on the folder is evidence and never resumed."""
        state = _read(self.folder)
        _write(self.folder, state | {"finished": True})


@contextmanager
def open_run(
    root: Path,
    *,
    label: str,
    key: str,
    at: str,
    start_attempt: Callable[[str], int],
    abandon: Callable[[int], None],
) -> Iterator[Run]:
    """Resume the unfinished run of `key` under `root`, or start the next attempt.

    `key` is a digest over everything that must be equal for stored blocks to count. A run that
    another process works on is never touched: raises `Conflict`. A run that raises stays
    resumable; if it was new and stored nothing, its attempt is given back through `abandon`.
    `start_attempt(at)` answers a time that it knows with the same attempt: one that was killed
    between the registry and the folder is not a second look.
    """
    root.mkdir(parents=True, exist_ok=True)
    prefix = f"{label}-{key.removeprefix('sha256:')[:12]}"
    with _locked(root / f"{prefix}.lock", label) as starting:
        found = _unfinished(root, prefix)
        if found is None:
            started_at = _noted(starting) or at
            _note(starting, started_at)
            attempt = start_attempt(started_at)
            folder = new_folder(root, f"{prefix}-{attempt}", begun=True)
            _write(folder, {"attempt": attempt, "started_at": started_at, "finished": False})
        else:
            folder, attempt = found, int(_read(found)["attempt"])
        _note(starting, "")
        run = Run(
            folder=folder,
            attempt=attempt,
            started_at=_read(folder)["started_at"],
            resumed=found is not None,
        )
        try:
            yield run
        except BaseException:
            if not any(run.traces_dir.glob("*.parquet")):
                _note(starting, run.started_at)
                _discard(folder)
                abandon(attempt)
                _note(starting, "")
            raise


def new_folder(root: Path, name: str, *, begun: bool = False) -> Path:
    """A folder that did not exist: an attempt that ended in ERROR gave its number back, and the
    next one of that number must find neither its blocks nor its report. With `begun` also one
    that a killed process made and wrote nothing into."""
    for number in count(1):
        folder = root / (name if number == 1 else f"{name}.{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
        if begun and {path.name for path in folder.iterdir()} <= {_STAGED}:
            return folder
    raise AssertionError


@contextmanager
def idle_run(folder: Path) -> Iterator[bool]:
    """Whether no process works in this run's folder; while this lasts none can begin to."""
    lock = folder.parent / f"{folder.name.rpartition('-')[0]}.lock"
    if not lock.is_file():  # a verdict on the traces of another run
        yield True
        return
    with lock.open("r") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _unfinished(root: Path, prefix: str) -> Path | None:
    for folder in sorted(root.glob(f"{prefix}-*")):
        if (folder / _STATE).is_file() and not _read(folder).get("finished"):
            return folder
    return None


@contextmanager
def _locked(path: Path, label: str) -> Iterator[TextIO]:
    """The lock's file: while an attempt begins or is given back, it says when that began."""
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another process is evaluating {label} right now",
                hint="wait for it; its stored blocks would otherwise be written twice",
            ) from None
        yield handle


def _noted(starting: TextIO) -> str:
    starting.seek(0)
    return starting.read()


def _note(starting: TextIO, started_at: str) -> None:
    with naming(Path(starting.name)):
        starting.truncate(0)
        starting.write(started_at)
        starting.flush()
        os.fsync(starting.fileno())


def _read(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / _STATE).read_text())
    return state


def _write(folder: Path, state: dict[str, Any]) -> None:
    staged = folder / _STAGED
    with naming(staged), staged.open("w") as handle:
        json.dump(state, handle)
        handle.flush()
        os.fsync(handle.fileno())
    staged.replace(folder / _STATE)


def _discard(folder: Path) -> None:
    (folder / _STATE).unlink()
    for leftover in (folder / "traces", folder):
        with suppress(OSError):  # absent, or it holds something that is not ours to delete
            leftover.rmdir()
