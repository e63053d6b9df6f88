"""Observations of live servers: one JSON line per look, appended, in a file per line of release.

Beside the registry and not in it (docs/decisions/0019-watching.md): a watcher writes often, needs
no right to write decisions, and what it writes is never evidence.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pairgate.domain.observation import Observation
from pairgate.errors import IntegrityError
from pairgate.store.codec import dump_json, load_json

_LARGEST_BYTES = 16 * 2**20
_TAIL_BYTES = 256 * 2**10


class Observations:
    """The looks that were taken from one home. At 16 MiB a file is put aside as `.1`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, observation: Observation) -> None:
        """Write one whole line, or none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(observation.line)
        data = dump_json(observation).encode("utf-8", "surrogatepass") + b"\n"
        if path.exists() and path.stat().st_size > _LARGEST_BYTES:
            os.replace(path, path.with_suffix(".jsonl.1"))
        with path.open("ab+", buffering=0) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if handle.seek(0, os.SEEK_END):
                handle.seek(-1, os.SEEK_END)
                if handle.read(1) != b"\n":  # a writer was killed in the middle of its line
                    data = b"\n" + data
            handle.write(data)

    def newest(self, line: str) -> Observation | None:
        """The last whole line, whatever a killed writer left behind it; None without one."""
        found = self.last(line, 1)
        return found[0] if found else None

    def last(self, line: str, n: int) -> list[Observation]:
        """The newest `n`, oldest first; as many as the end of the file holds."""
        try:
            with self._path(line).open("rb") as handle:
                size = handle.seek(0, os.SEEK_END)
                handle.seek(max(0, size - _TAIL_BYTES * max(1, n // 8)))
                rows = handle.read().split(b"\n")
        except FileNotFoundError:
            return []
        found: list[Observation] = []
        for row in reversed(rows):
            if len(found) == n:
                break
            try:
                found.append(load_json(Observation, row.decode("utf-8", "surrogatepass")))
            except (IntegrityError, UnicodeDecodeError):
                continue  # cut by the window, by a kill, or from another release of pairgate
        return found[::-1]

    def _path(self, line: str) -> Path:
        return self._folder / f"{line}.jsonl"
