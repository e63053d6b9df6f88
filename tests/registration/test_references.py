"""Weights that stay where they are: registered by range requests, checked, fetched and lost."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError as SqlIntegrityError

from benchmarks.referenced_target import RangeServer, check, write_head, write_sparse_target
from pairgate.app.presence import check_pair_present
from pairgate.app.register import materialise, presence, register, verify_pair
from pairgate.app.storing import CHECKSUMS_FILE, READ_ONCE
from pairgate.app.workspace import Workspace
from pairgate.domain.canonical import sha256_digest
from pairgate.errors import IntegrityError, InvalidInput, NotFound, Refused, Unavailable

WEIGHTS = "model.safetensors"


@pytest.fixture
def uploaded(s3, make_model):
    """uploaded(folder): its s3:// URL after uploading it."""

    def upload(folder: Path) -> str:
        s3.put(f"{folder}/", f"{s3.bucket}/{folder.name}/", recursive=True)
        return f"s3://{s3.bucket}/{folder.name}"

    return upload


def the_reference(ws: Workspace, pair):
    (reference,) = ws.registry.references(f.sha256 for f in pair.target.files).values()
    return reference


def checksums(folder: Path, **changed: str) -> Path:
    path = folder.parent / f"{folder.name}.sums"
    lines = [
        f"{changed.get(f.stem) or hashlib.sha256(f.read_bytes()).hexdigest()}  ./{f.name}\n"
        for f in sorted(folder.iterdir())
    ]
    path.write_text("".join(lines))
    return path


def test_a_referenced_target_is_the_same_pair_as_a_copied_one(ws, s3, make_model, uploaded) -> None:
    folder, draft = make_model("t"), make_model("d", seed=1)
    referenced = register(ws, "chat", target=uploaded(folder), draft=str(draft))
    weights = next(f for f in referenced.pair.target.files if f.path == WEIGHTS)
    assert not ws.blobs.store.has(weights.sha256)
    assert all(ws.blobs.store.has(f.sha256) for f in referenced.pair.draft.files)
    found = the_reference(ws, referenced.pair)
    assert (found.uri, found.size) == (f"s3://{s3.bucket}/t/{WEIGHTS}", weights.size)
    assert found.hashed_by == READ_ONCE
    assert found.version_id == s3.info(f"{s3.bucket}/t/{WEIGHTS}")["ETag"].strip('"')
    provenance = json.loads(ws.registry.provenance(referenced.pair.digest))
    assert provenance["references"][0]["hashed_by"] == READ_ONCE
    copied = register(ws, "chat", target=str(folder), draft=str(draft))
    assert (copied.created, copied.pair) == (False, referenced.pair)
    assert ws.blobs.store.has(weights.sha256)
    s3.rm(f"{s3.bucket}/t", recursive=True)
    assert presence(ws, copied.pair) == ()  # what is stored does not need its reference


def test_copy_takes_a_remote_target_whole(ws, s3, make_model, uploaded) -> None:
    done = register(ws, "chat", target=uploaded(make_model("t")), reference=False)
    assert all(ws.blobs.store.has(f.sha256) for f in done.pair.target.files)
    assert ws.registry.references(f.sha256 for f in done.pair.target.files) == {}
    assert list(ws.work_dir.glob("pairs/source-*")) == []


def test_a_draft_is_always_copied(ws, s3, make_model, uploaded) -> None:
    target, draft = uploaded(make_model("t")), uploaded(make_model("d", seed=1))
    done = register(ws, "chat", target=target, draft=draft)
    assert all(ws.blobs.store.has(f.sha256) for f in done.pair.draft.files)


def test_the_hash_may_come_from_the_object_itself(ws, s3, make_model, uploaded) -> None:
    folder = make_model("t")
    url, data = uploaded(folder), (folder / WEIGHTS).read_bytes()
    checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
    put = {"Bucket": s3.bucket, "Key": f"t/{WEIGHTS}", "Body": data}
    s3.call_s3("put_object", ChecksumAlgorithm="SHA256", ChecksumSHA256=checksum, **put)
    done = register(ws, "chat", target=url)
    assert the_reference(ws, done.pair).hashed_by == "ChecksumSHA256 of S3"
    assert the_reference(ws, done.pair).digest == sha256_digest(data)


def test_the_hash_may_come_from_a_checksums_file(ws, s3, make_model, uploaded) -> None:
    folder = make_model("t")
    done = register(ws, "chat", target=uploaded(folder), checksums=checksums(folder))
    assert the_reference(ws, done.pair).hashed_by == CHECKSUMS_FILE
    with materialise(ws, done.pair) as files:
        assert (files.target_dir / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()


def test_a_false_checksum_is_found_when_the_file_is_fetched(ws, s3, make_model, uploaded) -> None:
    folder = make_model("t")
    sums = checksums(folder, model="0" * 64)
    done = register(ws, "chat", target=uploaded(folder), checksums=sums)
    with (
        pytest.raises(IntegrityError, match=f"known from: {CHECKSUMS_FILE}"),
        materialise(ws, done.pair),
    ):
        pass
    assert list(ws.cache.list_blobs()) == []


def test_checksums_also_bind_what_is_copied(ws, make_model, tmp_path) -> None:
    folder = make_model("t")
    with pytest.raises(IntegrityError, match="promised"):
        register(ws, "chat", target=str(folder), checksums=checksums(folder, config="0" * 64))
    other = tmp_path / "other"
    other.write_text(f"{'0' * 64}  elsewhere\n")
    with pytest.raises(InvalidInput, match="names no file"):
        register(ws, "chat", target=str(folder), checksums=other)
    other.write_text("md5  config.json\n")
    with pytest.raises(InvalidInput, match="line 1"):
        register(ws, "chat", target=str(folder), checksums=other)
    assert ws.registry.versions("chat") == []


def test_a_stated_hash_does_not_displace_a_good_place(ws, s3, make_model, uploaded) -> None:
    folder, other = make_model("t"), make_model("u", seed=1)
    done = register(ws, "chat", target=uploaded(folder))
    stolen = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    register(ws, "chat", target=uploaded(other), checksums=checksums(other, model=stolen))
    assert the_reference(ws, done.pair).uri.endswith(f"/t/{WEIGHTS}")


def overwrite(s3, ws) -> str:
    s3.pipe_file(f"{s3.bucket}/t/{WEIGHTS}", b"x" * s3.size(f"{s3.bucket}/t/{WEIGHTS}"))
    return "changed"


def truncate(s3, ws) -> str:
    s3.pipe_file(f"{s3.bucket}/t/{WEIGHTS}", b"x")
    return "has 1 bytes"


def remove(s3, ws) -> str:
    s3.rm(f"{s3.bucket}/t/{WEIGHTS}")
    return "is gone"


@pytest.mark.parametrize("harm", [overwrite, truncate, remove])
def test_a_changed_or_vanished_reference_is_an_integrity_failure(
    ws, s3, make_model, uploaded, harm
) -> None:
    done = register(ws, "chat", target=uploaded(make_model("t")))
    assert verify_pair(ws, done.pair).problem == ""
    said = harm(s3, ws)
    (line,) = presence(ws, done.pair)
    assert said in line and f"s3://{s3.bucket}/t/{WEIGHTS}" in line
    with pytest.raises(IntegrityError, match=said):
        check_pair_present(ws, done.pair, None)
    assert said in ws.registry.verification(done.pair.digest).problem  # status shows it
    assert said in verify_pair(ws, done.pair).problem
    with pytest.raises(IntegrityError, match=said), materialise(ws, done.pair):
        pass


def test_an_unreachable_reference_warns_and_refuses(
    ws, s3, make_model, uploaded, monkeypatch
) -> None:
    done = register(ws, "chat", target=uploaded(make_model("t")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    type(s3).clear_instance_cache()
    (warning,) = check_pair_present(ws, done.pair, None)
    assert "cannot be reached" in warning
    with pytest.raises(Unavailable):
        check_pair_present(ws, done.pair, None, reachable=True)
    assert ws.registry.verification(done.pair.digest).problem == ""


def test_a_moved_file_is_followed_and_makes_no_new_pair(ws, s3, make_model, uploaded) -> None:
    folder = make_model("t")
    done = register(ws, "chat", target=uploaded(folder))
    s3.rm(f"{s3.bucket}/t", recursive=True)
    s3.put(f"{folder}/", f"{s3.bucket}/moved/", recursive=True)
    assert len(presence(ws, done.pair)) == 1
    again = register(ws, "chat", target=f"s3://{s3.bucket}/moved")
    assert (again.created, again.pair) == (False, done.pair)
    assert presence(ws, done.pair) == ()
    assert the_reference(ws, done.pair).uri == f"s3://{s3.bucket}/moved/{WEIGHTS}"


def test_a_versioned_bucket_names_the_version(ws, s3, make_model, uploaded) -> None:
    s3.call_s3(
        "put_bucket_versioning",
        Bucket=s3.bucket,
        VersioningConfiguration={"Status": "Enabled"},
    )
    folder = make_model("t")
    done = register(ws, "chat", target=uploaded(folder))
    before = the_reference(ws, done.pair)
    assert before.version_id != s3.info(f"{s3.bucket}/t/{WEIGHTS}")["ETag"].strip('"')
    s3.put_file(
        str(folder / WEIGHTS), f"{s3.bucket}/t/{WEIGHTS}"
    )  # the same bytes, another version
    (line,) = presence(ws, done.pair)
    assert before.version_id in line


def test_a_local_folder_can_be_referenced(ws, make_model) -> None:
    folder = make_model("t")
    done = register(ws, "chat", target=str(folder), reference=True)
    found = the_reference(ws, done.pair)
    assert found.uri == (folder / WEIGHTS).as_uri()
    assert not ws.blobs.store.has(found.digest)
    assert verify_pair(ws, done.pair).problem == ""
    with materialise(ws, done.pair) as files:
        assert sha256_digest((files.target_dir / WEIGHTS).read_bytes()) == found.digest
    kept = (folder / WEIGHTS).stat()
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    os.utime(folder / WEIGHTS, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # as if nothing happened
    (line,) = presence(ws, done.pair)
    assert "changed" in line


def test_pickled_weights_cannot_stay_where_they_are(ws, s3, make_model, uploaded) -> None:
    folder = make_model("t")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(Refused, match="only safetensors can stay"):
        register(ws, "chat", target=uploaded(folder), allow_pickle=True)


def test_an_empty_prefix_is_not_found(ws, s3) -> None:
    with pytest.raises(NotFound, match="no files under"):
        register(ws, "chat", target=f"s3://{s3.bucket}/nothing")


def test_a_header_that_lies_is_refused_without_reading_the_file(
    ws, s3, make_model, uploaded
) -> None:
    folder = make_model("t")
    (folder / WEIGHTS).write_bytes((1 << 40).to_bytes(8, "little") + b"{}" + b"\0" * 100)
    with pytest.raises(InvalidInput, match="announces a header"):
        register(ws, "chat", target=uploaded(folder))


def test_raw_sql_cannot_lose_a_reference(ws, make_model) -> None:
    done = register(ws, "chat", target=str(make_model("t")), reference=True)
    digest = the_reference(ws, done.pair).digest
    engine = create_engine(ws.database_url)
    columns = "digest, uri, size, version_id, hashed_by, recorded_at"
    for statement in (
        "DELETE FROM reference",
        "UPDATE reference SET digest = 'x'",
        "UPDATE reference SET size = 1",
        f"INSERT OR REPLACE INTO reference ({columns}) VALUES ('{digest}', 'x', 1, '', '', '')",
    ):
        with pytest.raises(SqlIntegrityError), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()
    assert presence(ws, done.pair) == ()


def test_a_target_of_140_gb_is_registered_without_moving_it(ws, tmp_path, monkeypatch) -> None:
    import s3fs

    target = tmp_path / "buckets" / "models" / "big"
    sums = write_sparse_target(target, 140_000_000_000, n_shards=4)
    head = write_head(tmp_path / "head", mib=4)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "stand-in")
    with RangeServer(tmp_path / "buckets") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        s3fs.S3FileSystem.clear_instance_cache()
        url = "s3://models/big"
        done = register(ws, "chat", target=url, draft=str(head), checksums=sums)
        n_sent = server.sent_bytes
        check(ws, done.pair, target)
    s3fs.S3FileSystem.clear_instance_cache()
    assert n_sent < 2_000_000
    assert sum(f.size for f in done.pair.target.files) > 139_000_000_000


COMMIT = "c" * 40


class _Hub(BaseHTTPRequestHandler):
    """What the hub's client asks for one model whose weights are kept by their sha256."""

    protocol_version = "HTTP/1.1"
    folder: Path
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _lfs(self, path: Path) -> dict[str, object]:
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        return {"sha256": sha256, "oid": sha256, "size": len(data), "pointerSize": 134}

    def _entry(self, path: Path) -> dict[str, object]:
        lfs = {"lfs": self._lfs(path)} if path.suffix == ".safetensors" else {}
        return {"size": path.stat().st_size, "oid": "b" * 40, "blobId": "b" * 40, **lfs}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        files = [f for f in sorted(self.folder.iterdir()) if f.name in body]
        found = [{"type": "file", "path": f.name, **self._entry(f)} for f in files]
        self._reply(json.dumps(found).encode(), Content_Type="application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/name/tree"):
            found = [
                {"type": "file", "path": f.name, **self._entry(f)} for f in self.folder.iterdir()
            ]
            return self._reply(json.dumps(found).encode(), Content_Type="application/json")
        if path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": f.name, **self._entry(f)} for f in self.folder.iterdir()]
            info = {"id": "org/name", "sha": COMMIT, "siblings": siblings}
            return self._reply(json.dumps(info).encode(), Content_Type="application/json")
        file = self.folder / path.rpartition("/")[2]
        if not file.is_file():
            return self._reply(b"", 404, X_Error_Code="EntryNotFound")
        data = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        ranged = self.headers.get("Range")
        if ranged:
            begin, _, end = ranged.removeprefix("bytes=").partition("-")
            part = data[int(begin) : int(end) + 1 if end else None]
            headers["Content-Range"] = f"bytes {begin}-{int(begin) + len(part) - 1}/{len(data)}"
            return self._reply(part, 206, **headers)
        return self._reply(data, **headers)


def test_a_model_of_the_hub_is_registered_without_its_weights(ws, make_model, tmp_path) -> None:
    """A process of its own, because the client reads its settings when it is imported."""
    asked: list[str] = []
    handler = type("Handler", (_Hub,), {"folder": make_model("m"), "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    code = """
        import sys
        from pairgate.app.register import materialise, presence, register, verify_pair
        from pairgate.app.workspace import Workspace
        ws = Workspace.open(home=sys.argv[1])
        pair = register(ws, "chat", target="hf://org/name@main").pair
        assert presence(ws, pair) == () and verify_pair(ws, pair).problem == ""
        print("registered", flush=True)
        sys.stdin.readline()
        with materialise(ws, pair) as files:
            print((files.target_dir / "model.safetensors").stat().st_size)
    """
    environ = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-c", textwrap.dedent(code), str(ws.home)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ, text=True) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == "registered\n"
        read = [line for line in asked if WEIGHTS in line and line.startswith("GET")]
        assert read and all("bytes=" in line for line in read), read
        out, _ = child.communicate("\n")
    server.shutdown()
    server.server_close()
    (version,) = ws.registry.versions("chat")
    pair = ws.registry.pair(version.pair_digest)
    found = the_reference(ws, pair)
    assert found.uri == f"hf://org/name@{COMMIT}/{WEIGHTS}"
    assert (found.version_id, found.hashed_by) == (COMMIT, "LFS sha256 of Hugging Face")
    assert int(out) == found.size


def test_gc_drops_fetched_copies_that_nobody_used_lately(ws, s3, make_model, uploaded) -> None:
    from pairgate.app.gc import collect

    done = register(ws, "chat", target=uploaded(make_model("t")))
    digest = the_reference(ws, done.pair).digest
    with materialise(ws, done.pair):
        os.utime(ws.cache.path(digest), (1, 1))
        collect(ws)
        assert ws.cache.has(digest)  # in use
    with materialise(ws, done.pair):
        pass  # used just now
    collect(ws)
    assert ws.cache.has(digest)
    os.utime(ws.cache.path(digest), (1, 1))
    s3.mv(f"{s3.bucket}/t/{WEIGHTS}", f"{s3.bucket}/gone")
    collect(ws)  # what others deleted does not stop it
    assert not ws.cache.has(digest)
    s3.mv(f"{s3.bucket}/gone", f"{s3.bucket}/t/{WEIGHTS}")
    with materialise(ws, done.pair) as files:
        assert (files.target_dir / WEIGHTS).is_file()
