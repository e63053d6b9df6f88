"""Who must agree before production moves, and what a tag in MLflow is worth."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from pairgate.app import approvals, lines, release
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.domain.pair import PairVersion, VersionRef
from pairgate.domain.records import UNVERIFIED_TAG
from pairgate.domain.release import Actor
from pairgate.errors import EvidenceMissing, InvalidInput, NotFound, Refused
from pairgate.policyfile import preset_text
from pairgate.review import mlflow_tags
from tests.release.receivers import rude
from tests.release.story import ALICE, BOB, LINE, add, evidence

CAROL = Actor(name="carol", source="database-role")
TWO = 'names = ["safety", "legal"]'
BY_TAG = "required = 1\ndistinct = false\ncount_tags = true"


def policy(ws: Workspace, folder: Path, approvals_table: str) -> None:
    path = folder / "policy.toml"
    path.write_text(f"{preset_text('exploratory')}\n[approvals]\n{approvals_table}\n")
    lines.set_line(ws, LINE, policy=path, actor=ALICE)


def ref(version: PairVersion) -> VersionRef:
    return VersionRef.parse(str(version))


def agree(ws: Workspace, version: PairVersion, name: str, actor: Actor) -> None:
    approvals.approve(ws, ref(version), name, actor=actor)


@pytest.fixture
def version(ws: Workspace) -> PairVersion:
    return add(ws, b"base", b"draft")


# --- people -----------------------------------------------------------------------------------


def test_each_name_by_another_person(ws: Workspace, version: PairVersion, tmp_path: Path) -> None:
    policy(ws, tmp_path, TWO)
    evidence(ws, version)

    def refused(message: str) -> None:
        with pytest.raises(Refused, match=message):
            release.promote(ws, ref(version), actor=ALICE)

    refused("0 of 2 approvals by others")
    agree(ws, version, "safety", BOB)
    refused("1 of 2")
    agree(ws, version, "legal", BOB)
    refused("1 of 2")
    agree(ws, version, "taste", CAROL)
    refused("different people for safety, legal")
    agree(ws, version, "legal", ALICE)  # the promoter
    refused("different people")
    agree(ws, version, "legal", CAROL)
    moved = release.promote(ws, ref(version), actor=ALICE)
    assert moved.head.production == 1
    assert {(a.actor, a.name, a.identity_source) for a in moved.approvals} >= {
        ("bob", "safety", "os-user"),
        ("carol", "legal", "database-role"),
    }


def test_a_name_that_nobody_approved(ws: Workspace, version: PairVersion, tmp_path: Path) -> None:
    policy(ws, tmp_path, TWO)
    evidence(ws, version)
    agree(ws, version, "safety", BOB)
    agree(ws, version, "taste", CAROL)
    with pytest.raises(Refused, match="no approval for legal"):
        release.promote(ws, ref(version), actor=ALICE)


@pytest.mark.parametrize(
    "promoter",
    [
        Actor(name="bob", source="database-role"),
        Actor(name="Bob", source="ci-oidc"),
        Actor(name="\uff42ob", source="os-user"),
    ],
)
def test_one_person_by_another_way_in_is_still_one(
    ws: Workspace, version: PairVersion, tmp_path: Path, promoter: Actor
) -> None:
    policy(ws, tmp_path, "required = 1")
    evidence(ws, version)
    agree(ws, version, "safety", BOB)
    with pytest.raises(Refused, match="0 of 1 approvals by others"):
        release.promote(ws, ref(version), actor=promoter)


def test_without_distinct_the_promoter_counts(
    ws: Workspace, version: PairVersion, tmp_path: Path
) -> None:
    policy(ws, tmp_path, f"{TWO}\ndistinct = false")
    evidence(ws, version)
    agree(ws, version, "safety", ALICE)
    agree(ws, version, "legal", ALICE)
    assert release.promote(ws, ref(version), actor=ALICE).head.production == 1


def test_an_approval_of_older_evidence_never_counts(
    ws: Workspace, version: PairVersion, tmp_path: Path
) -> None:
    policy(ws, tmp_path, "required = 1")
    old = evidence(ws, version)
    agree(ws, version, "safety", BOB)
    new = evidence(ws, version)
    with pytest.raises(Refused, match="0 of 1"):
        release.promote(ws, ref(version), actor=ALICE)
    (made,) = approvals.approve(ws, ref(version), "safety", evaluation=old[7:19], actor=BOB)
    assert made.evaluation_digest == old  # said again, of the evidence that was named
    with pytest.raises(Refused, match="0 of 1"):
        release.promote(ws, ref(version), actor=ALICE)
    approvals.approve(ws, ref(version), "safety", evaluation=new, actor=BOB)
    assert release.promote(ws, ref(version), actor=ALICE).head.production == 1


def test_what_can_be_approved(ws: Workspace, version: PairVersion) -> None:
    from pairgate.domain.verdict import Outcome

    with pytest.raises(EvidenceMissing, match="no PASS to approve"):
        agree(ws, version, "safety", BOB)
    failed = evidence(ws, version, Outcome.FAIL)
    with pytest.raises(EvidenceMissing, match="says FAIL"):
        approvals.approve(ws, ref(version), "safety", evaluation=failed[:20], actor=BOB)
    for unknown in ("", "abc", "0" * 12, "sha256:" + "0" * 64, "%"):
        with pytest.raises(NotFound, match="does not name one evaluation"):
            approvals.approve(ws, ref(version), "safety", evaluation=unknown, actor=BOB)
    for name in ("", " ", "a\nb", "a\x1b[2J", "x" * 201):
        with pytest.raises(InvalidInput, match="name of the approval"):
            agree(ws, version, name, BOB)


def test_an_override_is_shown_by_the_report_and_in_mlflow(
    ws: Workspace, version: PairVersion, tmp_path: Path
) -> None:
    from pairgate.app.review import deliver_mlflow, labels, mlflow_tracker, terminal_report
    from pairgate.review.mlflow_client import connected

    digest = evidence(ws, version)
    release.promote(ws, ref(version), override="incident 4711", actor=ALICE)
    stored = ws.registry.evaluation(digest)
    (note,) = labels(ws, stored.evaluation).notes
    assert note.startswith("code@1 was promoted without a PASS on ")
    assert note.endswith("by alice (os-user): override: incident 4711")
    assert "incident 4711" in terminal_report(ws, stored.evaluation, stored.verdict)
    del ws.environ["PAIRGATE_MLFLOW"]
    deliver_mlflow(ws, "head", {"line": LINE})
    tracker = mlflow_tracker(ws)
    assert tracker is not None
    with connected(tracker.tracking_uri) as client:
        found = client.get_model_version_by_alias(LINE, "production").tags
    assert found["pairgate.override"].startswith("override: incident 4711 (alice, os-user, 20")


def test_an_override_needs_no_approval_and_is_shown(
    ws: Workspace, version: PairVersion, tmp_path: Path
) -> None:
    policy(ws, tmp_path, TWO)
    evidence(ws, version)
    release.promote(ws, ref(version), override="incident 4711", actor=ALICE)
    environ = {**ws.environ, "PAIRGATE_HOME": str(ws.home)}
    for command in (["status", LINE], ["history", LINE], ["history", LINE, "--overrides"]):
        said = CliRunner().invoke(cli, command, env=environ).output
        assert "override" in said
        assert "incident 4711" in said
    # It stays visible after something else happened to the version.
    release.pin(ws, ref(version), reason="audit", actor=ALICE)
    assert "incident 4711" in CliRunner().invoke(cli, ["status", LINE], env=environ).output
    release.pin(ws, ref(version), pinned=False, actor=ALICE)
    document = json.loads(CliRunner().invoke(cli, ["status", LINE, "--json"], env=environ).output)
    assert document[0]["overridden"] is True


@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_an_override_without_a_reason_is_refused(
    ws: Workspace, version: PairVersion, reason: str
) -> None:
    with pytest.raises(InvalidInput, match="--override needs a reason"):
        release.promote(ws, ref(version), override=reason, actor=ALICE)
    assert ws.registry.head(LINE).production is None


# --- tags in MLflow ---------------------------------------------------------------------------


@contextmanager
def tag_server(document: object, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Answers every GET like MLflow's REST API would; yields its URL and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization', '')}")
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1:9/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(*values: str) -> dict[str, object]:
    tags = [{"key": "pairgate.approve", "value": v} for v in values]
    return {"model_versions": [{"version": "1", "tags": [{"key": "x", "value": "y"}, *tags]}]}


def use_mlflow(ws: Workspace, uri: str) -> None:
    ws.environ["PAIRGATE_MLFLOW"] = "on"
    ws.environ["PAIRGATE_MLFLOW_TRACKING_URI"] = uri


def test_a_tag_counts_where_the_policy_says_so(
    ws: Workspace, version: PairVersion, tmp_path: Path
) -> None:
    policy(ws, tmp_path, BY_TAG)
    digest = evidence(ws, version)
    with tag_server(answer(digest[7:19])) as (uri, asked):
        use_mlflow(ws, uri.replace("//", "//ann:secret@"))
        moved = release.promote(ws, ref(version), actor=ALICE)
    assert len(asked) == 1
    assert "tags.%60pairgate.pair%60" in asked[0]
    assert "Basic" in asked[0]
    (tag,) = moved.approvals
    assert tag.identity_source == UNVERIFIED_TAG == "unverified (MLflow tag)"
    assert tag.evaluation_digest == digest


@pytest.mark.parametrize("table", ["required = 1", "required = 1\ndistinct = false"])
def test_elsewhere_a_tag_is_recorded_and_shown_but_does_not_count(
    ws: Workspace, version: PairVersion, tmp_path: Path, table: str
) -> None:
    policy(ws, tmp_path, table)
    digest = evidence(ws, version)
    with tag_server(answer(digest[7:19])) as (uri, _):
        use_mlflow(ws, uri)
        with pytest.raises(Refused, match="0 of 1"):
            release.promote(ws, ref(version), actor=ALICE)
        (recorded,) = ws.registry.approvals(digest)
        assert recorded.identity_source == UNVERIFIED_TAG
        agree(ws, version, "safety", BOB)
        assert len(release.promote(ws, ref(version), actor=ALICE).approvals) == 2


@pytest.mark.parametrize("value", ["", "yes", "0" * 12, "{short}", "%"])
def test_a_tag_that_names_something_else_is_nothing(
    ws: Workspace, version: PairVersion, tmp_path: Path, value: str
) -> None:
    policy(ws, tmp_path, BY_TAG)
    digest = evidence(ws, version)
    with tag_server(answer(value.replace("{short}", digest[7:18]))) as (uri, _):
        use_mlflow(ws, uri)
        with pytest.raises(Refused, match="0 of 1"):
            release.promote(ws, ref(version), actor=ALICE)
    assert ws.registry.approvals(digest) == []


def test_a_tag_for_older_evidence_is_nothing(
    ws: Workspace, version: PairVersion, tmp_path: Path
) -> None:
    policy(ws, tmp_path, BY_TAG)
    old = evidence(ws, version)
    evidence(ws, version)
    with tag_server(answer(old[7:19])) as (uri, _):
        use_mlflow(ws, uri)
        with pytest.raises(Refused, match="0 of 1"):
            release.promote(ws, ref(version), actor=ALICE)


@pytest.mark.parametrize(
    ("document", "status"),
    [(b"<html>", 200), ({"model_versions": 3}, 200), ([], 200), (b"", 500), ({}, 302), ({}, 401)],
)
def test_an_mlflow_that_answers_nonsense_is_a_warning(
    ws: Workspace, version: PairVersion, tmp_path: Path, document: object, status: int
) -> None:
    policy(ws, tmp_path, "required = 0\ndistinct = false\ncount_tags = true")
    evidence(ws, version)
    with tag_server(document, status) as (uri, _):
        use_mlflow(ws, uri)
        moved = release.promote(ws, ref(version), actor=ALICE)
    assert moved.decision is not None
    assert "approvals by tag are not known" in moved.decision.warnings[0]


@pytest.mark.parametrize("behaviour", ["hangs", "drips", "closes"])
def test_a_dead_mlflow_does_not_block_promote(
    ws: Workspace, version: PairVersion, behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_tags, "DEADLINE_S", 0.4)
    evidence(ws, version)
    with rude(behaviour) as url:
        use_mlflow(ws, url.removesuffix("/hook"))
        started = time.monotonic()
        moved = release.promote(ws, ref(version), actor=ALICE)
        assert time.monotonic() - started < 2.0
    assert moved.decision is not None
    assert moved.decision.warnings == ()  # no policy asked for it


def test_a_store_that_has_no_tags_to_read(
    ws: Workspace, version: PairVersion, tmp_path: Path
) -> None:
    policy(ws, tmp_path, "distinct = false\ncount_tags = true")
    evidence(ws, version)
    (tmp_path / "x.db").write_bytes(b"no database" * 100)
    found = []
    for uri in (
        f"sqlite:///{tmp_path / 'x.db'}",
        "sqlite:////nowhere/x.db",
        "postgresql://u:p@h/d",
    ):
        use_mlflow(ws, uri)
        found += approvals.record_tags(ws, version)
    assert len(found) == 3
    assert all("approvals by tag are not known" in warning for warning in found)
    assert not any("u:p@" in warning for warning in found)


def test_the_embedded_mlflow(ws: Workspace, version: PairVersion, tmp_path: Path) -> None:
    """A reviewer sets the tag with MLflow's own client."""
    from pairgate.app.review import mlflow_tracker
    from pairgate.review.mlflow_client import connected

    policy(ws, tmp_path, BY_TAG)
    digest = evidence(ws, version)
    del ws.environ["PAIRGATE_MLFLOW"]
    tracker = mlflow_tracker(ws)
    assert tracker is not None
    tracker.set_head(ws.registry.head(LINE), ws.registry.versions(LINE), candidate=1)
    with pytest.raises(Refused, match="0 of 1"):
        release.promote(ws, ref(version), actor=ALICE)
    with connected(tracker.tracking_uri) as client:
        client.set_model_version_tag(LINE, "1", "pairgate.approve", digest[7:19])
    moved = release.promote(ws, ref(version), actor=ALICE)
    assert [a.identity_source for a in moved.approvals] == [UNVERIFIED_TAG]


@pytest.mark.slow
def test_a_real_mlflow_server(ws: Workspace, version: PairVersion, tmp_path: Path) -> None:
    from pairgate.review.mlflow_client import connected
    from pairgate.review.mlflow_mirror import MlflowTracker

    policy(ws, tmp_path, BY_TAG)
    digest = evidence(ws, version)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = ["server", "--port", str(port), "--workers", "1", "--backend-store-uri", store]
    log = (tmp_path / "server.log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *command, "--artifacts-destination", str(tmp_path / "a")],
        stdout=log,
        stderr=log,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        start_new_session=True,
    )
    try:
        _wait_for(port)
        tracker = MlflowTracker(tracking_uri=uri)
        tracker.set_head(ws.registry.head(LINE), ws.registry.versions(LINE), candidate=1)
        with connected(uri) as client:
            client.set_model_version_tag(LINE, "1", "pairgate.approve", digest[7:19])
        use_mlflow(ws, uri)
        assert len(release.promote(ws, ref(version), actor=ALICE).approvals) == 1
    finally:
        os.killpg(server.pid, 15)
        server.wait()
        log.close()


def _wait_for(port: int) -> None:
    for _ in range(1800):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server did not start within three minutes")
