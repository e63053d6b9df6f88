"""Sending one file to an object store, hashed as it is sent.

An upload is committed only after its bytes had the promised digest; until then no object appears.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairgate.errors import IntegrityError
from pairgate.remotefiles import filesystem, reaching
from pairgate.store.streams import OnBytes, file_chunks

_MIB = 1 << 20
_MIN_PART_BYTES = 16 * _MIB
_MAX_PARTS = 9_000  # S3 takes 10,000


def part_bytes(size: int) -> int:
    """Bytes of each part but the last: whole MiB, so that parts end where chunks end."""
    return max(_MIN_PART_BYTES, -(-size // (_MAX_PARTS * _MIB)) * _MIB)


@dataclass(slots=True)
class PartsEtag:
    """The ETag that S3 gives an upload without a key service: the MD5 of the content, or of the
    parts' MD5s when there are parts (S3 API reference, "Checking object integrity")."""

    part_bytes: int
    _parts: list[bytes] = field(default_factory=list)
    _n_in_part: int = 0
    _md5: Any = field(default_factory=lambda: hashlib.md5(usedforsecurity=False))

    def update(self, chunk: memoryview) -> None:
        """Add a chunk that does not cross the end of a part."""
        self._md5.update(chunk)
        self._n_in_part += len(chunk)
        if self._n_in_part == self.part_bytes:
            self._parts.append(self._md5.digest())
            self._md5 = hashlib.md5(usedforsecurity=False)
            self._n_in_part = 0

    def value(self) -> str:
        """The ETag, without its quotes."""
        if not self._parts:
            return str(self._md5.hexdigest())
        parts = [*self._parts, self._md5.digest()] if self._n_in_part else self._parts
        return f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"


def etag_of(path: Path) -> str:
    """The ETag that the file would have if `upload` had sent it."""
    etag = PartsEtag(part_bytes(path.stat().st_size))
    with path.open("rb", buffering=0) as file:
        for chunk in file_chunks(file):
            etag.update(chunk)
    return etag.value()


def upload(path: Path, digest: str, url: str, on_bytes: OnBytes | None) -> str:
    """Send the file; returns the ETag that it should have now.

    Memory: one part. Raises `IntegrityError`, and sends nothing, when the bytes that were read do
    not have the digest; `Unavailable` when the store does not take them.
    """
    size = path.stat().st_size
    n_part = part_bytes(size)
    hasher, etag = hashlib.sha256(), PartsEtag(n_part)
    fs, where = filesystem(url)
    with path.open("rb", buffering=0) as file:
        with reaching(url):
            sink = fs.open(where, "wb", block_size=n_part)
        try:
            for chunk in file_chunks(file):
                hasher.update(chunk)
                etag.update(chunk)
                with reaching(url):
                    sink.write(chunk)
                if on_bytes:
                    on_bytes(len(chunk))
            if "sha256:" + hasher.hexdigest() != digest:
                raise IntegrityError(
                    f"the bytes of {digest} in {path.parent} are damaged; nothing was sent",
                    hint="register the same files again",
                )
        except BaseException:
            sink.discard()
            sink.closed = True  # or its finaliser would commit what there is
            raise
        with reaching(url):
            sink.close()
    return etag.value()
