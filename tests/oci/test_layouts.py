"""OCI layouts as sources, what hostile ones hold, and ours as the specification wants it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pairgate.app.fetch import fetch_pair
from pairgate.app.register import register
from pairgate.app.transfer import pull_artifact, register_from
from pairgate.domain.canonical import canonical_json
from pairgate.domain.pair import FileEntry
from pairgate.errors import IntegrityError, InvalidInput, NotFound, PairgateError, Refused
from pairgate.transport.layout import LayoutFolder
from pairgate.transport.reference import (
    LayoutReference,
    OciReference,
    is_reference,
    parse_oci,
    parse_reference,
)


def layout_of(folder: Path, manifest: bytes, blobs: dict[str, bytes]) -> LayoutReference:
    """A layout as somebody might write it by hand."""
    files = folder / "blobs" / "sha256"
    files.mkdir(parents=True)
    for data in (manifest, *blobs.values()):
        (files / hashlib.sha256(data).hexdigest()).write_bytes(data)
    digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest,
        "size": len(manifest),
    }
    index = {"schemaVersion": 2, "manifests": [entry]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return LayoutReference(folder=folder)


@pytest.fixture
def contents(ws, done) -> dict[str, bytes]:
    """The files of `chat@1` by path."""
    return {f.path: ws.blobs.read(f.sha256) for f in done.pair.target.files}


def test_another_store_is_a_source(ws, done, make_home, make_model, tmp_path) -> None:
    other = make_home("other")
    store = parse_reference(f"oci-layout:{ws.home / 'store'}")
    assert register_from(other, "chat", store).pair == done.pair
    origin = json.loads(other.registry.provenance(done.pair.digest))["sources"]["target"]["origin"]
    assert origin == f"oci-layout:{ws.home / 'store'}@{done.pair.digest}"
    second = register(ws, "chat", target=str(make_model("second", seed=1)))
    with pytest.raises(InvalidInput, match="holds 2 manifests"):
        register_from(other, "chat", store)
    one = replace(store, digest=second.pair.digest)
    assert register_from(other, "chat", one).version.number == 2
    assert pull_artifact(one, tmp_path / "out").pair == second.pair


def test_folders_that_are_no_layouts(ws, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(InvalidInput, match="is not an OCI image layout"):
            fetch_pair(LayoutFolder(LayoutReference(folder=folder)))
    layout = layout_of(tmp_path / "image", b'{"config": {"digest": "x", "size": 1}}', {})
    with pytest.raises(InvalidInput, match="is not a pair: its artifactType is None"):
        fetch_pair(LayoutFolder(layout))
    with pytest.raises(NotFound, match="has no manifest"):
        fetch_pair(LayoutFolder(replace(layout, digest="sha256:" + "0" * 64)))
    (tmp_path / "image" / "index.json").write_text("[" * 100_000)
    with pytest.raises(InvalidInput, match="is not an OCI image layout"):
        fetch_pair(LayoutFolder(layout))
    (tmp_path / "image" / "index.json").unlink()
    os.mkfifo(tmp_path / "image" / "index.json")  # nobody ever writes to it
    with pytest.raises(InvalidInput, match=r"is not an OCI image layout: .* is not a regular file"):
        fetch_pair(LayoutFolder(layout))


def test_a_blob_that_is_missing_damaged_or_a_pipe(ws, done, make_home, tmp_path, contents) -> None:
    pair, other = done.pair, make_home("other")
    weights = pair.target.files[1].sha256[7:]
    layout = layout_of(tmp_path / "l", pair.manifest(), {**contents, "config": pair.config_blob()})
    blob = layout.folder / "blobs" / "sha256" / weights
    blob.write_bytes(b"\0" * blob.stat().st_size)
    with pytest.raises(IntegrityError, match="came damaged"):
        register_from(other, "chat", layout)
    blob.unlink()
    with pytest.raises(IntegrityError, match="lacks the blob"):
        register_from(other, "chat", layout)
    os.mkfifo(blob)
    with pytest.raises(InvalidInput, match="not a regular file"):
        register_from(other, "chat", layout)
    assert other.registry.versions("chat") == []
    assert not list((other.home / "store" / "staging").iterdir())


def hostile(pair, contents: dict[str, bytes]) -> dict[str, tuple[bytes, bytes]]:
    """name -> (manifest, config): each is consistent in itself, and wrong."""
    document = json.loads(pair.config_blob())
    manifest = json.loads(pair.manifest())

    def with_config(change: Any) -> tuple[bytes, bytes]:
        changed = json.loads(json.dumps(document))
        change(changed)
        config = canonical_json(changed)
        outer = json.loads(json.dumps(manifest))
        outer["config"]["digest"] = "sha256:" + hashlib.sha256(config).hexdigest()
        outer["config"]["size"] = len(config)
        outer["layers"] = [
            layer | {"annotations": {"org.opencontainers.image.title": f"target/{f['path']}"}}
            for layer, f in zip(outer["layers"], changed["target"]["files"], strict=False)
        ]
        return canonical_json(outer), config

    def path(text: str) -> Any:
        return lambda d: d["target"]["files"][0].update(path=text)

    extra = json.loads(json.dumps(manifest))
    extra["layers"].append(extra["layers"][0])
    retitled = json.loads(json.dumps(manifest))
    retitled["layers"][0]["annotations"]["org.opencontainers.image.title"] = "../../etc/passwd"
    bomb = b'{"schema":1,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    spaced = json.dumps(manifest, indent=1).encode()
    return {
        "path that leaves": with_config(path("../../x.json")),
        "absolute path": with_config(path("/etc/passwd")),
        "control characters": with_config(path("a\nb.json")),
        "role that leaves": with_config(
            lambda d: d.update(adapters=[d["target"] | {"role": "../../x"}])
        ),
        "second target": with_config(lambda d: d.update(adapters=[d["target"]])),
        "unknown field": with_config(lambda d: d.update(run="rm -rf /")),
        "unknown method": with_config(lambda d: d["decoding"].update(method="medusa")),
        "another schema": with_config(lambda d: d.update(schema=2)),
        "negative size": with_config(lambda d: d["target"]["files"][0].update(size=-1)),
        "invented architecture": with_config(
            lambda d: d["target"]["architecture"].update(n_parameters=1)
        ),
        "hidden flag": with_config(lambda d: d["target"].update(flags=["custom-code"])),
        "a layer that the config does not name": (canonical_json(extra), pair.config_blob()),
        "another title": (canonical_json(retitled), pair.config_blob()),
        "other white space": (spaced, pair.config_blob()),
        "json bomb": (
            canonical_json(
                manifest
                | {
                    "config": {
                        "digest": "sha256:" + hashlib.sha256(bomb).hexdigest(),
                        "size": len(bomb),
                    }
                }
            ),
            bomb,
        ),
    }


def test_hostile_artifacts_are_refused_and_leave_nothing(
    ws, done, make_home, tmp_path, contents
) -> None:
    other = make_home("other")
    for i, (name, (manifest, config)) in enumerate(hostile(done.pair, contents).items()):
        layout = layout_of(tmp_path / str(i), manifest, {**contents, "config": config})
        with pytest.raises(PairgateError) as caught:
            register_from(other, "chat", layout)
        assert caught.value.exit_code in (2, 14, 15), name
        if name != "invented architecture":  # a folder is what its files are
            with pytest.raises(PairgateError):
                pull_artifact(layout, tmp_path / "out")
            assert not list(tmp_path.glob("*out*")), name
        assert other.registry.versions("chat") == [], name
        assert not [p for p in (other.home / "work").rglob("*") if p.is_file()], name
    assert not (tmp_path.parent / "x").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"net.py": b"print('run')"}, "brings its own code"),
        ({"notes.txt": b"x"}, "files that no source of pairgate gives: notes.txt"),
    ],
)
def test_code_and_odd_files_never_reach_the_store(
    ws, done, make_home, tmp_path, contents, extra: dict[str, bytes], message: str
) -> None:
    """The pair's document is consistent with its files, but says nothing of code."""
    files = (
        *done.pair.target.files,
        *(
            FileEntry(path=p, size=len(d), sha256="sha256:" + hashlib.sha256(d).hexdigest())
            for p, d in extra.items()
        ),
    )
    pair = replace(done.pair, target=replace(done.pair.target, files=files))
    blobs = {**contents, **extra, "config": pair.config_blob()}
    layout = layout_of(tmp_path / "image", pair.manifest(), blobs)
    other = make_home("other")
    with pytest.raises(Refused, match=message):
        register_from(other, "chat", layout)
    assert not (other.home / "store" / "blobs").exists()
    with pytest.raises(Refused):
        pull_artifact(layout, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("no JSON", "is not valid JSON"),
        ('{"num_speculative_tokens": 9}', "the draft length is 0 by option and 9 in"),
        ('{"method": "ngram"}', "the method is none by option and ngram in"),
        ('{"rejection_sample_method": "typical"}', "rejection_sample_method is 'typical'"),
        ('{"kv_cache_dtype": "fp8"}', "the KV dtype of the draft is auto by option and fp8 in"),
    ],
)
def test_settings_that_contradict_the_text_for_the_engine(
    done, make_home, tmp_path, contents, config: str, message: str
) -> None:
    """The engine is given the text, the evidence and the reports speak of the settings."""
    decoding = replace(done.pair.decoding, speculative_config=config)
    pair = replace(done.pair, decoding=decoding)
    layout = layout_of(
        tmp_path / "image", pair.manifest(), {**contents, "config": pair.config_blob()}
    )
    other = make_home("other")
    with pytest.raises(InvalidInput, match=rf"contradict each other: .*{message}"):
        register_from(other, "chat", layout)
    assert other.registry.versions("chat") == []


def test_adapters_would_be_bound_to_evidence_that_never_loaded_them(
    done, make_home, tmp_path, contents
) -> None:
    pair = replace(done.pair, adapters=(replace(done.pair.target, role="lora"),))
    layout = layout_of(
        tmp_path / "image", pair.manifest(), {**contents, "config": pair.config_blob()}
    )
    other = make_home("other")
    with pytest.raises(Refused, match="has adapters, which nothing would evaluate or serve: lora"):
        register_from(other, "chat", layout)
    assert not (other.home / "store" / "blobs").exists()
    with pytest.raises(InvalidInput, match=r"'pair\.json' is not a model's role"):
        replace(done.pair.target, role="pair.json")  # beside the folders of the models


def test_code_that_was_allowed_is_said_by_the_pair(
    ws, make_home, make_model, tmp_path, run
) -> None:
    model = make_model("code")
    (model / "net.py").write_text("")
    done = register(ws, "chat", target=str(model), allow_custom_code=True)
    store = parse_reference(f"oci-layout:{ws.home / 'store'}@{done.pair.digest}")
    other = make_home("other")
    with pytest.raises(Refused, match="brings its own code"):
        register_from(other, "chat", store)
    assert register_from(other, "chat", store, allow_custom_code=True).pair == done.pair
    pulled = run("pull", str(store), "--to", tmp_path / "out")
    assert "flags: target:custom-code" in pulled.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci://h/r", OciReference(host="h", repository="r")),
        (
            "oci://h:5000/a/b-c_d:v1.0",
            OciReference(host="h:5000", repository="a/b-c_d", tag="v1.0"),
        ),
        ("oci://[::1]:80/r", OciReference(host="[::1]:80", repository="r")),
        (
            "oci://h/r:t@sha256:" + "a" * 64,
            OciReference(host="h", repository="r", tag="t", digest="sha256:" + "a" * 64),
        ),
        ("oci-layout:a/b", LayoutReference(folder=Path("a/b"))),
        (
            "oci-layout:a@b@sha256:" + "0" * 64,
            LayoutReference(folder=Path("a@b"), digest="sha256:" + "0" * 64),
        ),
    ],
)
def test_references(text: str, expected) -> None:
    assert is_reference(text)
    assert parse_reference(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "oci://", "oci://h", "oci://h/", "oci://h/R", "oci://h/a//b", "oci://h/../b", "oci://h/a:",
        "oci://h/a@sha256:12", "oci://u:p@h/a", "oci://h/a?x=1", "oci://h/a#x", "oci://h/a\n",
        "oci-layout:", "oci-layout:a@sha256:12", "oci://h/a:-x", "docker://h/a",
    ],
)  # fmt: skip
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_reference(text)


def test_plain_http_only_on_this_machine() -> None:
    local = ("localhost", "localhost:5000", "127.0.0.1:5000", "127.8.9.1", "[::1]:5000", "[::1]")
    for host in local:
        assert parse_oci(f"oci://{host}/r").is_loopback
    for host in ("registry.example", "10.0.0.1:5000", "localhost.example", "127.0.0.1.example"):
        assert not parse_oci(f"oci://{host}/r").is_loopback


def test_our_layout_is_what_the_specification_says(ws, done) -> None:
    """image-spec 1.1: image-layout, image-index, descriptors, and the guidance for artifacts."""
    root = ws.home / "store"
    assert json.loads((root / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((root / "index.json").read_bytes())
    assert (index["schemaVersion"], index["mediaType"]) == (
        2,
        "application/vnd.oci.image.index.v1+json",
    )
    manifest = json.loads((root / "blobs/sha256" / done.pair.digest[7:]).read_bytes())
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    from oras.layout import NewLayout

    from pairgate.store.blobs import ref_name

    listed = NewLayout(str(root), validate=True).get_ordered_blobs(ref_name(done.pair.digest))
    assert {f.sha256 for f in done.pair.target.files} < set(listed)
    descriptors = [*index["manifests"], manifest["config"], *manifest["layers"]]
    for descriptor in descriptors:
        assert set(descriptor) <= {"mediaType", "artifactType", "digest", "size", "annotations"}
        assert len(descriptor["mediaType"].split("/")) == 2
        blob = root / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")
        data = blob.read_bytes()
        assert len(data) == descriptor["size"]
        assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"]
        assert all(isinstance(v, str) for v in descriptor.get("annotations", {}).values())
