"""The store on an object store: moto's server stands in for S3."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import pytest

from pairgate.app.presence import check_pair_present, index_pair
from pairgate.app.register import materialise, presence, register, verify_pair
from pairgate.app.workspace import Workspace, now
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.pair import Pair
from pairgate.errors import IntegrityError, InvalidInput, Unavailable
from pairgate.store import remote as remote_module
from pairgate.store import uploads
from pairgate.store.blobs import LocalBlobStore, ref_name
from pairgate.store.remote import RemoteBlobStore


def registered(ws: Workspace, make_model, n: int = 1) -> Pair:
    target = make_model(f"target-{n}", seed=0)
    draft = make_model(f"draft-{n}", seed=n)
    return register(ws, "chat", target=str(target), draft=str(draft), k=3).pair


def blob_key(s3, digest: str) -> str:
    return f"{s3.bucket}/pairs/blobs/sha256/{digest[7:]}"


def another_machine(ws: Workspace, tmp_path: Path) -> Workspace:
    """The same registry and store, and a home that holds nothing."""
    home = str(tmp_path / "elsewhere")
    return Workspace.open(
        home=home, store_url=ws.store_url, database_url=ws.database_url, create=True
    )


def test_a_pair_is_published_and_its_files_come_back_elsewhere(
    remote_ws, s3, make_model, tmp_path
) -> None:
    pair = registered(remote_ws, make_model)
    assert presence(remote_ws, pair) == ()
    assert verify_pair(remote_ws, pair).problem == ""
    other = another_machine(remote_ws, tmp_path)
    with materialise(other, pair) as files:
        for entry in pair.target.files:
            assert sha256_digest((files.target_dir / entry.path).read_bytes()) == entry.sha256
    assert not (other.home / "store").exists()
    other.blobs.copy_out(pair.target.files[0].sha256, tmp_path / "copy")
    assert sha256_digest((tmp_path / "copy").read_bytes()) == pair.target.files[0].sha256
    other.close()


def test_identity_does_not_depend_on_the_store(remote_ws, make_model) -> None:
    target = str(make_model("t"))
    ws = Workspace.open(home=str(remote_ws.home))  # one registry, two stores
    local = register(ws, "chat", target=target)
    ws.close()
    remote = register(remote_ws, "chat", target=target)
    assert (local.pair.digest, remote.created) == (remote.pair.digest, False)


def test_unchanged_files_are_sent_once(remote_ws, s3, make_model, monkeypatch) -> None:
    sent: list[str] = []

    def spy(path, digest, url, on_bytes):
        sent.append(digest)
        return uploads.upload(path, digest, url, on_bytes)

    monkeypatch.setattr(remote_module, "upload", spy)
    first = registered(remote_ws, make_model, 1)
    assert len(sent) == len(set(sent))
    n_first = len(sent)
    second = registered(remote_ws, make_model, 2)
    assert first.target_digest == second.target_digest
    assert len(sent) - n_first == 3  # the draft's weights, the config and the manifest
    assert len(s3.ls(f"{s3.bucket}/pairs/pairs")) == 2


@pytest.mark.skopeo
def test_an_oci_client_reads_a_downloaded_copy(remote_ws, s3, make_model, tmp_path) -> None:
    registered(remote_ws, make_model, 1)
    pair = registered(remote_ws, make_model, 2)
    here = tmp_path / "synced"
    s3.get(f"{s3.bucket}/pairs/", f"{here}/", recursive=True)
    layout = here / "pairs" / pair.digest[7:]
    source = f"oci:{layout}:{ref_name(pair.digest)}"
    shared = ["--src-shared-blob-dir", str(here / "blobs")]
    command = ["skopeo", "copy", "--preserve-digests", *shared, source, f"oci:{tmp_path}/copy:x"]
    subprocess.run(command, check=True, capture_output=True)
    index = json.loads((tmp_path / "copy" / "index.json").read_bytes())
    assert [m["digest"] for m in index["manifests"]] == [pair.digest]
    # The pair's own prefix with its blobs is an OCI image layout without any option.
    manifest = json.loads((here / "blobs" / "sha256" / pair.digest[7:]).read_bytes())
    own = layout / "blobs" / "sha256"
    own.mkdir(parents=True)
    for blob in (*manifest["layers"], manifest["config"], {"digest": pair.digest}):
        shutil.copy(here / "blobs" / "sha256" / blob["digest"][7:], own)
    command = ["skopeo", "copy", "--preserve-digests", source, f"oci:{tmp_path}/again:x"]
    subprocess.run(command, check=True, capture_output=True)


def test_a_missing_object_is_an_integrity_failure_even_when_the_store_warns(
    remote_ws, s3, make_model
) -> None:
    pair = registered(remote_ws, make_model)
    digest = pair.target.files[0].sha256
    s3.rm(blob_key(s3, digest))
    assert presence(remote_ws, pair) == (digest,)
    with pytest.raises(IntegrityError, match="missing"):
        check_pair_present(remote_ws, pair, None)
    remote_ws.cache.delete_blob(digest)
    with pytest.raises(IntegrityError, match="missing"), materialise(remote_ws, pair):
        pass
    assert digest in verify_pair(remote_ws, pair).problem


def test_a_changed_object_is_found_and_replaced_by_registering_again(
    remote_ws, s3, make_model, tmp_path
) -> None:
    pair = registered(remote_ws, make_model)
    weights = next(f for f in pair.target.files if f.path == "model.safetensors")
    s3.pipe_file(blob_key(s3, weights.sha256), b"x" * weights.size)
    assert presence(remote_ws, pair) == ()  # the size is right: only reading sees it
    assert "do not match" in verify_pair(remote_ws, pair).problem
    other = another_machine(remote_ws, tmp_path)
    with pytest.raises(IntegrityError, match="damaged"), materialise(other, pair):
        pass
    assert not other.cache.has(weights.sha256)
    other.close()
    registered_again = register(
        remote_ws,
        "chat",
        target=str(tmp_path / "models/target-1"),
        draft=str(tmp_path / "models/draft-1"),
        k=3,
    )
    assert not registered_again.created
    assert verify_pair(remote_ws, pair).problem == ""


def test_an_unreachable_store_warns_or_refuses_but_is_never_missing_files(
    remote_ws, s3, make_model, monkeypatch
) -> None:
    pair = registered(remote_ws, make_model)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    type(s3).clear_instance_cache()
    (warning,) = check_pair_present(remote_ws, pair, None)
    assert "could not be checked" in warning
    with pytest.raises(Unavailable, match="cannot be reached"):
        check_pair_present(remote_ws, pair, None, reachable=True)


@pytest.mark.parametrize("place", ["s3://no-such-bucket-here/pairs", "s3://{bucket}/elsewhere"])
def test_a_wrong_address_is_no_store_rather_than_an_empty_one(
    remote_ws, s3, make_model, tmp_path, place
) -> None:
    pair = registered(remote_ws, make_model)
    url = place.format(bucket=s3.bucket)
    wrong = Workspace.open(home=str(remote_ws.home), store_url=url)
    (warning,) = check_pair_present(wrong, pair, None)
    assert "there is no store at" in warning
    wrong.close()


def test_disabling_lists_the_target_alone_and_sends_no_weights(
    remote_ws, s3, make_model, tmp_path, monkeypatch
) -> None:
    from pairgate.domain.pair import DecodingConfig, Method

    pair = registered(remote_ws, make_model)
    alone = Pair(target=pair.target, draft=None, decoding=DecodingConfig(method=Method.NONE))
    other = another_machine(remote_ws, tmp_path)
    assert index_pair(other, alone) == ()
    assert presence(other, alone) == ()
    cached = {b.digest for b in other.cache.list_blobs()}
    assert cached == {alone.digest, sha256_digest(alone.config_blob())}
    other.close()


def test_the_index_of_a_pair_comes_last(remote_ws, s3, make_model, monkeypatch) -> None:
    puts: list[str] = []
    put = RemoteBlobStore._put

    def spy(self, url, data):
        puts.append(url)
        put(self, url, data)

    monkeypatch.setattr(RemoteBlobStore, "_put", spy)
    pair = registered(remote_ws, make_model)
    assert puts[-1] == f"s3://{s3.bucket}/pairs/pairs/{pair.digest[7:]}/index.json"
    assert set(remote_ws.blobs.list_index()) == {pair.digest}


def test_what_garbage_collection_asks_for(remote_ws, s3, make_model) -> None:
    pair = registered(remote_ws, make_model)
    before = now()
    listed = {b.digest: b for b in remote_ws.blobs.list_blobs()}
    assert all(entry.sha256 in listed for model in pair.models for entry in model.files)
    assert all(b.stored_at <= before for b in listed.values())
    remote_ws.blobs.delete_index_entry(pair.digest)
    remote_ws.blobs.delete_index_entry(pair.digest)
    assert remote_ws.blobs.list_index() == ()
    digest = pair.target.files[0].sha256
    remote_ws.blobs.delete_blob(digest)
    remote_ws.blobs.delete_blob(digest)
    assert presence(remote_ws, pair) == (digest,)


@pytest.mark.parametrize("n_parts", [0, 1, 2, 2.5])
def test_parts_are_confirmed_by_the_etag(s3, tmp_path, monkeypatch, n_parts) -> None:
    part = 5 << 20
    monkeypatch.setattr(uploads, "_MIN_PART_BYTES", part)
    store = RemoteBlobStore(f"s3://{s3.bucket}/pairs", LocalBlobStore(tmp_path / "cache"))
    monkeypatch.setattr(store, "verify", None)  # reading back would raise
    source = tmp_path / "f"
    source.write_bytes(os.urandom(int(part * n_parts)))
    digest, size = store.add_file(source)
    store._send(digest, None)
    info = s3.info(blob_key(s3, digest))
    assert (info["size"], info["ETag"].strip('"')) == (size, uploads.etag_of(source))


def test_bytes_that_are_not_the_digest_are_not_sent(s3, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "_MIN_PART_BYTES", 5 << 20)
    store = RemoteBlobStore(f"s3://{s3.bucket}/pairs", LocalBlobStore(tmp_path / "cache"))
    source = tmp_path / "f"
    source.write_bytes(os.urandom(11 << 20))
    digest, _ = store.add_file(source)
    blob = store.path(digest)
    blob.chmod(0o644)
    blob.write_bytes(os.urandom(11 << 20))
    with pytest.raises(IntegrityError, match="nothing was sent"):
        store._send(digest, None)
    assert not s3.exists(blob_key(s3, digest))
    assert s3.list_multipart_uploads(s3.bucket) == []


def test_a_store_that_gives_no_content_hash_is_read_back(s3, tmp_path, monkeypatch) -> None:
    store = RemoteBlobStore(f"s3://{s3.bucket}/pairs", LocalBlobStore(tmp_path / "cache"))
    digest = store.add_bytes(b"text")
    real = remote_module.upload
    monkeypatch.setattr(remote_module, "upload", lambda *a: real(*a) and "opaque")
    read: list[str] = []
    monkeypatch.setattr(store, "verify", read.append)
    store._send(digest, None)
    assert read == [digest]


def test_memory_does_not_grow_with_the_size_of_a_file(s3, tmp_path) -> None:
    store = RemoteBlobStore(f"s3://{s3.bucket}/pairs", LocalBlobStore(tmp_path / "cache"))
    source = tmp_path / "f"
    with source.open("wb") as file:
        file.truncate(96 << 20)
    tracemalloc.start()
    digest, size = store.add_file(source)
    store._send(digest, None)
    store.cache.delete_blob(digest)
    store.fetch(digest, size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20  # parts of 16 MiB, of which the client holds some copies


@pytest.mark.parametrize("url", ["memory://pairs", "file:///tmp/x", "https://host/pairs", "x"])
def test_only_object_stores_can_be_stores(tmp_path, url) -> None:
    with pytest.raises(InvalidInput, match="store"):
        RemoteBlobStore(url, LocalBlobStore(tmp_path / "cache"))


def test_a_killed_upload_leaves_no_version_and_running_again_completes_it(
    remote_ws, s3, make_model
) -> None:
    target = make_model("t")
    code = """
        import os, sys
        from pairgate.app.register import register
        from pairgate.app.workspace import Workspace
        from pairgate.store.remote import RemoteBlobStore
        put = RemoteBlobStore._put
        RemoteBlobStore._put = lambda self, url, data: (
            os.kill(os.getpid(), 9) if url.endswith("index.json") else put(self, url, data)
        )
        ws = Workspace.open(home=sys.argv[1], store_url=sys.argv[2])
        register(ws, "chat", target=sys.argv[3])
    """
    argv = [sys.executable, "-c", textwrap.dedent(code), str(remote_ws.home)]
    killed = subprocess.run([*argv, remote_ws.store_url, str(target)], check=False)
    assert killed.returncode == -9
    assert remote_ws.registry.versions("chat") == []
    assert remote_ws.blobs.list_index() == ()
    done = register(remote_ws, "chat", target=str(target))
    assert done.created
    assert presence(remote_ws, done.pair) == ()


def test_gc_deletes_objects_that_no_version_needs(remote_ws, s3, make_model) -> None:
    from datetime import timedelta

    from pairgate.app.gc import GcOptions, collect
    from pairgate.app.release import pin
    from pairgate.domain.pair import VersionRef

    first, second = registered(remote_ws, make_model, 1), registered(remote_ws, make_model, 2)
    pin(remote_ws, VersionRef.parse("chat@2"), reason="it stays")
    options = GcOptions(grace=timedelta(0), retention=timedelta(0))
    collect(remote_ws, options)
    collect(remote_ws, options)
    assert presence(remote_ws, second) == ()
    draft = next(f for f in first.draft.files if f.path == "model.safetensors")
    assert not s3.exists(blob_key(s3, draft.sha256))
    assert remote_ws.blobs.list_index() == (second.digest,)
