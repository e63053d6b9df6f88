"""Which files are taken from a source, and which sources are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from pairgate.errors import InvalidInput, NotFound, Refused, Unavailable
from pairgate.sources import NOTHING, Allowed, resolve


def paths(folder: Path, allowed: Allowed = NOTHING) -> set[str]:
    return {f.path for f in resolve(str(folder), allowed).files}


def test_model_files_are_taken_and_nothing_else(make_model) -> None:
    folder = make_model("m")
    for name in ("README.md", "LICENSE", "notes.txt", ".hidden", "optimizer.pt"):
        (folder / name).write_text("x")
    (folder / "runs").mkdir()
    source = resolve(str(folder))
    assert {f.path for f in source.files} == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "README.md",
        "LICENSE",
    }
    assert source.origin == str(folder)
    assert (source.flags, source.warnings) == ((), ())


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("/nowhere/at/all", NotFound),
        ("s3://bucket/model", InvalidInput),
        ("hf://just-a-name", InvalidInput),
        ("hf://org/name@../../x y", InvalidInput),
    ],
)
def test_sources_that_do_not_exist(spec: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        resolve(spec)


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../outside.json", "tokenizer_config.json/../../outside.json"]
)
def test_links_that_leave_the_source_are_refused(make_model, target: str) -> None:
    folder = make_model("m")
    (folder.parent / "outside.json").write_text("{}")
    (folder / "generation_config.json").symlink_to(target)
    with pytest.raises((Refused, InvalidInput)):
        resolve(str(folder))


def test_links_inside_the_source_are_followed_to_their_bytes(make_model) -> None:
    folder = make_model("m")
    (folder / "generation_config.json").symlink_to("tokenizer_config.json")
    found = {f.path: f.location.name for f in resolve(str(folder)).files}
    assert found["generation_config.json"] == "tokenizer_config.json"


def test_a_hugging_face_cache_entry_links_to_its_own_blobs_only(make_model, tmp_path) -> None:
    model = make_model("m")
    entry = tmp_path / "hub" / "models--org--name"
    snapshot = entry / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (entry / "blobs").mkdir()
    for file in model.iterdir():
        (entry / "blobs" / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert paths(snapshot) == {f.name for f in model.iterdir()}
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../models--other--x/blobs/config.json")
    other = tmp_path / "hub" / "models--other--x" / "blobs"
    other.mkdir(parents=True)
    (other / "config.json").write_bytes((model / "config.json").read_bytes())
    with pytest.raises(Refused, match="leaves the source"):
        resolve(str(snapshot))


def test_hard_links_are_taken_only_when_all_names_are_inside(make_model, tmp_path) -> None:
    folder = make_model("m")
    os.link(folder / "tokenizer_config.json", folder / "special_tokens_map.json")
    assert "special_tokens_map.json" in paths(folder)
    os.link(folder / "config.json", tmp_path / "elsewhere")
    with pytest.raises(Refused, match="hard link"):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md"])
def test_pipes_and_folders_in_place_of_files_are_refused(make_model, name: str) -> None:
    for number, make in enumerate((os.mkfifo, os.mkdir)):
        folder = make_model(f"m{number}")
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        with pytest.raises(Refused, match="not a regular file"):
            resolve(str(folder))


@pytest.mark.parametrize("name", ["Config.json", "CONFIG.JSON", "Model.safetensors"])
def test_names_that_collide_when_case_is_folded(make_model, name: str) -> None:
    folder = make_model("m")
    (folder / name).write_text("{}")
    with pytest.raises(Refused, match="case-folding"):
        resolve(str(folder))


def test_names_that_collide_when_unicode_is_normalised(make_model) -> None:
    folder = make_model("m")
    (folder / "LICENSE-\u00e9").write_text("x")
    (folder / "LICENSE-e\u0301").write_text("x")
    with pytest.raises(Refused, match="case-folding"):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["LICENSE\\x", "LICENSE:x", "LICENSE\nx", b"LICENSE\xff"])
def test_names_that_are_not_safe_everywhere(make_model, name: str | bytes) -> None:
    folder = make_model("m")
    Path(os.fsdecode(os.path.join(os.fsencode(folder), os.fsencode(name)))).write_text("x")
    with pytest.raises(InvalidInput):
        resolve(str(folder))


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/x.safetensors", "a\0.safetensors", "missing.safetensors"]
)
def test_an_index_cannot_name_files_elsewhere(make_model, shard: str) -> None:
    folder = make_model("m")
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    index = {"weight_map": {"w": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidInput):
        resolve(str(folder))


def test_an_index_names_the_shards_that_are_taken(make_model) -> None:
    folder = make_model("m")
    (folder / "model.safetensors").rename(folder / "model-1-of-1.safetensors")
    (folder / "consolidated.safetensors").write_bytes(b"the same in another format")
    index = {"weight_map": {"w": "model-1-of-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    taken = paths(folder)
    assert {"model-1-of-1.safetensors", "model.safetensors.index.json"} <= taken
    assert "consolidated.safetensors" not in taken


def test_pickled_weights(make_model) -> None:
    folder = make_model("m")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    source = resolve(str(folder))
    assert "pytorch_model.bin" not in {f.path for f in source.files}
    assert "pytorch_model.bin" in source.warnings[0]
    (folder / "model.safetensors").unlink()
    with pytest.raises(Refused, match="pickled"):
        resolve(str(folder))
    allowed = resolve(str(folder), Allowed(pickle=True))
    assert allowed.flags == ("pickle",)
    assert "pytorch_model.bin" in {f.path for f in allowed.files}


def test_gguf_and_no_weights(make_model) -> None:
    folder = make_model("m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="no weights"):
        resolve(str(folder))
    (folder / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(Refused, match="GGUF"):
        resolve(str(folder))


def test_custom_code_is_refused_or_flagged(make_model) -> None:
    folder = make_model("m", auto_map={"AutoModel": "modeling.Net"})
    with pytest.raises(Refused, match=r"modeling\.Net"):
        resolve(str(folder))
    (folder / "modeling.py").write_text("class Net: ...")
    allowed = resolve(str(folder), Allowed(custom_code=True))
    assert allowed.flags == ("custom-code",)
    assert "modeling.py" in {f.path for f in allowed.files}
    plain = make_model("plain")
    (plain / "convert.py").write_text("")
    with pytest.raises(Refused, match=r"convert\.py"):
        resolve(str(plain))


def test_code_of_another_repository_is_never_part_of_a_version(make_model) -> None:
    folder = make_model("m", auto_map={"AutoModel": "other/repo--modeling.Net"})
    with pytest.raises(Refused, match="another repository"):
        resolve(str(folder), Allowed(custom_code=True))


def test_documents_have_a_size_limit(make_model) -> None:
    folder = make_model("m")
    with (folder / "README.md").open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(Refused, match="only weights"):
        resolve(str(folder))


COMMIT = "c" * 40


@pytest.fixture
def hub(make_model, tmp_path, monkeypatch):
    """The hub's two calls, answered from a local folder laid out like the hub's own cache."""
    model = make_model("m")
    (model / "pytorch_model.bin").write_bytes(b"pickle")
    entry = tmp_path / "hub" / "models--org--name"
    snapshot = entry / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (entry / "blobs").mkdir()
    asked: list[tuple[str, object]] = []

    def model_info(self, name, revision, files_metadata):
        asked.append((name, revision))
        lfs = SimpleNamespace(sha256="1" * 64)
        siblings = [
            SimpleNamespace(
                rfilename=f.name,
                size=f.stat().st_size,
                lfs=lfs if f.suffix == ".safetensors" else None,
            )
            for f in model.iterdir()
        ]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    def snapshot_download(name, revision, allow_patterns):
        asked.append((name, revision))
        for file in model.iterdir():
            link = snapshot / file.name
            if any(Path(file.name).match(p) for p in allow_patterns) and not link.exists():
                (entry / "blobs" / file.name).write_bytes(file.read_bytes())
                link.symlink_to(f"../../blobs/{file.name}")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return SimpleNamespace(asked=asked, snapshot=snapshot)


def test_a_hub_revision_is_resolved_to_a_commit_once(hub) -> None:
    source = resolve("hf://org/name@main")
    assert hub.asked == [("org/name", "main"), ("org/name", COMMIT), ("org/name", COMMIT)]
    assert source.origin == f"hf://org/name@{COMMIT}"
    promised = {f.path: f.sha256 for f in source.files}
    assert promised["model.safetensors"] == "sha256:" + "1" * 64
    assert promised["config.json"] is None
    assert not (hub.snapshot / "pytorch_model.bin").exists()  # never downloaded
    assert "pytorch_model.bin" in source.warnings[0]


def test_without_a_network_the_hub_is_unavailable() -> None:
    with pytest.raises(Unavailable) as caught:  # the tests run with HF_HUB_OFFLINE=1
        resolve("hf://org/name@v1")
    assert "hf://org/name@v1" in caught.value.message
    assert "folder" in (caught.value.hint or "")
