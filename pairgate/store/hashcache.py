"""Digests of source files that were hashed before, so that an unchanged target is not read again.

A digest is trusted only while device, inode, size, modification and change time are equal, and only
if both times were more than a second old when the file was hashed: a write within the clock's
granularity would leave no trace. Nobody can set the change time of a file. What is trusted is that
the source is unchanged, never the stored copy: that is hashed each time.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path

from pairgate.domain.canonical import canonical_json, is_digest, sha256_digest

_SETTLED_NS = 1_000_000_000


class HashCache:
    """One small file per source path. Losing it costs time only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, path: Path, found: os.stat_result) -> str | None:
        """The digest of the file at `path` that `found` describes, if it may be trusted."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = json.loads(self._record(path).read_bytes())
            if record["file"] == _identity(found) and is_digest(record["digest"]):
                return str(record["digest"])
        return None

    def put(self, path: Path, found: os.stat_result, digest: str, hashed_at_ns: int) -> None:
        """Remember the digest of what `found` described when hashing began at `hashed_at_ns`."""
        if hashed_at_ns - max(found.st_mtime_ns, found.st_ctime_ns) <= _SETTLED_NS:
            return
        record = self._record(path)
        staged = record.with_name(f".{record.name}.{secrets.token_hex(4)}")
        with suppress(OSError):  # a cache: without room there is none
            self._folder.mkdir(exist_ok=True)
            try:
                staged.write_bytes(canonical_json({"file": _identity(found), "digest": digest}))
                os.replace(staged, record)
            finally:
                staged.unlink(missing_ok=True)

    def _record(self, path: Path) -> Path:
        return self._folder / sha256_digest(os.fsencode(path.absolute()))[7:]


def _identity(found: os.stat_result) -> list[int]:
    times = [found.st_mtime_ns, found.st_ctime_ns]
    return [found.st_dev, found.st_ino, found.st_size, *times]
