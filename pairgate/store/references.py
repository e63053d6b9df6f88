"""A blob store that also answers for content which is referenced and was never copied.

A blob of the store always wins; without one, the registry says where the content lies. What its
holder says of it (size and version id) is believed for presence; its bytes never: they are hashed
whenever they are brought here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.domain.garbage import StoredBlob
from pairgate.domain.pair import Pair
from pairgate.domain.records import Reference
from pairgate.errors import IntegrityError
from pairgate.remotefiles import chunks, problem_of, scheme
from pairgate.store.blobs import LocalBlobStore, pair_blobs
from pairgate.store.streams import OnBytes

if TYPE_CHECKING:
    from pairgate.ports import BlobStore

Lookup = Callable[[Iterable[str]], dict[str, Reference]]
"""lookup(digests): the references among them, by digest."""
_N_REQUESTS = 8


class ReferencingStore:
    """A `ports.BlobStore` over another one; referenced content is brought to the cache."""

    def __init__(self, store: BlobStore, lookup: Lookup, cache: LocalBlobStore) -> None:
        self.store = store
        self.cache = cache
        self._lookup = lookup

    # Adding is the store's business alone.

    def add_file(self, path: Path, *, on_bytes: OnBytes | None = None) -> tuple[str, int]:
        return self.store.add_file(path, on_bytes=on_bytes)

    def add_files(
        self, paths: Sequence[Path], *, n_workers: int = 2, on_bytes: OnBytes | None = None
    ) -> tuple[tuple[str, int], ...]:
        return self.store.add_files(paths, n_workers=n_workers, on_bytes=on_bytes)

    def add_bytes(self, data: bytes) -> str:
        return self.store.add_bytes(data)

    def add_stream(
        self, chunks: Iterable[bytes], *, digest: str, size: int, on_bytes: OnBytes | None = None
    ) -> None:
        self.store.add_stream(chunks, digest=digest, size=size, on_bytes=on_bytes)

    def add_manifest(self, data: bytes, *, on_bytes: OnBytes | None = None) -> str:
        return self.store.add_manifest(data, on_bytes=on_bytes)

    def require_reachable(self) -> None:
        self.store.require_reachable()

    # So is collecting garbage: what is only referenced is never deleted.

    def sweep(self) -> int:
        return self.store.sweep()

    def list_blobs(self) -> Iterator[StoredBlob]:
        return self.store.list_blobs()

    def list_index(self) -> tuple[str, ...]:
        return self.store.list_index()

    def list_leftovers(self) -> tuple[StoredBlob, ...]:
        return self.store.list_leftovers()

    def delete_index_entry(self, digest: str) -> None:
        self.store.delete_index_entry(digest)

    def delete_blob(self, digest: str) -> None:
        self.store.delete_blob(digest)

    # What is not in the store may be referenced.

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the content can be had: stored, or referenced and unchanged there."""
        if self.store.has(digest, size):
            return True
        reference = self._reference(digest)
        return (
            reference is not None and size in (None, reference.size) and not problem_of(reference)
        )

    def missing(self, pair: Pair) -> tuple[str, ...]:
        """What cannot be had, a line each: the digest of a blob, or what is wrong with a
        referenced file. Reads no contents."""
        absent = self.store.missing(pair)
        if not absent:
            return ()
        references = self._lookup(absent)
        with ThreadPoolExecutor(max_workers=_N_REQUESTS) as pool:
            found = dict(zip(references, pool.map(problem_of, references.values()), strict=True))
        return tuple(line for digest in absent if (line := found.get(digest, digest)))

    def lost(self, pair: Pair) -> tuple[str, ...]:
        """Digests of the pair's blobs that are neither stored nor referenced; asks no holder."""
        absent = self.store.missing(pair)
        references = self._lookup(absent) if absent else {}
        return tuple(digest for digest in absent if digest not in references)

    def referenced(self, pair: Pair) -> tuple[Reference, ...]:
        """Where the files of the pair lie that the store does not have."""
        found = self._lookup(pair_blobs(pair)).values()
        return tuple(r for r in found if not self.store.has(r.digest, r.size))

    def verify(self, digest: str, *, on_bytes: OnBytes | None = None) -> None:
        """Hash the stored bytes again. Of referenced content the holder's size and version id are
        compared, and a local file is hashed too. Raises `IntegrityError`."""
        reference = None if self.store.has(digest) else self._reference(digest)
        if reference is None:
            return self.store.verify(digest, on_bytes=on_bytes)
        self._require_unchanged(reference)
        if scheme(reference.uri) != "file":
            if on_bytes:
                on_bytes(reference.size)
            return None
        hasher = hashlib.sha256()
        for chunk in chunks(reference.uri, reference.size):
            hasher.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
        if "sha256:" + hasher.hexdigest() != digest:
            raise IntegrityError(f"{reference.uri} no longer has the digest {digest}")
        return None

    def path(self, digest: str) -> Path:
        """Where the bytes lie on this machine, once they were added or fetched."""
        stored = self.store.path(digest)
        cached = self.cache.path(digest)
        return cached if not stored.exists() and cached.exists() else stored

    def fetch(self, digest: str, size: int, *, on_bytes: OnBytes | None = None) -> Path:
        """Bring the content to this machine, hashed on the way, unless it is here."""
        if self.cache.has(digest, size):
            os.utime(self.cache.path(digest))  # gc keeps what was used lately
            return self.cache.fetch(digest, size, on_bytes=on_bytes)
        reference = None if self.store.has(digest, size) else self._reference(digest)
        if reference is None:
            return self.store.fetch(digest, size, on_bytes=on_bytes)
        self._require_unchanged(reference)
        try:
            content = chunks(reference.uri, size)
            self.cache.add_stream(content, digest=digest, size=size, on_bytes=on_bytes)
        except IntegrityError as error:
            raise IntegrityError(
                f"{reference.uri}: {error.message} (its hash was known from: "
                f"{reference.hashed_by})",
                hint="put the registered file back, or register what is there as a new version",
            ) from error
        return self.cache.path(digest)

    def read(self, digest: str) -> bytes:
        return self.store.read(digest)

    def copy_out(self, digest: str, path: Path) -> None:
        """Write the content to a new file, checking what was written."""
        reference = None if self.store.has(digest) else self._reference(digest)
        if reference is None:
            return self.store.copy_out(digest, path)
        self.fetch(digest, reference.size)
        return self.cache.copy_out(digest, path)

    def _reference(self, digest: str) -> Reference | None:
        return self._lookup((digest,)).get(digest)

    def _require_unchanged(self, reference: Reference) -> None:
        problem = problem_of(reference)
        if problem:
            raise IntegrityError(
                problem,
                hint="put the registered file back, or register it from where it is now",
            )
