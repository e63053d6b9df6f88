"""The blob store: what is stored is whole, right and stored once, whatever happens meanwhile."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pairgate.errors import IntegrityError, InvalidInput, Unavailable
from pairgate.store import blobs as blobs_module
from pairgate.store.blobs import LocalBlobStore
from pairgate.store.streams import CHUNK_BYTES


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "store")


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def stored_files(store: LocalBlobStore) -> list[Path]:
    return sorted((store.root / "blobs" / "sha256").iterdir())


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
def test_a_file_is_stored_under_its_digest_read_only(
    store: LocalBlobStore, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    digest, n_bytes = store.add_file(write(tmp_path / "f", data))
    blob = store.path(digest)
    assert (digest, n_bytes) == ("sha256:" + hashlib.sha256(data).hexdigest(), size)
    assert blob.read_bytes() == data
    assert stat.S_IMODE(blob.stat().st_mode) == 0o444
    assert blob.stat().st_nlink == 1
    assert list((store.root / "staging").iterdir()) == []


def test_the_layout_is_an_oci_image_layout(store: LocalBlobStore) -> None:
    digest = store.add_manifest(b'{"schemaVersion":2}')
    layout = json.loads((store.root / "oci-layout").read_bytes())
    index = json.loads((store.root / "index.json").read_bytes())
    assert layout == {"imageLayoutVersion": "1.0.0"}
    assert [m["digest"] for m in index["manifests"]] == [digest]
    store.add_manifest(b'{"schemaVersion":2}')
    assert json.loads((store.root / "index.json").read_bytes()) == index


def test_equal_content_is_not_written_again(
    store: LocalBlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(CHUNK_BYTES + 5)
    first = store.add_file(write(tmp_path / "a", data))
    inode = store.path(first[0]).stat().st_ino
    monkeypatch.setattr(blobs_module, "copy_and_hash", None)  # copying would raise
    assert store.add_file(write(tmp_path / "b", data)) == first
    assert store.path(first[0]).stat().st_ino == inode


def test_a_damaged_blob_is_found_and_replaced_by_registering_again(
    store: LocalBlobStore, tmp_path: Path
) -> None:
    data = os.urandom(300_000)
    source = write(tmp_path / "f", data)
    digest, _ = store.add_file(source)
    blob = store.path(digest)
    blob.chmod(0o644)
    with blob.open("r+b") as file:  # outside of what the samples see
        file.seek(100_000)
        file.write(b"damage")
    with pytest.raises(IntegrityError, match="no longer match"):
        store.verify(digest)
    assert store.add_file(source)[0] == digest
    store.verify(digest)


def test_a_pipe_in_place_of_a_blob_keeps_nobody_waiting(
    store: LocalBlobStore, tmp_path: Path
) -> None:
    """Whoever opens it to read waits for a writer, for ever."""
    for data in (b"", b"weights"):
        source = write(tmp_path / "file", data)
        digest, size = store.add_file(source)
        store.path(digest).unlink()
        os.mkfifo(store.path(digest))
        for look in (store.verify, store.read, lambda d: store.copy_out(d, tmp_path / "out")):
            with pytest.raises(IntegrityError, match="is not a regular file"):
                look(digest)
        assert not store.has(digest, size)
        os.utime(source, (0, 0))  # not the file that was hashed before
        assert store.add_file(source) == (digest, size)
        assert store.read(digest) == data
        store.path(digest).unlink()
        os.mkfifo(store.path(digest))
        assert store.add_bytes(data) == digest
        store.verify(digest)


def test_a_missing_blob_is_named(store: LocalBlobStore) -> None:
    with pytest.raises(IntegrityError, match="missing"):
        store.verify("sha256:" + "0" * 64)
    with pytest.raises(InvalidInput, match="not a sha256 digest"):
        store.path("sha256:../../etc/passwd")


def test_the_source_may_change_afterwards(store: LocalBlobStore, tmp_path: Path) -> None:
    source = write(tmp_path / "f", b"before")
    digest, _ = store.add_file(source)
    source.write_bytes(b"after!")
    store.verify(digest)


def test_a_source_that_changes_meanwhile_is_refused(store: LocalBlobStore, tmp_path: Path) -> None:
    source = write(tmp_path / "f", os.urandom(3 * CHUNK_BYTES))

    def grow(n_bytes: int) -> None:  # for ever, if nothing stopped it
        with source.open("ab") as file:
            file.write(b"x" * n_bytes)

    with pytest.raises(IntegrityError, match="changed while it was read"):
        store.add_file(source, on_bytes=grow)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "absent"])
def test_only_regular_files_are_read(store: LocalBlobStore, tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(write(tmp_path / "f", b"x"))
    with pytest.raises(InvalidInput):
        store.add_file(path)


def test_a_full_disk_leaves_no_half_blob(tmp_path: Path) -> None:
    write(tmp_path / "f", os.urandom(1 << 20))
    script = f"""
        import resource
        from pathlib import Path
        from pairgate.errors import Unavailable
        from pairgate.store.blobs import LocalBlobStore
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        try:
            store = LocalBlobStore(Path({str(tmp_path / "store")!r}))
            store.add_file(Path({str(tmp_path / "f")!r}))
        except Unavailable as error:
            print(error.message)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert "no room for 1048576 bytes" in done.stdout
    store = LocalBlobStore(tmp_path / "store")
    assert stored_files(store) == []
    assert list((store.root / "staging").iterdir()) == []


def test_a_file_larger_than_the_free_space_is_not_begun(
    store: LocalBlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "free_bytes", lambda: 10)
    with pytest.raises(Unavailable, match="no room for 11 bytes"):
        store.add_file(write(tmp_path / "f", b"11 bytes..."))
    assert stored_files(store) == []


def test_killed_in_the_middle_and_run_again(store: LocalBlobStore, tmp_path: Path) -> None:
    data = os.urandom(8 * CHUNK_BYTES)
    source = write(tmp_path / "f", data)
    script = f"""
        import time
        from pathlib import Path
        from pairgate.store.blobs import LocalBlobStore
        def slow(n):
            print("chunk", flush=True)
            time.sleep(60)
        LocalBlobStore(Path({str(store.root)!r})).add_file(Path({str(source)!r}), on_bytes=slow)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "chunk\n"
        assert len(list((store.root / "staging").iterdir())) == 1
        assert store.sweep() == 0  # its writer lives
        child.send_signal(signal.SIGKILL)
    assert stored_files(store) == []
    assert store.sweep() == 1
    digest, _ = store.add_file(source)
    assert store.path(digest).read_bytes() == data
    assert [p.name for p in stored_files(store)] == [digest[7:]]


def _add_many(root: Path, folder: Path, start: float, results: multiprocessing.Queue) -> None:
    store = LocalBlobStore(root)
    time.sleep(max(0.0, start - time.time()))
    found = [store.add_file(path)[0] for path in sorted(folder.iterdir())]
    found.append(store.add_manifest(json.dumps({"pid": os.getpid()}).encode()))
    results.put(found)


def test_processes_that_store_the_same_content_agree(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for n in range(6):
        write(folder / str(n), os.urandom(200_000))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    args = (tmp_path / "store", folder, time.time() + 1.0, results)
    children = [context.Process(target=_add_many, args=args) for _ in range(3)]
    for child in children:
        child.start()
    found = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    results.close()
    store = LocalBlobStore(tmp_path / "store")
    assert len({tuple(f[:-1]) for f in found}) == 1
    for digest in (*found[0], *(f[-1] for f in found)):
        store.verify(digest)
    index = json.loads((store.root / "index.json").read_bytes())
    assert {m["digest"] for m in index["manifests"]} == {f[-1] for f in found}
    assert list((store.root / "staging").iterdir()) == []


def test_several_files_at_once_keep_their_order(store: LocalBlobStore, tmp_path: Path) -> None:
    paths = [write(tmp_path / str(n), bytes([n]) * (n * 1000 + 1)) for n in range(5)]
    seen: list[int] = []
    found = store.add_files(paths, n_workers=2, on_bytes=seen.append)
    assert [d for d, _ in found] == [
        "sha256:" + hashlib.sha256(p.read_bytes()).hexdigest() for p in paths
    ]
    assert sum(seen) == sum(p.stat().st_size for p in paths)


def test_copy_out_hashes_what_it_writes(store: LocalBlobStore, tmp_path: Path) -> None:
    digest, _ = store.add_file(write(tmp_path / "f", b"good"))
    store.copy_out(digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"good"
    store.path(digest).chmod(0o644)
    store.path(digest).write_bytes(b"evil")
    with pytest.raises(IntegrityError):
        store.copy_out(digest, tmp_path / "out2")


# --- sources that did not change since they were hashed ---------------------------------------


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs two seconds ahead of file times."""
    real = time.time_ns
    monkeypatch.setattr(blobs_module.time, "time_ns", lambda: real() + 2_000_000_000)


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on reading a source raises."""
    monkeypatch.setattr(LocalBlobStore, "_same_as_stored", None)


def test_an_unchanged_source_is_not_read_again(
    store: LocalBlobStore, tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "f", os.urandom(300_000))
    first = store.add_file(source)
    unread(monkeypatch)
    reported: list[int] = []
    assert store.add_file(source, on_bytes=reported.append) == first
    assert sum(reported) == 300_000


def test_a_source_as_young_as_the_clock_is_coarse_is_read_again(
    store: LocalBlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "f", b"young")
    store.add_file(source)
    unread(monkeypatch)
    with pytest.raises(TypeError):
        store.add_file(source)


def rewrite(path: Path) -> None:
    """Other bytes of the same size under the same modification time."""
    kept = path.stat()
    path.write_bytes(b"B" * kept.st_size)
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))


def swap(path: Path) -> None:
    """Another file of the same size and time in its place."""
    kept = path.stat()
    other = write(path.with_name("other"), b"B" * kept.st_size)
    os.utime(other, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("change", [rewrite, swap])
def test_a_changed_source_is_read_whatever_its_modification_time(
    store: LocalBlobStore, tmp_path: Path, settled: None, change
) -> None:
    source = write(tmp_path / "f", b"A" * 300_000)
    first, _ = store.add_file(source)
    change(source)
    second, _ = store.add_file(source)
    assert second == "sha256:" + hashlib.sha256(b"B" * 300_000).hexdigest() != first


def test_trust_in_the_source_is_no_trust_in_the_stored_copy(
    store: LocalBlobStore, tmp_path: Path, settled: None
) -> None:
    source = write(tmp_path / "f", os.urandom(300_000))
    digest, _ = store.add_file(source)
    blob = store.path(digest)
    blob.chmod(0o644)
    blob.write_bytes(b"\0" * 300_000)
    reported: list[int] = []
    assert store.add_file(source, on_bytes=reported.append) == (digest, 300_000)
    assert sum(reported) == 300_000
    store.verify(digest)
    store.delete_blob(digest)
    assert store.add_file(source) == (digest, 300_000)
    store.verify(digest)


@pytest.mark.parametrize("record", [b"", b"[]", b'{"file":[],"digest":"x"}', b"{"])
def test_a_broken_record_costs_time_only(
    store: LocalBlobStore, tmp_path: Path, settled: None, record: bytes
) -> None:
    source = write(tmp_path / "f", b"bytes")
    first = store.add_file(source)
    (entry,) = (store.root / "hashes").iterdir()
    entry.write_bytes(record)
    assert store.add_file(source) == first
