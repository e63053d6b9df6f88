"""Bytes in one pass: copied, hashed and compared in chunks, without holding the GIL for long."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pairgate.errors import IntegrityError

CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h
_SAMPLE_BYTES = 1 << 16

OnBytes = Callable[[int], None]
"""on_bytes(n): called from the copying threads after every n bytes."""


def reflink(source: BinaryIO, staged: BinaryIO) -> bool:
    """Share the source's extents where the file system can; false where it cannot."""
    try:
        fcntl.ioctl(staged.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False  # another file system, or one that cannot share extents
    return True


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A write that finds no room does not say where: put the path into its `OSError`."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of it to an unbuffered file, whose write may be short: on a disk that gets full
    the rest then raises."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def copy_and_hash(source: BinaryIO, staged: BinaryIO, size: int, on_bytes: OnBytes | None) -> str:
    """One pass: each chunk is hashed from the same memory that is written.

    Stops after the first chunk beyond `size`: a source that grows must not fill the disk.
    """
    hasher = hashlib.sha256()
    for chunk in file_chunks(source):
        if staged.tell() > size:
            break
        hasher.update(chunk)
        write_all(staged, chunk)
        if on_bytes:
            on_bytes(len(chunk))
    return "sha256:" + hasher.hexdigest()


def receive(
    chunks: Iterable[bytes],
    staged: BinaryIO,
    *,
    digest: str,
    size: int,
    on_bytes: OnBytes | None = None,
) -> None:
    """Write what comes from elsewhere, hashing it on the way; never much more than `size` bytes.

    Raises `IntegrityError` unless it is exactly the `size` bytes that have this digest.
    """
    hasher, n_received = hashlib.sha256(), 0
    for chunk in chunks:
        n_received += len(chunk)
        if n_received > size:
            break
        hasher.update(chunk)
        write_all(staged, chunk)
        if on_bytes:
            on_bytes(len(chunk))
    found = "sha256:" + hasher.hexdigest()
    if n_received == size and found == digest:
        return
    if n_received < size:
        what = f"it ended after {n_received} of {size} bytes"
    elif n_received > size:
        what = f"it has more than {size} bytes"
    else:
        what = f"its bytes are those of {found}"
    raise IntegrityError(
        f"{digest} came damaged: {what}", hint="nothing of it was kept; run it again"
    )


def copy_to(source: BinaryIO, path: Path) -> str:
    """Copy the open file to a new one, synced; returns the digest of what was written."""
    with path.open("xb+", buffering=0) as copy:
        if reflink(source, copy):
            found = hash_file(copy, None)
        else:
            found = copy_and_hash(source, copy, os.fstat(source.fileno()).st_size, None)
        os.fsync(copy.fileno())
    return found


def hash_file(file: BinaryIO, on_bytes: OnBytes | None) -> str:
    """Digest of the whole file."""
    file.seek(0)
    hasher = hashlib.sha256()
    for chunk in file_chunks(file):
        hasher.update(chunk)
        if on_bytes:
            on_bytes(len(chunk))
    return "sha256:" + hasher.hexdigest()


def equal_and_undamaged(
    source: BinaryIO, blob: BinaryIO, sha256_hex: str, on_bytes: OnBytes | None
) -> bool:
    """Whether the blob equals the source and still has its hash; stops at the first difference."""
    source.seek(0)
    blob.seek(0)
    hasher = hashlib.sha256()
    n_reported = 0
    for ours, theirs in zip(file_chunks(blob), file_chunks(source), strict=False):
        if len(ours) != len(theirs) or _MEMCMP(_address(ours), _address(theirs), len(ours)):
            break
        hasher.update(ours)
        n_reported += len(ours)
        if on_bytes:
            on_bytes(len(ours))
    equal = hasher.hexdigest() == sha256_hex
    if on_bytes and not equal:
        on_bytes(-n_reported)  # the copy that follows reports them again
    return equal


# Views compare element by element, and comparing bytes copies them while it holds the GIL.
_MEMCMP = ctypes.CDLL(None).memcmp
_MEMCMP.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def samples_equal(source: BinaryIO, blob: BinaryIO, size: int) -> bool:
    """Whether the start, middle and end agree: a fine-tuned model of equal size fails here, so
    that it is not read twice."""
    for offset in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
        if os.pread(source.fileno(), _SAMPLE_BYTES, offset) != os.pread(
            blob.fileno(), _SAMPLE_BYTES, offset
        ):
            return False
    return True


def file_chunks(file: BinaryIO) -> Iterator[memoryview]:
    """The rest of the file in chunks of one buffer that is filled anew each time."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while True:
        n_filled = 0
        while n_filled < CHUNK_BYTES:  # full chunks, so that two files stay in step
            n_read = file.readinto(buffer[n_filled:])  # type: ignore[attr-defined]
            if not n_read:
                break
            n_filled += n_read
        if not n_filled:
            return
        yield buffer[:n_filled]


def sync_folder(folder: Path) -> None:
    """Make the names in the folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
