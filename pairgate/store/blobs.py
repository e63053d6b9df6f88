"""Every file of every pair, once, by its sha256: an OCI image layout in a local folder.

    ROOT/oci-layout             names the layout's version
    ROOT/index.json             the manifests (one per pair), replaced atomically
    ROOT/blobs/sha256/<hex>     the files, configs and manifests; read-only
    ROOT/staging/               what is being written; left-overs of killed writers are swept
    ROOT/hashes/                digests of source files, by path; safe to delete

A blob appears under its name only after it was written whole, hashed and synced (OCI image-spec
1.1, image-layout). The digest is that of the bytes that were stored, not of a second reading of
the source, and nothing is ever hard-linked with a file that others can write.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pairgate.domain.canonical import canonical_json, is_digest, sha256_digest
from pairgate.domain.pair import ARTIFACT_TYPE, MANIFEST_MEDIA_TYPE, Pair
from pairgate.errors import IntegrityError, InvalidInput, NotFound, Unavailable
from pairgate.localfiles import open_regular
from pairgate.store.hashcache import HashCache
from pairgate.store.localgarbage import LocalGarbage
from pairgate.store.streams import (
    OnBytes,
    copy_and_hash,
    copy_to,
    equal_and_undamaged,
    hash_file,
    receive,
    reflink,
    samples_equal,
    sync_folder,
    write_all,
)

_AGAIN = "register the same files again: that restores it without a new version"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


class LocalBlobStore(LocalGarbage):
    """The blob store of a workspace; safe to use from several threads and processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs" / "sha256"
        self._staging = root / "staging"
        self._hashes = HashCache(root / "hashes")

    def add_file(self, path: Path, *, on_bytes: OnBytes | None = None) -> tuple[str, int]:
        """Store a regular file; returns (digest, size in bytes).

        Content that is here already is compared and hashed, not written again; when the file is
        known to be unchanged (`HashCache`), only the stored copy is hashed. Raises
        `InvalidInput` for anything but a regular file, `IntegrityError` when the file changes
        while it is read, `Unavailable` when the disk is full.
        """
        self._prepare()
        with open_regular(path) as source:
            started_at_ns, before = time.time_ns(), os.fstat(source.fileno())
            known = self._unchanged(path, before, on_bytes)
            if known is not None:
                return known, before.st_size
            digest = self._same_as_stored(source, before.st_size, on_bytes)
            if digest is None:
                digest = self._copy(source, before.st_size, on_bytes)
            after = os.fstat(source.fileno())
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise IntegrityError(
                    f"{path} changed while it was read",
                    hint="register again once nothing writes to it any more",
                )
        self._hashes.put(path, before, digest, started_at_ns)
        return digest, before.st_size

    def add_files(
        self, paths: Sequence[Path], *, n_workers: int = 2, on_bytes: OnBytes | None = None
    ) -> tuple[tuple[str, int], ...]:
        """`add_file` for several files at once, largest first; hashing releases the GIL."""
        from concurrent.futures import ThreadPoolExecutor

        largest_first = sorted(range(len(paths)), key=lambda i: -paths[i].stat().st_size)
        with ThreadPoolExecutor(max_workers=n_workers) as pool:
            futures = {
                i: pool.submit(self.add_file, paths[i], on_bytes=on_bytes) for i in largest_first
            }
            try:
                return tuple(futures[i].result() for i in range(len(paths)))
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def add_bytes(self, data: bytes) -> str:
        """Store bytes; returns their digest."""
        self._prepare()
        digest = sha256_digest(data)
        with suppress(FileNotFoundError):
            if self.has(digest, len(data)) and self.path(digest).read_bytes() == data:
                return digest
        with self._staged(len(data)) as staged:
            write_all(staged, data)
            self._commit(staged, digest)
        return digest

    def add_stream(
        self, chunks: Iterable[bytes], *, digest: str, size: int, on_bytes: OnBytes | None = None
    ) -> None:
        """Store a blob that comes from elsewhere, if it is what was promised.

        Raises `IntegrityError` for other bytes; then nothing is left of them.
        """
        self._prepare()
        if size > self.free_bytes():
            raise Unavailable(f"no room for {size} bytes in {self.root}; nothing was stored")
        with self._staged(size) as staged:
            receive(chunks, staged, digest=digest, size=size, on_bytes=on_bytes)
            self._commit(staged, digest)

    def add_manifest(self, data: bytes, *, on_bytes: OnBytes | None = None) -> str:
        """Store an OCI manifest and list it in index.json, last of all its pair."""
        digest = self.add_bytes(data)
        with self._lock():
            manifests = self._index()
            if all(listed["digest"] != digest for listed in manifests):
                self._write_index([*manifests, index_entry(digest, len(data))])
        return digest

    def require_reachable(self) -> None:
        """An unmounted store is not one whose files are missing. Raises `Unavailable`."""
        if not (self.root / "oci-layout").is_file():
            raise Unavailable(f"there is no store at {self.root} (is it mounted?)")

    def path(self, digest: str) -> Path:
        """Where the blob is, or would be."""
        if not is_digest(digest):
            raise InvalidInput(f"{digest!r} is not a sha256 digest")
        return self._blobs / digest.removeprefix("sha256:")

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob is here, and has `size` bytes."""
        try:
            found = self.path(digest).stat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and size in (None, found.st_size)

    def read(self, digest: str) -> bytes:
        """The bytes of a small blob, checked against the digest."""
        with self._open(digest) as blob:
            data = blob.read()
        if sha256_digest(data) != digest:
            raise _damaged(digest, self.root)
        return data

    def verify(self, digest: str, *, on_bytes: OnBytes | None = None) -> None:
        """Hash the blob again; raises `IntegrityError` when it is missing or differs."""
        with self._open(digest) as blob:
            found = hash_file(blob, on_bytes)
        if found != digest:
            raise _damaged(digest, self.root)

    def missing(self, pair: Pair) -> tuple[str, ...]:
        """Digests of the pair's blobs that are absent or have another size (no hashing)."""
        return tuple(d for d, size in pair_blobs(pair).items() if not self.has(d, size))

    def fetch(self, digest: str, size: int, *, on_bytes: OnBytes | None = None) -> Path:
        """Where the blob is on this machine: in this store it always is."""
        if not self.has(digest, size):
            raise _missing(digest)
        if on_bytes:
            on_bytes(size)
        return self.path(digest)

    def copy_out(self, digest: str, path: Path) -> None:
        """Write the blob to a new file outside the store, checking what was written.

        Raises `IntegrityError` when the stored bytes are missing or damaged.
        """
        with self._open(digest) as blob:
            found = copy_to(blob, path)
        if found != digest:
            raise _damaged(digest, self.root)

    def free_bytes(self) -> int:
        """Bytes that can still be written where the store is."""
        free = os.statvfs(self.root)
        return free.f_bavail * free.f_frsize

    def _open(self, digest: str) -> BinaryIO:
        """Never waits, whatever somebody put there in place of the blob."""
        try:
            return open_regular(self.path(digest), follow=True)
        except NotFound:
            raise _missing(digest) from None
        except InvalidInput as error:
            raise IntegrityError(f"the blob {digest}: {error.message}", hint=_AGAIN) from None

    # How a blob gets in: staged, hashed, synced, renamed.

    def _prepare(self) -> None:
        if (self.root / "oci-layout").exists() and (self.root / "index.json").exists():
            return
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._staging.mkdir(exist_ok=True)
        with self._lock():
            if not (self.root / "index.json").exists():
                self._write_index([])
            self._replace(self.root / "oci-layout", LAYOUT)

    def _copy(self, source: BinaryIO, size: int, on_bytes: OnBytes | None) -> str:
        with self._staged(size) as staged:
            source.seek(0)
            if reflink(source, staged):
                digest = hash_file(staged, on_bytes)
            elif size > self.free_bytes():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # before writing, not after
            else:
                digest = copy_and_hash(source, staged, size, on_bytes)
            self._commit(staged, digest)
        return digest

    def _unchanged(self, path: Path, found: os.stat_result, on_bytes: OnBytes | None) -> str | None:
        """The digest of a source that did not change since it was hashed, if the stored copy of
        that content is undamaged; the source is not read."""
        digest = self._hashes.get(path, found)
        if digest is None or not self.has(digest, found.st_size):
            return None
        with suppress(FileNotFoundError), self.path(digest).open("rb", buffering=0) as blob:
            if hash_file(blob, on_bytes) == digest:
                return digest
            if on_bytes:
                on_bytes(-found.st_size)  # what follows reports them again
        return None

    def _same_as_stored(self, source: BinaryIO, size: int, on_bytes: OnBytes | None) -> str | None:
        """The digest of a stored blob that equals the source byte by byte and is undamaged."""
        with os.scandir(self._blobs) as listing:
            entries = list(listing)
        for entry in entries:
            with suppress(FileNotFoundError):
                if not entry.is_file() or entry.stat().st_size != size:
                    continue
                with open(entry.path, "rb", buffering=0) as blob:
                    if samples_equal(source, blob, size) and equal_and_undamaged(
                        source, blob, entry.name, on_bytes
                    ):
                        return "sha256:" + entry.name
        return None

    @contextmanager
    def _staged(self, size: int) -> Iterator[BinaryIO]:
        """A new file in the staging folder, locked while its writer lives, gone afterwards."""
        self._staging.mkdir(exist_ok=True)
        try:
            path, staged = self._open_staged()
            try:
                with staged:
                    yield staged
            finally:
                path.unlink(missing_ok=True)  # renamed on success
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise Unavailable(
                f"no room for {size} bytes in {self.root}: {error.strerror}; nothing was stored",
                hint="free space there, or use another home with --home",
            ) from error

    def _open_staged(self) -> tuple[Path, BinaryIO]:
        while True:
            path = self._staging / secrets.token_hex(16)
            staged = path.open("xb+", buffering=0)
            fcntl.flock(staged, fcntl.LOCK_EX)
            # A sweep between open and lock took it for a left-over: make another.
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(staged.fileno()).st_ino:
                    return path, staged
            staged.close()

    def _commit(self, staged: BinaryIO, digest: str) -> None:
        os.fchmod(staged.fileno(), 0o444)
        os.fsync(staged.fileno())
        os.rename(staged.name, self.path(digest))
        sync_folder(self._blobs)

    def list_index(self) -> tuple[str, ...]:
        """Digests of the manifests that index.json lists; raises `IntegrityError`."""
        if not (self.root / "index.json").exists():
            return ()
        return tuple(str(listed["digest"]) for listed in self._index())

    def delete_index_entry(self, digest: str) -> None:
        """List the manifest no longer; its blob stays. Absent is fine."""
        with self._lock():
            self._write_index([m for m in self._index() if m["digest"] != digest])

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.root / "index.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _index(self) -> list[dict[str, object]]:
        try:
            manifests: list[dict[str, object]] = json.loads(
                (self.root / "index.json").read_bytes()
            )["manifests"]
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(
                f"{self.root / 'index.json'} is not an OCI index: {error}",
                hint="restore it from a backup, or move it away: registering lists pairs again",
            ) from error
        return manifests

    def _write_index(self, manifests: list[dict[str, object]]) -> None:
        self._replace(self.root / "index.json", index_document(manifests))

    def _replace(self, path: Path, data: bytes) -> None:
        """Atomically, by way of the staging folder, where left-overs of a kill are swept."""
        with self._staged(len(data)) as staged:
            write_all(staged, data)
            os.fsync(staged.fileno())
            os.replace(staged.name, path)
        sync_folder(path.parent)


def pair_blobs(pair: Pair) -> dict[str, int]:
    """Bytes of every blob that a pair consists of, by digest: files, config and manifest."""
    blobs = {entry.sha256: entry.size for model in pair.models for entry in model.files}
    for data in (pair.config_blob(), pair.manifest()):
        blobs[sha256_digest(data)] = len(data)
    return blobs


def index_document(manifests: list[dict[str, object]]) -> bytes:
    """An index.json (OCI image-spec 1.1, image-index)."""
    media_type = "application/vnd.oci.image.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}
    return canonical_json(index)


def index_entry(digest: str, size: int) -> dict[str, object]:
    """How index.json lists a pair's manifest."""
    return {
        "mediaType": MANIFEST_MEDIA_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "digest": digest,
        "size": size,
        "annotations": {"org.opencontainers.image.ref.name": ref_name(digest)},
    }


def ref_name(digest: str) -> str:
    """The name of a manifest in index.json, for tools that copy by name: `oci:ROOT:NAME`."""
    return digest.replace("sha256:", "sha256-")


def _missing(digest: str) -> IntegrityError:
    return IntegrityError(
        f"the blob {digest} is missing from the store",
        hint=_AGAIN,
    )


def _damaged(digest: str, root: Path) -> IntegrityError:
    return IntegrityError(
        f"the stored bytes of {digest} in {root} no longer match the digest",
        hint="register the same files again: that replaces the damaged blob without a new version",
    )
