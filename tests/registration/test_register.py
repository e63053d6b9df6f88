"""Registration as a whole: identity, READY last, getting files back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from pairgate.app.register import materialise, presence, register, verify_pair
from pairgate.app.transfer import pull
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import Method, VersionRef
from pairgate.domain.release import Actor
from pairgate.errors import IntegrityError, InvalidInput, NotFound, Refused, Unavailable


def test_first_registration_is_version_1_and_again_is_the_same(ws, make_model) -> None:
    target, draft = make_model("target"), make_model("draft", seed=1)
    first = register(ws, "chat", target=str(target), draft=str(draft), k=3)
    again = register(ws, "chat", target=str(target), draft=str(draft), k=3)
    assert (first.created, again.created) == (True, False)
    assert first.version == again.version
    assert first.version.number == 1
    assert ws.registry.pair(first.pair.digest) == first.pair
    assert first.pair.decoding.method is Method.DRAFT_MODEL
    assert first.pair.target.architecture.n_parameters == 320 * 16 + 16
    assert first.pair.target.tokenizer_digest == first.pair.draft.tokenizer_digest


def test_identity_is_content_not_place(ws, make_model, tmp_path) -> None:
    target = make_model("target")
    first = register(ws, "chat", target=str(target))
    moved = tmp_path / "elsewhere"
    shutil.copytree(target, moved)
    for file in moved.iterdir():
        os.utime(file, (1, 1))
    assert not register(ws, "chat", target=str(moved)).created
    (moved / "LICENSE").write_text("x")
    second = register(ws, "chat", target=str(moved))
    (moved / "LICENSE").rename(moved / "LICENSE.txt")
    third = register(ws, "chat", target=str(moved))
    assert len({r.pair.digest for r in (first, second, third)}) == 3
    assert third.version.number == 3


def test_the_decoding_config_is_part_of_the_identity(ws, make_model) -> None:
    target, draft = str(make_model("target")), str(make_model("draft", seed=1))
    digests = {
        register(ws, "chat", target=target, draft=draft, k=k, draft_sampling=sampling).pair.digest
        for k in (2, 3)
        for sampling in ("sampled", "greedy")
    }
    assert len(digests) == 4


def test_the_store_is_an_oci_layout_that_other_tools_can_read(ws, make_model) -> None:
    done = register(ws, "chat", target=str(make_model("t")), draft=str(make_model("d", seed=1)))
    root = ws.home / "store"
    index = json.loads((root / "index.json").read_bytes())
    (entry,) = index["manifests"]

    def blob(descriptor: dict) -> bytes:
        data = (root / "blobs" / "sha256" / descriptor["digest"][7:]).read_bytes()
        assert len(data) == descriptor["size"]
        assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"]
        return data

    manifest = json.loads(blob(entry))
    assert entry["digest"] == done.pair.digest
    assert entry["mediaType"] == manifest["mediaType"]
    assert json.loads(blob(manifest["config"]))["decoding"]["method"] == "draft_model"
    titles = {
        layer["annotations"]["org.opencontainers.image.title"]: len(blob(layer))
        for layer in manifest["layers"]
    }
    assert {"target/model.safetensors", "draft/config.json"} <= titles.keys()


@pytest.mark.skopeo
def test_skopeo_copies_a_pair_with_its_digest(ws, make_model, tmp_path) -> None:
    from pairgate.store.blobs import ref_name

    done = register(ws, "chat", target=str(make_model("t")))
    source = f"oci:{ws.home / 'store'}:{ref_name(done.pair.digest)}"
    command = ["skopeo", "copy", "--preserve-digests", source, f"oci:{tmp_path / 'copy'}:x"]
    subprocess.run(command, check=True, capture_output=True)
    index = json.loads((tmp_path / "copy" / "index.json").read_bytes())
    assert [m["digest"] for m in index["manifests"]] == [done.pair.digest]


def test_a_new_draft_does_not_copy_the_target_again(ws, make_model) -> None:
    target = str(make_model("target"))
    first = register(ws, "chat", target=target, draft=str(make_model("d1", seed=1)))
    inodes = {p.name: p.stat().st_ino for p in (ws.home / "store/blobs/sha256").iterdir()}
    second = register(ws, "chat", target=target, draft=str(make_model("d2", seed=2)))
    after = {p.name: p.stat().st_ino for p in (ws.home / "store/blobs/sha256").iterdir()}
    assert {name: after[name] for name in inodes} == inodes
    assert len(after) == len(inodes) + 3  # weights, config and manifest
    assert first.pair.target_digest == second.pair.target_digest


def test_what_is_refused_leaves_no_trace(ws, make_model) -> None:
    target = str(make_model("target"))
    other = make_model("other", seed=1)
    spec = json.loads((other / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (other / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(Refused, match=r"target 'a', draft 'b'"):
        register(ws, "chat", target=target, draft=str(other))
    with pytest.raises(NotFound, match="no line 'unknown'"):
        register(ws, "unknown", target=target)
    assert ws.registry.versions("chat") == []
    assert not (ws.home / "store" / "blobs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": Method.DRAFT_MODEL}, "needs a draft"),
        ({"method": Method.EAGLE3}, "needs a draft"),
        ({"method": Method.NGRAM, "k": 0}, "must lie in 1 to 64"),
        ({"method": Method.NONE, "k": 3}, "proposes nothing"),
        ({"speculative_config": "{"}, "not valid JSON"),
        ({"speculative_config": '{"method": "medusa"}'}, "medusa"),
        (
            {
                "method": Method.NGRAM,
                "k": 3,
                "speculative_config": '{"method": "ngram", "num_speculative_tokens": 5}',
            },
            "is 3 by option and 5",
        ),
    ],
)
def test_options_that_contradict_each_other(ws, make_model, options, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        register(ws, "chat", target=str(make_model("t")), **options)


def test_methods_without_draft_files(ws, make_model) -> None:
    target = str(make_model("t"))
    none = register(ws, "chat", target=target)
    text = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
    ngram = register(ws, "chat", target=target, speculative_config=text)
    assert (none.pair.decoding.method, none.warnings) == (Method.NONE, ())
    assert ngram.pair.decoding.num_speculative_tokens == 5
    assert ngram.pair.decoding.speculative_config == text
    assert "needs a serving engine" in ngram.warnings[0]


def test_where_it_came_from_is_kept_beside_the_digest(ws, make_model) -> None:
    target = make_model("t")
    done = register(ws, "chat", target=str(target), actor=Actor(name="ci", source="ci-oidc"))
    provenance = json.loads(ws.registry.provenance(done.pair.digest))
    assert provenance["sources"] == {"target": {"spec": str(target), "origin": str(target)}}
    assert provenance["registered_by"] == done.version.created_by == "ci"
    assert str(target).encode() not in done.pair.config_blob() + done.pair.manifest()


@pytest.mark.parametrize("stop_at", ["add_manifest", "missing", "_write_index", "ensure_version"])
def test_killed_anywhere_leaves_no_version_and_again_completes(
    ws, make_model, stop_at: str
) -> None:
    target, draft = make_model("t"), make_model("d", seed=1)
    script = f"""
        import os, signal
        from pairgate.app import register as app
        from pairgate.app.workspace import Workspace
        from pairgate.store import blobs, sqlpairs

        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)

        owner = sqlpairs if {stop_at!r} == "ensure_version" else blobs.LocalBlobStore
        if {stop_at!r} == "_write_index":
            blobs.LocalBlobStore(Workspace.open(home={str(ws.home)!r}).home / "store")._prepare()
        setattr(owner, {stop_at!r}, die)
        ws = Workspace.open(home={str(ws.home)!r})
        app.register(ws, "chat", target={str(target)!r}, draft={str(draft)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert ws.registry.versions("chat") == []
    again = register(ws, "chat", target=str(target), draft=str(draft))
    assert again.created
    assert again.version.number == 1
    assert verify_pair(ws, again.pair).problem == ""


def test_two_processes_that_register_the_same_content_get_one_version(ws, make_model) -> None:
    target, draft = make_model("t"), make_model("d", seed=1)
    command = [
        *(sys.executable, "-m", "pairgate", "--home", str(ws.home), "register", "chat"),
        *("--target", str(target), "--draft", str(draft), "--json"),
    ]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(subprocess.run, command, capture_output=True) for _ in range(2)]
    answers = [run.result() for run in runs]
    assert [a.returncode for a in answers] == [0, 0], answers[0].stderr + answers[1].stderr
    documents = [json.loads(a.stdout) for a in answers]
    assert {d["version"] for d in documents} == {"chat@1"}
    assert sorted(d["created"] for d in documents) == [False, True]
    assert len(ws.registry.versions("chat")) == 1


@pytest.mark.parametrize("path", ["model.safetensors", "tokenizer.json"])
def test_a_source_that_breaks_its_promise_is_an_integrity_error(
    ws, make_model, monkeypatch, path: str
) -> None:
    from dataclasses import replace

    from pairgate import sources

    real = sources.resolve

    def promised(spec, allowed, **_):
        source = real(spec, allowed)
        wrong = "sha256:" + "0" * 64
        files = tuple(replace(f, sha256=wrong if f.path == path else None) for f in source.files)
        return replace(source, files=files)

    monkeypatch.setattr(sources, "resolve", promised)
    with pytest.raises(IntegrityError, match=f"{path} of the target is .* promised"):
        register(ws, "chat", target=str(make_model("t")))
    assert ws.registry.versions("chat") == []


def test_materialised_files_are_links_into_the_store_and_go_away(ws, make_model) -> None:
    target = make_model("t")
    done = register(ws, "chat", target=str(target), draft=str(make_model("d", seed=1)))
    with materialise(ws, done.pair) as pair:
        assert pair.draft_dir is not None
        weights = pair.target_dir / "model.safetensors"
        assert weights.is_symlink()
        assert weights.read_bytes() == (target / "model.safetensors").read_bytes()
        assert pair.target_dir.stat().st_mode & 0o222 == 0
        folder = pair.target_dir.parent
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="engine"), materialise(ws, done.pair):
        raise RuntimeError("engine")
    assert list(folder.parent.iterdir()) == []


def test_transformers_loads_a_materialised_tokenizer(ws, make_model) -> None:
    from transformers import AutoConfig, AutoTokenizer

    done = register(ws, "chat", target=str(make_model("t")))
    with materialise(ws, done.pair) as pair:
        tokenizer = AutoTokenizer.from_pretrained(pair.target_dir)
        assert tokenizer.decode(tokenizer("the draft")["input_ids"]) == "the draft"
        assert AutoConfig.from_pretrained(pair.target_dir).hidden_size == 16


def damage(ws: Workspace, digest: str, data: bytes | None) -> None:
    blob = ws.blobs.path(digest)
    blob.chmod(0o644)
    if data is None:
        blob.unlink()
    else:
        blob.write_bytes(data)


def test_verify_finds_damage_and_registering_again_repairs_it(ws, make_model) -> None:
    target = make_model("t")
    done = register(ws, "chat", target=str(target))
    assert ws.registry.verification(done.pair.digest).problem == ""
    entry = next(f for f in done.pair.target.files if f.path == "model.safetensors")
    damage(ws, entry.sha256, b"\0" * entry.size)
    assert presence(ws, done.pair) == ()  # the size is right: only hashing sees it
    found = verify_pair(ws, done.pair)
    assert entry.sha256 in found.problem
    assert ws.registry.verification(done.pair.digest) == found
    again = register(ws, "chat", target=str(target))
    assert not again.created
    assert ws.registry.verification(done.pair.digest).problem == ""
    assert verify_pair(ws, done.pair).problem == ""


def test_a_missing_blob_is_seen_by_presence_materialise_and_pull(ws, make_model, tmp_path) -> None:
    done = register(ws, "chat", target=str(make_model("t")))
    digest = done.pair.target.files[0].sha256
    damage(ws, digest, None)
    assert presence(ws, done.pair) == (digest,)
    with pytest.raises(IntegrityError, match="missing"), materialise(ws, done.pair):
        pass
    with pytest.raises(IntegrityError, match="missing"):
        pull(ws, VersionRef.parse("chat@1"), tmp_path / "out")


def test_pull_copies_into_an_empty_folder_and_checks_what_it_writes(
    ws, make_model, tmp_path
) -> None:
    target = make_model("t")
    done = register(ws, "chat", target=str(target), draft=str(make_model("d", seed=1)))
    out = tmp_path / "out"
    out.mkdir()
    assert pull(ws, VersionRef.parse("chat@1"), out).version == done.version
    copied = {p.name for p in (out / "target").iterdir()}
    assert copied == {p.name for p in target.iterdir()}
    assert (out / "draft" / "model.safetensors").stat().st_nlink == 1
    assert (out / "pair.json").read_bytes() == done.pair.config_blob()
    entry = next(f for f in done.pair.target.files if f.path == "model.safetensors")
    damage(ws, entry.sha256, b"\0" * entry.size)
    with pytest.raises(IntegrityError):
        pull(ws, VersionRef.parse("chat@1"), tmp_path / "second")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("home", "models", "out", "out.versions")
    ]


def test_progress_counts_every_byte_of_the_weights_once(ws, make_model) -> None:
    target = make_model("t")
    size = (target / "model.safetensors").stat().st_size
    for _ in range(2):
        seen: list[tuple[str, int, int, str]] = []

        def progress(*event: object, seen: list = seen) -> None:
            seen.append(event)

        register(ws, "chat", target=str(target), progress=progress)
        assert seen[-1] == ("storing", size, size, "")


def test_pull_to_a_place_that_cannot_be_written(ws, make_model, tmp_path) -> None:
    register(ws, "chat", target=str(make_model("t")))
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unavailable, match="cannot be written"):
        pull(ws, VersionRef.parse("chat@1"), tmp_path / "file" / "out")


def test_a_model_may_be_its_own_draft(ws, make_model) -> None:
    target = str(make_model("t"))
    done = register(ws, "chat", target=target, draft=target)
    assert done.pair.draft is not None
    assert done.pair.draft.files == done.pair.target.files
    assert done.warnings == ()
    assert verify_pair(ws, done.pair).problem == ""
