"""A registry that lies, breaks off or asks who we are."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pairgate.app.transfer import pull_artifact, push, register_from
from pairgate.domain.pair import VersionRef
from pairgate.errors import IntegrityError, MissingExtra, Refused, Unavailable
from pairgate.transport.reference import parse_oci, parse_reference

pytestmark = pytest.mark.docker_registry
V1 = VersionRef.parse("chat@1")


def flip(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


def only(part: str, change: Callable[[bytes], bytes]) -> Callable[[str, bytes], bytes]:
    """Damage the answers to paths that hold `part`."""
    return lambda path, body: change(body) if part in path else body


FAULTS = {
    "corrupt": (flip, False, "its bytes are those of"),
    "short": (lambda body: body[: len(body) // 2], False, "it ended after"),
    "broken off": (lambda body: body[: len(body) // 2], True, "it ended after"),
    "empty": (lambda body: b"", True, "it ended after 0"),
    "long": (lambda body: body + b"x", False, "has more than"),
}


@pytest.mark.parametrize(
    ("which", "fault"),
    [
        *(("target/model.safetensors", fault) for fault in FAULTS),
        *(
            (which, fault)
            for which in ("config", "target/config.json")
            for fault in list(FAULTS)[:2]
        ),
    ],
)
def test_a_wrong_blob_is_an_integrity_error_and_nothing_stays(
    ws, done, make_home, proxy, repository, through_proxy, tmp_path, which: str, fault: str
) -> None:
    push(ws, V1, parse_oci(f"{repository}:v1"))
    digests = {f"target/{f.path}": f.sha256 for f in done.pair.target.files}
    digests["config"] = json.loads(done.pair.manifest())["config"]["digest"]
    change, proxy.faults.announce_whole, message = FAULTS[fault]
    proxy.faults.damage = only(f"/blobs/{digests[which]}", change)
    reference = parse_reference(f"{through_proxy}:v1")
    with pytest.raises(IntegrityError, match=message) as caught:
        pull_artifact(reference, tmp_path / "out")
    assert caught.value.exit_code == 14
    assert not list(tmp_path.glob("*out*"))
    other = make_home("other")
    with pytest.raises(IntegrityError, match=message):
        register_from(other, "chat", reference)
    assert other.registry.versions("chat") == []
    assert not other.blobs.has(digests[which])
    for folder in ("store/staging", "work"):
        assert not [p for p in (other.home / folder).rglob("*") if p.is_file()]
    proxy.faults.damage = None
    assert register_from(other, "chat", reference).pair == done.pair
    assert pull_artifact(reference, tmp_path / "out").changed


def test_a_body_that_breaks_off_goes_on_where_it_was(
    ws, done, proxy, repository, through_proxy, tmp_path
) -> None:
    push(ws, V1, parse_oci(f"{repository}:v1"))
    entry = done.pair.target.files[1]
    proxy.faults.announce_whole = True
    proxy.faults.damage = only(f"/blobs/{entry.sha256}", lambda body: body[: len(body) // 2 + 1])
    # Every answer gives half of what is left.
    assert pull_artifact(parse_reference(f"{through_proxy}:v1"), tmp_path / "out").changed
    asked = [p for p in proxy.faults.paths("GET") if entry.sha256 in p]
    assert 10 < len(asked) < 20


def test_another_manifest_than_the_digest(
    ws, done, make_model, proxy, repository, through_proxy, tmp_path
) -> None:
    sent = push(ws, V1, parse_oci(f"{repository}:v1"))
    proxy.faults.damage = only("/manifests/", lambda body: body.replace(b"320", b"321") + b" ")
    by_digest = sent.reference.replace(repository, through_proxy)
    for reference in (by_digest, f"{through_proxy}:v1"):
        with pytest.raises(IntegrityError, match="should be sha256:"):
            pull_artifact(parse_reference(reference), tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_a_manifest_that_another_client_wrote_anew(
    ws, done, repository, tmp_path, make_home
) -> None:
    """oras-py parses and serialises manifests: another digest, so no longer this pair."""
    from oras.provider import Registry

    push(ws, V1, parse_oci(f"{repository}:v1"))
    client = Registry(insecure=True)
    name = repository.removeprefix("oci://")
    client.upload_manifest(client.get_manifest(f"{name}:v1"), client.get_container(f"{name}:v2"))
    with pytest.raises(IntegrityError, match="is not the one of the pair"):
        register_from(make_home("other"), "chat", parse_reference(f"{repository}:v2"))


@pytest.mark.parametrize("command", ["pull", "register"])
def test_killed_and_run_again_fetches_only_the_rest(
    ws, done, make_home, proxy, repository, through_proxy, tmp_path, command: str
) -> None:
    push(ws, V1, parse_oci(f"{repository}:v1"))
    small, large = (f.sha256 for f in done.pair.target.files)
    proxy.faults.stall = lambda path: large in path
    home, to = make_home("other").home, tmp_path / "served"
    arguments = {
        "pull": ["pull", f"{through_proxy}:v1", "--to", str(to)],
        "register": ["register", "chat", "--from", f"{through_proxy}:v1"],
    }[command]
    whole = [sys.executable, "-m", "pairgate", "--home", str(home), *arguments]
    with subprocess.Popen(whole, stderr=subprocess.PIPE) as process:
        assert proxy.faults.stalled.wait(30)
        process.send_signal(signal.SIGKILL)
    assert not to.exists()
    proxy.faults.stall = None
    proxy.faults.released.set()
    proxy.faults.seen.clear()
    again = subprocess.run(whole, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    fetched = [path for path in proxy.faults.paths("GET") if "/blobs/" in path]
    assert any(large in path for path in fetched)
    if command == "pull":
        assert not any(small in path for path in fetched)
        assert sorted(p.name for p in (tmp_path / "served.versions").iterdir()) == [
            done.pair.digest[7:]
        ]


def test_a_new_draft_fetches_the_target_from_the_folder(
    ws, done, make_model, proxy, repository, through_proxy, tmp_path
) -> None:
    from pairgate.app.register import register

    (tmp_path / "models" / "target" / "LICENSE").write_text("as it is")
    register(ws, "chat", target=str(tmp_path / "models" / "target"))
    push(ws, V1, parse_oci(f"{repository}:v1"))
    push(ws, VersionRef.parse("chat@2"), parse_oci(f"{repository}:v2"))
    pull_artifact(parse_reference(f"{through_proxy}:v1"), tmp_path / "out")
    proxy.faults.seen.clear()
    pull_artifact(parse_reference(f"{through_proxy}:v2"), tmp_path / "out")
    fetched = [path for path in proxy.faults.paths("GET") if "/blobs/" in path]
    assert len(fetched) == 2  # the pair's document and the LICENSE
    assert (tmp_path / "out" / "target" / "LICENSE").read_text() == "as it is"


# --- who we are --------------------------------------------------------------------------------


def docker_config(folder: Path, host: str, credentials: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(credentials.encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_tokens_have_a_scope_and_are_fetched_anew(
    ws, done, proxy, through_proxy, tmp_path, monkeypatch, caplog
) -> None:
    """A push begins with reading: its first token must not be used for writing."""
    proxy.faults.token_for = "ci:secret"
    monkeypatch.setitem(ws.environ, "DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setitem(ws.environ, "HOME", str(tmp_path))
    reference = parse_oci(f"{through_proxy}:v1")
    with pytest.raises(Unavailable, match="asks for credentials") as caught:
        push(ws, V1, reference)
    assert not caplog.records
    assert "PAIRGATE_OCI_USERNAME" in caught.value.hint
    docker_config(tmp_path / "docker", proxy.host, "ci:wrong")
    with pytest.raises(Unavailable, match="asks for credentials"):
        push(ws, V1, reference)
    docker_config(tmp_path / "docker", proxy.host, "ci:secret")
    assert push(ws, V1, reference).n_uploaded == 3
    environ = {"PAIRGATE_OCI_USERNAME": "ci", "PAIRGATE_OCI_PASSWORD": "secret"}
    assert pull_artifact(reference, tmp_path / "out", environ=environ).changed


def test_a_credential_helper_is_asked(
    ws, done, proxy, through_proxy, tmp_path, monkeypatch
) -> None:
    proxy.faults.token_for = "ci:secret"
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    helper.write_text('#!/bin/sh\necho \'{"Username": "ci", "Secret": "secret"}\'\n')
    helper.chmod(0o755)
    (tmp_path / "docker").mkdir()
    config = {"credHelpers": {proxy.host: "tests"}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    monkeypatch.setitem(ws.environ, "DOCKER_CONFIG", str(tmp_path / "docker"))
    assert push(ws, V1, parse_oci(f"{through_proxy}:v1")).n_uploaded == 3


def test_a_broken_docker_config(ws, done, proxy, through_proxy, tmp_path, monkeypatch) -> None:
    proxy.faults.token_for = "ci:secret"
    (tmp_path / "config.json").write_text("{")
    monkeypatch.setitem(ws.environ, "DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(Unavailable, match="cannot be read as a docker config"):
        push(ws, V1, parse_oci(f"{through_proxy}:v1"))


def test_no_password_goes_to_a_token_server_without_tls(ws, done) -> None:
    """The challenge comes from a registry with TLS and names a token server without."""
    from pairgate.transport.http import RegistryHttp

    http = RegistryHttp(parse_oci("oci://registry.invalid/x:v1"), plain_http=None, environ={})
    http._check_realm("https://registry.invalid/token")
    for realm in ("http://registry.invalid/token", "", None):
        with pytest.raises(Refused, match="without TLS"):
            http._check_realm(realm)


def test_credentials_stay_with_the_registry(monkeypatch) -> None:
    """An upload address on another host gets none, and neither does a .netrc step in."""
    import requests

    from pairgate.transport.http import RegistryHttp

    sent: list[requests.PreparedRequest] = []

    def send(self, request, **kwargs):
        sent.append(request)
        response = requests.Response()
        response.status_code, response.raw, response.request = 200, io.BytesIO(), request
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    monkeypatch.setattr(requests.sessions, "get_netrc_auth", lambda url: ("netrc", "secret"))
    http = RegistryHttp(parse_oci("oci://registry.invalid/x:v1"), plain_http=None, environ={})
    http._authorization = "Bearer token"
    for host in ("registry.invalid", "uploads.invalid", "registry.invalid:8443"):
        http.request("GET", f"https://{host}/v2/x")
    given = [request.headers.get("Authorization") for request in sent]
    assert given == ["Bearer token", None, None]


def test_without_the_extra(ws, done, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(MissingExtra) as caught:
        push(ws, V1, parse_oci("oci://127.0.0.1:1/x:v1"))
    assert "pairgate[oci]" in caught.value.hint


def test_passwords_of_a_real_server(ws, done, locked_server, tmp_path, monkeypatch) -> None:
    """Basic authentication, with uploads that are streamed."""
    reference = parse_oci(f"oci://{locked_server.host}/pairs/chat:v1")
    monkeypatch.setitem(ws.environ, "HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="asks for credentials"):
        push(ws, V1, reference)
    monkeypatch.setitem(ws.environ, "PAIRGATE_OCI_USERNAME", "ci")
    monkeypatch.setitem(ws.environ, "PAIRGATE_OCI_PASSWORD", "wrong")
    with pytest.raises(Unavailable, match="refuses these credentials"):
        push(ws, V1, reference)
    monkeypatch.setitem(ws.environ, "PAIRGATE_OCI_PASSWORD", "secret")
    assert push(ws, V1, reference).n_uploaded == 3
    assert pull_artifact(reference, tmp_path / "out", environ=ws.environ).changed
