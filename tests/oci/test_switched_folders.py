"""`pull --to DIR`: one version at every moment, and no work when it is current."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pairgate.app.register import register
from pairgate.app.transfer import pull
from pairgate.domain.pair import VersionRef
from pairgate.errors import IntegrityError, InvalidInput, Unavailable

V1, V2, V3 = (VersionRef.parse(f"chat@{n}") for n in (1, 2, 3))


@pytest.fixture
def three(ws, make_model):
    """`chat@1` to `chat@3`: three targets."""
    names = ("a", "b", "c")
    return [
        register(ws, "chat", target=str(make_model(name, seed=seed))).pair
        for seed, name in enumerate(names)
    ]


def held(to: Path) -> str:
    """The digest of the pair that a reader finds who opens the folder once and hashes its files."""
    folder = os.open(to, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with open(os.open("pair.json", os.O_RDONLY, dir_fd=folder), "rb") as file:
            config = file.read()
        for entry in json.loads(config)["target"]["files"]:
            path = f"target/{entry['path']}"
            with open(os.open(path, os.O_RDONLY, dir_fd=folder), "rb") as file:
                assert "sha256:" + hashlib.sha256(file.read()).hexdigest() == entry["sha256"]
    finally:
        os.close(folder)
    return "sha256:" + hashlib.sha256(config).hexdigest()


def config_digest(pair) -> str:
    return "sha256:" + hashlib.sha256(pair.config_blob()).hexdigest()


def test_a_second_pull_replaces_the_first_and_keeps_it_for_its_readers(ws, three, tmp_path) -> None:
    to, versions = tmp_path / "served", tmp_path / "served.versions"
    for ref, pair in zip((V1, V2, V3), three, strict=True):
        before = to.resolve() if to.exists() else None
        assert pull(ws, ref, to).changed
        assert held(to) == config_digest(pair)
        assert before is None or (before / "target" / "config.json").is_file()
        inode = (to / "target" / "model.safetensors").stat().st_ino
        assert not pull(ws, ref, to).changed
        assert (to / "target" / "model.safetensors").stat().st_ino == inode
    assert sorted(p.name for p in versions.iterdir()) == sorted(p.digest[7:] for p in three[1:])
    assert to.is_symlink()
    assert (to / "target" / "config.json").stat().st_mode & 0o222 == 0
    assert sorted(p.name for p in to.iterdir()) == ["pair.json", "target"]


def test_a_pull_that_is_current_reads_no_weights(ws, three, tmp_path, monkeypatch) -> None:
    from pairgate.app import switch

    pull(ws, V1, tmp_path / "served")
    monkeypatch.setattr(switch, "hash_file", None)
    monkeypatch.setattr(type(ws.blobs), "copy_out", None)
    assert not pull(ws, V1, tmp_path / "served").changed


def test_going_back_writes_nothing_but_hashes(ws, three, tmp_path, monkeypatch) -> None:
    to = tmp_path / "served"
    pull(ws, V1, to)
    first = (to / "target" / "model.safetensors").stat().st_ino
    pull(ws, V2, to)
    monkeypatch.setattr(type(ws.blobs), "copy_out", None)
    assert pull(ws, V1, to).changed
    assert (to / "target" / "model.safetensors").stat().st_ino == first


def test_what_was_changed_in_the_folder_is_made_again(ws, three, tmp_path) -> None:
    to = tmp_path / "served"
    pull(ws, V1, to)
    weights = (to / "target" / "model.safetensors").resolve()
    pull(ws, V2, to)
    weights.chmod(0o644)
    weights.write_bytes(b"\0" * weights.stat().st_size)
    pull(ws, V1, to)
    assert held(to) == config_digest(three[0])
    (to / "target" / "config.json").unlink()  # in use: it is replaced by one beside it
    assert pull(ws, V1, to).changed
    assert held(to) == config_digest(three[0])
    assert not pull(ws, V1, to).changed


def test_a_reader_never_sees_a_mixture(ws, three, tmp_path) -> None:
    to = tmp_path / "served"
    pull(ws, V1, to)
    known = {config_digest(pair) for pair in three[:2]}
    seen: list[str] = []
    stop = threading.Event()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                seen.append(held(to))
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(40):
        pull(ws, (V2, V1)[turn % 2], to)
    stop.set()
    reader.join()
    assert not failed
    assert set(seen) == known


def test_links_into_the_store(ws, three, tmp_path) -> None:
    to = tmp_path / "served"
    pull(ws, V1, to, link=True)
    weights = to / "target" / "model.safetensors"
    assert weights.is_symlink()
    assert weights.stat().st_mode & 0o222 == 0
    assert held(to) == config_digest(three[0])
    assert not pull(ws, V1, to, link=True).changed
    assert pull(ws, V1, to).changed
    assert not (to / "target" / "model.safetensors").is_symlink()
    blob = ws.blobs.path(three[1].target.files[1].sha256)
    blob.chmod(0o644)
    blob.write_bytes(b"\0" * blob.stat().st_size)
    with pytest.raises(IntegrityError):
        pull(ws, V2, to, link=True)
    assert held(to) == config_digest(three[0])


def test_a_damaged_blob_leaves_the_old_version_and_nothing_else(ws, three, tmp_path) -> None:
    to = tmp_path / "served"
    pull(ws, V1, to)
    blob = ws.blobs.path(three[1].target.files[1].sha256)
    blob.chmod(0o644)
    blob.write_bytes(b"\0" * blob.stat().st_size)
    with pytest.raises(IntegrityError):
        pull(ws, V2, to)
    assert held(to) == config_digest(three[0])
    assert [p.name for p in (tmp_path / "served.versions").iterdir()] == [three[0].digest[7:]]


@pytest.mark.parametrize("stop_at", ["copy_to", "_is_right", "sync_folder", "_point", "_sweep"])
def test_killed_anywhere_is_the_old_or_the_new_version(ws, three, tmp_path, stop_at: str) -> None:
    to = tmp_path / "served"
    pull(ws, V1, to)
    script = f"""
        import os, signal
        from pathlib import Path
        from pairgate.app import switch, transfer
        from pairgate.app.workspace import Workspace
        from pairgate.domain.pair import VersionRef
        from pairgate.store import blobs

        real = getattr(blobs if {stop_at!r} == "copy_to" else switch, {stop_at!r})

        def die(*args, **kwargs):
            if {stop_at!r} != "_point":
                real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(blobs if {stop_at!r} == "copy_to" else switch, {stop_at!r}, die)
        ws = Workspace.open(home={str(ws.home)!r})
        transfer.pull(ws, VersionRef.parse("chat@2"), Path({str(to)!r}))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert held(to) == config_digest(three[1 if stop_at == "_sweep" else 0])
    assert pull(ws, V2, to).changed is (stop_at != "_sweep")
    assert held(to) == config_digest(three[1])
    left = {p.name for p in (tmp_path / "served.versions").iterdir()}
    assert left == {p.digest[7:] for p in three[:2]}


def test_two_pulls_at_once(ws, three, tmp_path) -> None:
    to = tmp_path / "served"
    commands = [
        [sys.executable, "-m", "pairgate", "--home", str(ws.home), "pull", ref, "--to", str(to)]
        for ref in ("chat@1", "chat@2", "chat@1")
    ]
    running = [subprocess.Popen(c, stderr=subprocess.PIPE) for c in commands]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    assert held(to) in {config_digest(pair) for pair in three[:2]}


def test_folders_that_are_not_ours(ws, three, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("mine")
    for name in ("mine", "file"):
        with pytest.raises(InvalidInput, match="pull did not make it"):
            pull(ws, V1, tmp_path / name)
    with pytest.raises(InvalidInput, match="is a link to mine, which pull did not make"):
        pull(ws, V1, tmp_path / "link")
    with pytest.raises(Unavailable, match="cannot be written"):
        pull(ws, V1, tmp_path / "file" / "below")
    with pytest.raises(InvalidInput, match="/ cannot be replaced"):
        pull(ws, V1, Path("/"))
    assert (tmp_path / "mine" / "notes.txt").read_text() == "x"
    assert not list(tmp_path.glob("*.versions"))
    (tmp_path / "empty").mkdir()
    assert pull(ws, V1, tmp_path / "empty").changed
    assert held(tmp_path / "empty") == config_digest(three[0])


def test_a_copied_folder_is_whole(ws, three, tmp_path) -> None:
    """A link and its versions move together: the link is relative."""
    pull(ws, V1, tmp_path / "served")
    (tmp_path / "moved").mkdir()
    for name in ("served", "served.versions"):
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    assert held(tmp_path / "moved" / "served") == config_digest(three[0])


def test_the_command(ws, three, run, tmp_path) -> None:
    to = tmp_path / "served"
    assert run("pull", "chat@1", "--to", to).stdout == f"chat@1  {three[0].digest}  {to}\n"
    again = run("pull", "chat@1", "--to", to)
    assert "holds it already" in again.stderr
    as_json = json.loads(run("pull", "chat@2", "--to", to, "--json").stdout)
    assert as_json["changed"] is True
    assert as_json["version"] == "chat@2"
    assert json.loads(run("pull", "chat@2", "--to", to, "--json").stdout)["changed"] is False
    assert run("pull", f"oci-layout:{ws.home / 'store'}", "--to", to, "--link").exit_code == 2


def test_no_links_to_what_is_only_cached(ws, make_model, tmp_path) -> None:
    register(ws, "chat", target=str(make_model("referenced")), reference=True)
    with pytest.raises(InvalidInput, match="is not kept in"):
        pull(ws, V1, tmp_path / "served", link=True)
    assert not list(tmp_path.glob("served*"))
    assert pull(ws, V1, tmp_path / "served").changed
