"""Pairs to and from Debian's `docker-registry`: digests equal on both sides."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pairgate.app.register import verify_pair
from pairgate.app.transfer import pull_artifact, push, register_from
from pairgate.domain.pair import VersionRef
from pairgate.errors import IntegrityError, InvalidInput, NotFound, Unavailable
from pairgate.store.blobs import ref_name
from pairgate.transport.reference import parse_oci, parse_reference

pytestmark = pytest.mark.docker_registry
V1 = VersionRef.parse("chat@1")


def test_push_then_register_elsewhere_is_the_same_pair(
    ws, done, make_home, server, repository
) -> None:
    sent = push(ws, V1, parse_oci(f"{repository}:v1"))
    assert sent.reference == f"{repository}@{done.pair.digest}"
    assert (sent.n_uploaded, sent.n_skipped) == (3, 0)
    hexes = {f.sha256[7:] for f in done.pair.target.files} | {done.pair.digest[7:]}
    assert hexes <= server.blobs()
    other = make_home("other")
    for reference in (f"{repository}:v1", sent.reference):
        got = register_from(other, "chat", parse_reference(reference))
        assert got.pair == done.pair
        assert got.version.pair_digest == done.pair.digest
    assert got.created is False
    assert len(other.registry.versions("chat")) == 1
    assert verify_pair(other, got.pair).problem == ""
    provenance = json.loads(other.registry.provenance(done.pair.digest))
    assert provenance["sources"]["target"] == {
        "spec": f"{repository}:v1",
        "origin": sent.reference,
    }


def test_what_the_other_side_has_is_not_sent_again(ws, done, make_model, repository) -> None:
    from pairgate.app.register import register

    push(ws, V1, parse_oci(repository))
    again = push(ws, V1, parse_oci(f"{repository}:again"))
    assert (again.n_uploaded, again.n_skipped, again.uploaded_bytes) == (0, 3, 0)
    register(ws, "chat", target=str(make_model("second", seed=1)))
    second = push(ws, VersionRef.parse("chat@2"), parse_oci(f"{repository}:second"))
    assert (second.n_uploaded, second.n_skipped) == (2, 1)  # weights and config; config.json stays


def test_pull_needs_no_home(ws, done, run, repository, tmp_path, monkeypatch) -> None:
    push(ws, V1, parse_oci(f"{repository}:v1"))
    monkeypatch.setenv("PAIRGATE_HOME", str(tmp_path / "nowhere"))
    to = tmp_path / "served"
    answer = run("pull", f"{repository}:v1", "--to", to, "--json", home=tmp_path / "nowhere")
    assert json.loads(answer.stdout) == {
        "version": None,
        "pair_digest": done.pair.digest,
        "folder": str(to),
        "changed": True,
        "flags": [],
    }
    weights = ws.blobs.path(done.pair.target.files[1].sha256).read_bytes()
    assert (to / "target" / "model.safetensors").read_bytes() == weights
    assert (to / "pair.json").read_bytes() == done.pair.config_blob()
    assert not (tmp_path / "nowhere").exists()


def test_commands(ws, done, run, make_home, repository) -> None:
    pushed = run("push", "chat@1", f"{repository}:v1")
    assert pushed.stdout == f"chat@1  {repository}@{done.pair.digest}\n"
    assert "3 blobs sent" in pushed.stderr
    as_json = json.loads(run("push", "chat@1", f"{repository}:v1", "--json").stdout)
    assert (as_json["n_skipped"], as_json["pair_digest"]) == (3, done.pair.digest)
    other = make_home("other")
    got = run("register", "chat", "--from", f"{repository}:v1", "--json", home=other.home)
    assert json.loads(got.stdout)["pair_digest"] == done.pair.digest
    both = run("register", "chat", "--from", f"{repository}:v1", "-k", "3")
    assert both.exit_code == 2
    assert "the pair there decides it" in both.stderr
    assert run("register", "chat").exit_code == 2


def test_what_is_not_there(ws, done, run, repository, tmp_path) -> None:
    push(ws, V1, parse_oci(f"{repository}:v1"))
    wrong = done.pair.digest[:-4] + ("0000" if done.pair.digest[-4:] != "0000" else "1111")
    for reference in (f"{repository}:v2", f"{repository}@{wrong}", f"{repository}-other:v1"):
        with pytest.raises(NotFound, match=r"MANIFEST_UNKNOWN|NAME_UNKNOWN"):
            pull_artifact(parse_reference(reference), tmp_path / "out")
    with pytest.raises(InvalidInput, match="names a repository, not an artifact"):
        pull_artifact(parse_reference(repository), tmp_path / "out")
    with pytest.raises(InvalidInput, match="names another pair"):
        push(ws, V1, parse_oci(f"{repository}@{wrong}"))
    assert not list(tmp_path.glob("*out*"))


def test_a_damaged_blob_is_not_sent(ws, done, repository) -> None:
    entry = done.pair.target.files[1]
    blob = ws.blobs.path(entry.sha256)
    blob.chmod(0o644)
    blob.write_bytes(b"\0" * entry.size)
    with pytest.raises(IntegrityError, match="no longer match"):
        push(ws, V1, parse_oci(f"{repository}:v1"))
    with pytest.raises(NotFound):
        pull_artifact(parse_reference(f"{repository}:v1"), Path("/nowhere"))


def test_an_unreachable_registry(ws, done, run, server) -> None:
    answer = run("push", "chat@1", "oci://127.0.0.1:1/x:v1")
    assert answer.exit_code == 16
    with pytest.raises(Unavailable, match=r"cannot be reached: Connection refused"):
        push(ws, V1, parse_oci("oci://127.0.0.1:1/x:v1"))
    with pytest.raises(Unavailable, match="SSL") as caught:
        push(ws, V1, parse_oci(f"oci://{server.host}/x:v1"), plain_http=False)
    assert "--plain-http" in caught.value.hint


@pytest.mark.skopeo
def test_skopeo_carries_a_pair_there_and_back(ws, done, make_home, repository, tmp_path) -> None:
    remote = repository.replace("oci://", "docker://") + ":v1"
    copy = ["skopeo", "copy", "--preserve-digests", "--src-tls-verify=false"]
    copy += ["--dest-tls-verify=false"]
    stored = f"oci:{ws.home / 'store'}:{ref_name(done.pair.digest)}"
    subprocess.run([*copy, stored, remote], check=True, capture_output=True)
    inspect = ["skopeo", "inspect", "--tls-verify=false", "--raw", remote]
    raw = subprocess.run(inspect, check=True, capture_output=True).stdout
    assert raw == done.pair.manifest()
    layout = tmp_path / "layout"
    subprocess.run([*copy, remote, f"oci:{layout}:v1"], check=True, capture_output=True)
    other = make_home("other")
    for reference in (f"oci-layout:{layout}", f"oci-layout:{layout}@{done.pair.digest}"):
        assert register_from(other, "chat", parse_reference(reference)).pair == done.pair
    assert register_from(make_home("third"), "chat", parse_reference(f"{repository}:v1")).created


def test_oras_reads_what_we_push(ws, done, repository, tmp_path) -> None:
    """Another client sees the artifact, its type, and the files under their titles."""
    from oras.provider import Registry

    push(ws, V1, parse_oci(f"{repository}:v1"))
    client = Registry(insecure=True)
    name = repository.removeprefix("oci://") + ":v1"
    manifest = client.get_manifest(name)
    assert manifest["artifactType"] == "application/vnd.pairgate.pair.v1"
    pulled = client.pull(name, outdir=str(tmp_path / "oras"))
    names = {str(Path(p).relative_to(tmp_path / "oras")) for p in pulled}
    assert names == {"target/config.json", "target/model.safetensors"}
