"""Every file of every pair, once, by its sha256: an OCI image layout in a local folder.

    ROOT/oci-layout             names the layout's version
    ROOT/index.json             the manifests (one per pair), replaced atomically
    ROOT/blobs/sha256/<hex>     the files, configs and manifests; read-only
    ROOT/staging/               what is being written; left-overs of killed writers are swept

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pairgate.domain.canonical import canonical_json, is_digest, sha256_digest
from pairgate.domain.pair import ARTIFACT_TYPE, MANIFEST_MEDIA_TYPE, Pair
from pairgate.errors import IntegrityError, InvalidInput, Unavailable
from pairgate.store.streams import (
    OnBytes,
    copy_and_hash,
    equal_and_undamaged,
    hash_file,
    open_regular,
    reflink,
    samples_equal,
    sync_folder,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


class LocalBlobStore:
    """The blob store of a workspace; safe to use from several threads and processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs" / "sha256"
        self._staging = root / "staging"

    def add_file(self, path: Path, *, on_bytes: OnBytes | None = None) -> tuple[str, int]:
        """Store a regular file; returns (digest, size in bytes).

        Content that is here already is compared and hashed, not written again. Raises
        `InvalidInput` for anything but a regular file, `IntegrityError` when the file changes
        while it is read, `Unavailable` when the disk is full.
        """
        self._prepare()
        with open_regular(path) as source:
            before = os.fstat(source.fileno())
            digest = self._same_as_stored(source, before.st_size, on_bytes)
            if digest is None:
                digest = self._copy(source, before.st_size, on_bytes)
            after = os.fstat(source.fileno())
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise IntegrityError(
                    f"{path} changed while it was read",
                    hint="register again once nothing writes to it any more",
                )
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
            if self.path(digest).read_bytes() == data:
                return digest
        with self._staged(len(data)) as staged:
            staged.write(data)
            self._commit(staged, digest)
        return digest

    def add_manifest(self, data: bytes) -> str:
        """Store an OCI manifest and list it in index.json, last of all its pair."""
        digest = self.add_bytes(data)
        with self._lock():
            manifests = self._index()
            if all(listed["digest"] != digest for listed in manifests):
                manifests.append(
                    {
                        "mediaType": MANIFEST_MEDIA_TYPE,
                        "artifactType": ARTIFACT_TYPE,
                        "digest": digest,
                        "size": len(data),
                        "annotations": {"org.opencontainers.image.ref.name": ref_name(digest)},
                    }
                )
                self._write_index(manifests)
        return digest

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
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            raise _missing(digest) from None
        if sha256_digest(data) != digest:
            raise _damaged(digest, self.root)
        return data

    def verify(self, digest: str, *, on_bytes: OnBytes | None = None) -> None:
        """Hash the blob again; raises `IntegrityError` when it is missing or differs."""
        try:
            with self.path(digest).open("rb", buffering=0) as blob:
                found = hash_file(blob, on_bytes)
        except FileNotFoundError:
            raise _missing(digest) from None
        if found != digest:
            raise _damaged(digest, self.root)

    def missing(self, pair: Pair) -> tuple[str, ...]:
        """Digests of the pair's blobs that are absent or have another size (no hashing)."""
        manifest, config = pair.manifest(), pair.config_blob()
        wanted = {entry.sha256: entry.size for model in pair.models for entry in model.files}
        wanted[sha256_digest(config)] = len(config)
        wanted[sha256_digest(manifest)] = len(manifest)
        return tuple(digest for digest, size in wanted.items() if not self.has(digest, size))

    def copy_out(self, digest: str, path: Path) -> None:
        """Write the blob to a new file outside the store, checking what was written.

        Raises `IntegrityError` when the stored bytes are missing or damaged.
        """
        try:
            blob = self.path(digest).open("rb", buffering=0)
        except FileNotFoundError:
            raise _missing(digest) from None
        with blob, path.open("xb+", buffering=0) as copy:
            cloned = reflink(blob, copy)
            size = os.fstat(blob.fileno()).st_size
            found = hash_file(copy, None) if cloned else copy_and_hash(blob, copy, size, None)
            if found != digest:
                raise _damaged(digest, self.root)
            os.fsync(copy.fileno())

    def free_bytes(self) -> int:
        """Bytes that can still be written where the store is."""
        free = os.statvfs(self.root)
        return free.f_bavail * free.f_frsize

    # How a blob gets in: staged, hashed, synced, renamed.

    def _prepare(self) -> None:
        if (self.root / "oci-layout").exists() and (self.root / "index.json").exists():
            return
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._staging.mkdir(exist_ok=True)
        with self._lock():
            if not (self.root / "index.json").exists():
                self._write_index([])
            _replace(self.root / "oci-layout", _LAYOUT)

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

    def _same_as_stored(self, source: BinaryIO, size: int, on_bytes: OnBytes | None) -> str | None:
        """The digest of a stored blob that equals the source byte by byte and is undamaged."""
        with os.scandir(self._blobs) as listing:
            entries = list(listing)
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.stat().st_size != size:
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

    def sweep(self) -> int:
        """Delete what killed writers left in the staging folder; returns how many files."""
        n_swept = 0
        for path in list(self._staging.iterdir()) if self._staging.is_dir() else []:
            with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living writer holds it
                path.unlink()
                n_swept += 1
        return n_swept

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
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": manifests,
        }
        _replace(self.root / "index.json", canonical_json(index))


def ref_name(digest: str) -> str:
    """The name of a manifest in index.json, for tools that copy by name: `oci:ROOT:NAME`."""
    return digest.replace("sha256:", "sha256-")


def _replace(path: Path, data: bytes) -> None:
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with staged.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    sync_folder(path.parent)


def _missing(digest: str) -> IntegrityError:
    return IntegrityError(
        f"the blob {digest} is missing from the store",
        hint="register the same files again: that restores it without a new version",
    )


def _damaged(digest: str, root: Path) -> IntegrityError:
    return IntegrityError(
        f"the stored bytes of {digest} in {root} no longer match the digest",
        hint="register the same files again: that replaces the damaged blob without a new version",
    )
