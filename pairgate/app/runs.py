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
from typing import Any

from pairgate.errors import Conflict

_STATE = "run.json"


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
    start_attempt: Callable[[], int],
    abandon: Callable[[int], None],
) -> Iterator[Run]:
    """Resume the unfinished run of `key` under `root`, or start the next attempt.

    `key` is a digest over everything that must be equal for stored blocks to count. A run that
    another process works on is never touched: raises `Conflict`. A run that raises stays
    resumable; if it was new and stored nothing, its attempt is given back through `abandon`.
    """
    root.mkdir(parents=True, exist_ok=True)
    prefix = f"{label}-{key.removeprefix('sha256:')[:12]}"
    with _locked(root / f"{prefix}.lock", label):
        found = _unfinished(root, prefix)
        if found is None:
            attempt = start_attempt()
            folder = new_folder(root, f"{prefix}-{attempt}")
            _write(folder, {"attempt": attempt, "started_at": at, "finished": False})
        else:
            folder, attempt = found, int(_read(found)["attempt"])
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
                abandon(attempt)
                _discard(folder)
            raise


def new_folder(root: Path, name: str) -> Path:
    """A folder that did not exist: an attempt that ended in ERROR gave its number back, and the
    next one of that number must find neither its blocks nor its report."""
    for number in count(1):
        folder = root / (name if number == 1 else f"{name}.{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


def _unfinished(root: Path, prefix: str) -> Path | None:
    for folder in sorted(root.glob(f"{prefix}-*")):
        if (folder / _STATE).is_file() and not _read(folder).get("finished"):
            return folder
    return None


@contextmanager
def _locked(path: Path, label: str) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another process is evaluating {label} right now",
                hint="wait for it; its stored blocks would otherwise be written twice",
            ) from None
        yield


def _read(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / _STATE).read_text())
    return state


def _write(folder: Path, state: dict[str, Any]) -> None:
    staged = folder / f".{_STATE}.tmp"
    with staged.open("w") as handle:
        json.dump(state, handle)
        handle.flush()
        os.fsync(handle.fileno())
    staged.replace(folder / _STATE)


def _discard(folder: Path) -> None:
    (folder / _STATE).unlink()
    for leftover in (folder / "traces", folder):
        with suppress(OSError):  # absent, or it holds something that is not ours to delete
            leftover.rmdir()
