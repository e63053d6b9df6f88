"""The blob store on an object store, at any fsspec URL, with a cache of its blobs on this machine.

    URL/pairgate-store.json        marks a store; without it nothing is "missing", but unreachable
    URL/blobs/sha256/<hex>         files, configs and manifests of all pairs, once
    URL/pairs/<hex>/oci-layout     one OCI image layout per pair; its blobs are those above
    URL/pairs/<hex>/index.json     names the pair's manifest; written last

Object stores have no locks and no rename, so nothing that two writers share is ever replaced. An
object appears whole or not at all. What was sent is hashed while it is sent, and what arrived is
compared by size and ETag, or read back where the ETag says nothing (docs/storage.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pairgate.domain.canonical import is_digest, sha256_digest
from pairgate.domain.garbage import StoredBlob
from pairgate.domain.pair import Pair
from pairgate.errors import IntegrityError, InvalidInput, Unavailable
from pairgate.remotefiles import OBJECT_SCHEMES, Seen, chunks, filesystem, look, reaching, scheme
from pairgate.store.blobs import LAYOUT, LocalBlobStore, index_document, index_entry, pair_blobs
from pairgate.store.streams import OnBytes
from pairgate.store.uploads import etag_of, upload

MARKER = "pairgate-store.json"
_MARKER_BYTES = b'{"layout":1}'
_N_REQUESTS = 8
_N_TRANSFERS = 2


class RemoteBlobStore:
    """A `ports.BlobStore`. What is added lies in the cache until `add_manifest` publishes it."""

    def __init__(self, url: str, cache: LocalBlobStore) -> None:
        if scheme(url) not in OBJECT_SCHEMES:
            raise InvalidInput(
                f"a store cannot be at {url!r}",
                hint=f"give the URL of an object store: {', '.join(OBJECT_SCHEMES)}",
            )
        self.url = url.rstrip("/")
        self.cache = cache
        self._added: set[str] = set()

    @property
    def where(self) -> str:
        return self.url

    # Into the cache first: from there nobody else can change it while it is sent.

    def add_file(self, path: Path, *, on_bytes: OnBytes | None = None) -> tuple[str, int]:
        """As `LocalBlobStore.add_file`."""
        added = self.cache.add_file(path, on_bytes=on_bytes)
        self._added.add(added[0])
        return added

    def add_files(
        self, paths: Sequence[Path], *, n_workers: int = 2, on_bytes: OnBytes | None = None
    ) -> tuple[tuple[str, int], ...]:
        """As `LocalBlobStore.add_files`."""
        added = self.cache.add_files(paths, n_workers=n_workers, on_bytes=on_bytes)
        self._added.update(digest for digest, _ in added)
        return added

    def add_bytes(self, data: bytes) -> str:
        """As `LocalBlobStore.add_bytes`."""
        digest = self.cache.add_bytes(data)
        self._added.add(digest)
        return digest

    def add_stream(
        self, chunks: Iterable[bytes], *, digest: str, size: int, on_bytes: OnBytes | None = None
    ) -> None:
        """As `LocalBlobStore.add_stream`."""
        self.cache.add_stream(chunks, digest=digest, size=size, on_bytes=on_bytes)
        self._added.add(digest)

    def add_manifest(self, data: bytes, *, on_bytes: OnBytes | None = None) -> str:
        """Send what was added of this pair, then list the pair: its index comes last.

        Raises `IntegrityError` when other bytes arrived than were sent, `Unavailable` when the
        store does not answer.
        """
        digest = self.add_bytes(data)
        manifest = json.loads(data)
        layers = [layer["digest"] for layer in manifest["layers"]]
        to_send = {*layers, manifest["config"]["digest"], digest} & self._added
        with ThreadPoolExecutor(max_workers=_N_TRANSFERS) as pool:
            futures = [pool.submit(self._send, blob, on_bytes) for blob in sorted(to_send)]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        self._put(f"{self.url}/{MARKER}", _MARKER_BYTES)
        self._put(f"{self.pair_url(digest)}/oci-layout", LAYOUT)
        index = index_document([index_entry(digest, len(data))])
        self._put(f"{self.pair_url(digest)}/index.json", index)
        self._added -= to_send
        return digest

    # What is there.

    def pair_url(self, digest: str) -> str:
        """Where the pair's own OCI layout is."""
        return f"{self.url}/pairs/{_hex(digest)}"

    def blob_url(self, digest: str) -> str:
        """Where the blob is, or would be."""
        return f"{self.url}/blobs/sha256/{_hex(digest)}"

    def require_reachable(self) -> None:
        """Raises `Unavailable` unless a store answers here."""
        if look(f"{self.url}/{MARKER}", patient=False) is None:
            raise Unavailable(
                f"there is no store at {self.url}",
                hint="check PAIRGATE_STORE_URL: the bucket and prefix that pairs were stored in",
            )

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob is there, and has `size` bytes."""
        seen = look(self.blob_url(digest))
        return seen is not None and size in (None, seen.size)

    def missing(self, pair: Pair) -> tuple[str, ...]:
        """Digests of the pair's blobs that are absent or have another size (no hashing)."""
        wanted = pair_blobs(pair)
        with ThreadPoolExecutor(max_workers=_N_REQUESTS) as pool:
            there = pool.map(self.has, wanted, wanted.values())
            return tuple(digest for digest, found in zip(wanted, there, strict=True) if not found)

    def verify(self, digest: str, *, on_bytes: OnBytes | None = None) -> None:
        """Read the blob back and hash it; raises `IntegrityError` when it is missing or differs."""
        hasher = hashlib.sha256()
        for chunk in self._chunks(digest):
            hasher.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
        if "sha256:" + hasher.hexdigest() != digest:
            raise IntegrityError(
                f"the bytes at {self.blob_url(digest)} do not match the digest",
                hint="register the same files again: that replaces them without a new version",
            )

    # To this machine.

    def path(self, digest: str) -> Path:
        """Where the blob lies in the cache, or would lie: `fetch` brings it there."""
        return self.cache.path(digest)

    def fetch(self, digest: str, size: int, *, on_bytes: OnBytes | None = None) -> Path:
        """Bring the blob to the cache, hashed on the way, unless it is there; returns its path."""
        if not self.cache.has(digest, size):
            self.cache.add_stream(self._chunks(digest), digest=digest, size=size, on_bytes=on_bytes)
        elif on_bytes:
            on_bytes(size)
        return self.cache.path(digest)

    def read(self, digest: str) -> bytes:
        """The bytes of a small blob, checked against the digest."""
        if self.cache.has(digest):
            return self.cache.read(digest)
        data = b"".join(self._chunks(digest))
        if sha256_digest(data) != digest:
            raise IntegrityError(f"the bytes at {self.blob_url(digest)} do not match the digest")
        return data

    def copy_out(self, digest: str, path: Path) -> None:
        """Write the blob to a new file, checking what was written; the cache keeps it too."""
        seen = self._must_be_there(digest)
        self.fetch(digest, seen.size)
        self.cache.copy_out(digest, path)

    def free_bytes(self) -> int:
        """Bytes that can still be written where the cache is."""
        return self.cache.free_bytes()

    def sweep(self) -> int:
        """Delete what killed writers left in the cache; returns how many files."""
        return self.cache.sweep()

    # What garbage collection needs.

    def list_blobs(self) -> Iterator[StoredBlob]:
        """Every object among the blobs."""
        for name, info in self._find("blobs/sha256").items():
            yield StoredBlob(
                digest=f"sha256:{name}", n_bytes=info["size"], stored_at=_modified(info)
            )

    def list_index(self) -> tuple[str, ...]:
        """Digests of the pairs that have an index."""
        names = (name.partition("/") for name in self._find("pairs"))
        return tuple(f"sha256:{pair}" for pair, _, file in names if file == "index.json")

    def list_leftovers(self) -> tuple[StoredBlob, ...]:
        """What killed writers left in the cache. Uploads that were never completed are no objects:
        a lifecycle rule of the bucket ends them (docs/storage.md)."""
        return self.cache.list_leftovers()

    def delete_index_entry(self, digest: str) -> None:
        """List the pair no longer; its blobs stay. Absent is fine."""
        for name in ("index.json", "oci-layout"):
            self._delete(f"{self.pair_url(digest)}/{name}")

    def delete_blob(self, digest: str) -> None:
        """Here and in the cache. Absent is fine."""
        self._delete(self.blob_url(digest))
        self.cache.delete_blob(digest)

    def _find(self, folder: str) -> dict[str, Any]:
        """What fsspec says of every object under a prefix, by its name below that."""
        url = f"{self.url}/{folder}"
        fs, path = filesystem(url)
        with reaching(url):
            found = fs.find(path, detail=True)
        return {name.removeprefix(path.rstrip("/") + "/"): i for name, i in found.items()}

    def _delete(self, url: str) -> None:
        fs, path = filesystem(url)
        with reaching(url), suppress(FileNotFoundError):
            fs.rm_file(path)

    def _must_be_there(self, digest: str) -> Seen:
        seen = look(self.blob_url(digest))
        if seen is None:
            raise IntegrityError(
                f"the blob {digest} is missing from {self.url}",
                hint="register the same files again: that restores it without a new version",
            )
        return seen

    def _chunks(self, digest: str) -> Iterator[bytes]:
        seen = self._must_be_there(digest)
        return chunks(self.blob_url(digest), seen.size)

    def _put(self, url: str, data: bytes) -> None:
        """Write a small object unless it is there with these bytes."""
        fs, path = filesystem(url)
        with reaching(url):
            with suppress(FileNotFoundError):
                if fs.cat_file(path) == data:
                    return
            fs.pipe_file(path, data)

    def _send(self, digest: str, on_bytes: OnBytes | None) -> None:
        """Send a blob of the cache unless an equal one is there already."""
        path, url = self.cache.path(digest), self.blob_url(digest)
        size = path.stat().st_size
        seen = look(url)
        if seen is not None and seen.size == size and seen.etag == etag_of(path):
            if on_bytes:
                on_bytes(size)
            return
        etag = upload(path, digest, url, on_bytes)
        seen = look(url)
        if seen is None or seen.size != size:
            found = "nothing" if seen is None else f"{seen.size} bytes"
            raise IntegrityError(
                f"{size} bytes were sent to {url}, and {found} are there",
                hint="register again; if it happens again, something changes objects there",
            )
        if seen.etag != etag:  # encrypted with a key service, or no S3: the ETag is no hash then
            self.verify(digest)


def _modified(info: dict[str, Any]) -> str:
    """When the object was written, in ISO 8601; where that is not said, never long ago."""
    for name in ("LastModified", "last_modified", "mtime", "updated"):
        if isinstance(info.get(name), datetime):
            moment = info[name].astimezone(UTC).isoformat(timespec="microseconds")
            return str(moment).replace("+00:00", "Z")
    return "9999"


def _hex(digest: str) -> str:
    if not is_digest(digest):
        raise InvalidInput(f"{digest!r} is not a sha256 digest")
    return digest.removeprefix("sha256:")
