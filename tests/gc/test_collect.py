"""Two runs, a grace, and nothing that a root reaches."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from pairgate.app import release
from pairgate.app.evaluate import evaluate
from pairgate.app.gc import Collected, collect
from pairgate.app.inspect import line_statuses, version_detail
from pairgate.app.register import presence
from pairgate.app.transfer import pull
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.garbage import GarbageKind
from pairgate.domain.pair import VersionRef
from pairgate.errors import Conflict, IntegrityError, Refused
from tests.gc.conftest import NOW
from tests.release.story import ALICE, LINE, add, make_pair, store_pair

V3 = VersionRef(line=LINE, selector="3")
DRAFT_3 = sha256_digest(b"draft-3")


def names(things: object, kind: GarbageKind) -> set[str]:
    return {t.name for t in things if t.kind is kind}  # type: ignore[attr-defined]


def stored(ws: Workspace) -> set[str]:
    return {blob.digest for blob in ws.blobs.list_blobs()}


def test_the_first_run_condemns_and_the_second_deletes(ws: Workspace) -> None:
    before = stored(ws)
    alone = make_pair(b"tuned", b"draft-3")
    mine = {DRAFT_3, alone.digest, sha256_digest(alone.config_blob())}
    first = collect(ws, NOW)
    assert names(first.condemned, GarbageKind.VERSION) == {"code@3"}
    assert names(first.condemned, GarbageKind.BLOB) == mine  # the target is production's too
    assert names(first.condemned, GarbageKind.INDEX) == {alone.digest}
    assert first.deleted == () and stored(ws) == before

    promised = collect(ws, replace(NOW, dry_run=True))
    assert promised.n_bytes_deleted > len(b"draft-3") and stored(ws) == before
    done = collect(ws, NOW)
    assert done == replace(promised, dry_run=False)
    assert stored(ws) == before - mine
    assert alone.digest not in ws.blobs.list_index()
    third = collect(ws, NOW)
    assert third == Collected(dry_run=False, condemned=(), pardoned=(), waiting=(), deleted=())
    for number in ("1", "2"):
        pair = ws.registry.pair(ws.registry.version(replace(V3, selector=number)).pair_digest)
        assert presence(ws, pair) == ()


@pytest.mark.postgres
def test_the_same_on_postgresql(team: Workspace) -> None:
    """Condemned, pardoned by a pin, condemned, collected, restored; evidence and flights read."""
    collect(team, NOW)
    release.pin(team, V3, reason="audit", actor=ALICE)
    assert names(collect(team, NOW).pardoned, GarbageKind.VERSION) == {"code@3"}
    release.pin(team, V3, pinned=False, actor=ALICE)
    collect(team, NOW)
    done = collect(team, NOW)
    assert names(done.deleted, GarbageKind.VERSION) == {"code@3"} and done.spared == ()
    assert DRAFT_3 in names(done.deleted, GarbageKind.BLOB)
    with pytest.raises(Refused, match="code@3 was collected by gc on"):
        release.promote(team, V3, override="now", actor=ALICE)
    assert add(team, b"tuned", b"draft-3").number == 3
    assert release.promote(team, V3, override="now", actor=ALICE).head.production == 3


def test_a_collected_version_says_so_and_moves_nowhere(ws: Workspace) -> None:
    collect(ws, NOW)
    collect(ws, NOW)
    status = line_statuses(ws, LINE)[0]
    assert [v.state for v in status.versions if v.version == 3] == ["collected"]
    assert version_detail(ws, V3).roles == "collected"
    refused = (
        lambda: release.promote(ws, V3, actor=ALICE),
        lambda: release.promote(ws, V3, override="now", actor=ALICE),
        lambda: release.pin(ws, V3, actor=ALICE),
        lambda: pull(ws, V3, ws.home / "out"),
        lambda: evaluate(ws, V3),
    )
    for move in refused:
        with pytest.raises(Refused, match="code@3 was collected by gc on") as caught:
            move()
        assert "register the same files again" in (caught.value.hint or "")

    # The same files again: the same number, whole, and not condemned at once.
    again = add(ws, b"tuned", b"draft-3")
    assert (again.number, again.collected_at) == (3, None)
    assert again.renewed_at is not None
    pull(ws, V3, ws.home / "out")
    release.promote(ws, V3, override="it is back", actor=ALICE)
    kept = collect(ws, replace(NOW, retention=timedelta(days=1)))
    assert kept.condemned == ()


def test_a_rollback_to_a_collected_version_is_refused(ws: Workspace) -> None:
    release.promote(ws, V3, override="next", actor=ALICE)  # v1 is neither production nor previous
    collect(ws, NOW)
    assert names(collect(ws, NOW).deleted, GarbageKind.VERSION) == {"code@1"}
    with pytest.raises(Refused, match="code@1 was collected"):
        release.rollback(ws, LINE, to=VersionRef(line=LINE, selector="1"), actor=ALICE)
    assert release.rollback(ws, LINE, actor=ALICE).head.production == 2


def test_the_grace_is_waited_for_and_what_is_needed_again_is_pardoned(ws: Workspace) -> None:
    collect(ws, NOW)
    patient = collect(ws, replace(NOW, grace=timedelta(hours=1)))
    assert patient.deleted == () and "code@3" in names(patient.waiting, GarbageKind.VERSION)
    release.pin(ws, V3, reason="audit", actor=ALICE)
    pardoned = collect(ws, NOW)
    assert names(pardoned.pardoned, GarbageKind.VERSION) == {"code@3"}
    assert DRAFT_3 in names(pardoned.pardoned, GarbageKind.BLOB)
    release.pin(ws, V3, pinned=False, actor=ALICE)
    again = collect(ws, NOW)  # the grace begins anew
    assert again.deleted == () and "code@3" in names(again.condemned, GarbageKind.VERSION)


def test_a_home_on_the_same_database_does_not_put_off_what_only_this_one_has(
    ws: Workspace, tmp_path: Path
) -> None:
    home = shutil.copytree(ws.home, tmp_path / "other")
    other = Workspace.open(home=str(home), database_url=ws.database_url)
    mine = ws.blobs.add_bytes(b"only here")
    assert mine in names(collect(ws, NOW).condemned, GarbageKind.BLOB)
    collect(other, NOW)
    other.close()
    assert mine in names(collect(ws, NOW).deleted, GarbageKind.BLOB)


def test_withdrawn_and_disabled_versions_stay(ws: Workspace) -> None:
    release.promote(ws, V3, override="next", actor=ALICE)
    release.rollback(ws, LINE, reason="slow", actor=ALICE)  # v3 is withdrawn, v1 free
    release.disable(ws, LINE, "slow too", actor=ALICE)  # v2 is disabled, v4 is its target alone
    collect(ws, NOW)
    assert names(collect(ws, NOW).deleted, GarbageKind.VERSION) == {"code@1"}
    assert release.enable(ws, LINE, actor=ALICE).head.production == 2


def test_disable_makes_a_collected_version_whole_again(ws: Workspace) -> None:
    release.disable(ws, LINE, "slow", actor=ALICE)
    release.enable(ws, LINE, actor=ALICE)
    collect(ws, NOW)
    assert "code@4" in names(collect(ws, NOW).deleted, GarbageKind.VERSION)
    assert release.disable(ws, LINE, "slow again", actor=ALICE).head.production == 4
    pair = ws.registry.pair(ws.registry.version(replace(V3, selector="4")).pair_digest)
    assert presence(ws, pair) == () and pair.digest in ws.blobs.list_index()
    assert ws.registry.version(replace(V3, selector="4")).collected_at is None


def test_a_recent_version_and_a_flight_are_roots(ws: Workspace) -> None:
    month = replace(NOW, retention=timedelta(days=30))
    assert collect(ws, month).condemned == ()
    collect(ws, NOW)
    at, later = "2026-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"
    pair = make_pair(b"tuned", b"draft-3")
    blobs = {DRAFT_3, pair.digest, sha256_digest(pair.config_blob())}
    flight = ws.registry.begin_flight("run", "x", at=at, expires_at=later, claims=blobs)
    assert collect(ws, NOW).deleted == ()
    ws.registry.end_flight(flight)
    ws.registry.begin_flight("run", "x", at=at, expires_at=at, claims=blobs)  # was killed long ago
    collect(ws, NOW)
    assert blobs <= names(collect(ws, NOW).deleted, GarbageKind.BLOB)


def test_what_arrives_during_a_registration_is_not_condemned(ws: Workspace) -> None:
    at, later = "2026-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"
    flight = ws.registry.begin_flight("store", LINE, at=at, expires_at=later)
    new = ws.blobs.add_bytes(b"half a registration")
    assert new not in names(collect(ws, NOW).condemned, GarbageKind.BLOB)
    ws.registry.end_flight(flight)
    assert new in names(collect(ws, NOW).condemned, GarbageKind.BLOB)


def test_pairs_that_were_listed_for_nothing_go(ws: Workspace) -> None:
    """A registration that was killed after its manifest, before its rows."""
    pair = make_pair(b"base", b"never")
    store_pair(ws, pair, b"never")
    collect(ws, NOW)
    done = collect(ws, NOW)
    assert pair.digest in names(done.deleted, GarbageKind.INDEX)
    assert sha256_digest(b"never") in names(done.deleted, GarbageKind.BLOB)
    assert sha256_digest(b"base") in stored(ws)


def test_the_command(ws: Workspace) -> None:
    def run(*options: str) -> str:
        arguments = ["--home", str(ws.home), "--database-url", ws.database_url, "gc", *options]
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    assert "0 things of 0 bytes deleted, 0 condemned" in run()
    assert "would be condemned" in run("--dry-run", "--grace", "0", "--retention", "0")
    said = run("--grace", "0", "--retention", "0")
    assert "condemned  version  code@3" in said
    said = run("--grace", "0", "--retention", "1s", "--json")
    done = json.loads(said)
    assert done["n_bytes_deleted"] == sum(t["n_bytes"] for t in done["deleted"])
    wrong = CliRunner().invoke(cli, ["gc", "--grace", "soon"])
    assert wrong.exit_code == 2 and "no duration" in wrong.output


def test_one_run_at_a_time(ws: Workspace) -> None:
    import fcntl

    with (ws.home / "gc.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="another gc"):
            collect(ws, NOW)


def test_a_missing_blob_stops_everything(ws: Workspace) -> None:
    collect(ws, NOW)
    before = stored(ws)
    ws.blobs.delete_blob(sha256_digest(b"draft-2"))  # production's
    with pytest.raises(IntegrityError, match="code@2: 1 blobs are missing"):
        collect(ws, NOW)
    with pytest.raises(IntegrityError, match="code@2: 1 blobs are missing"):
        collect(ws, replace(NOW, dry_run=True))
    assert stored(ws) == before - {sha256_digest(b"draft-2")}
    assert ws.registry.version(V3).collected_at is None


def test_an_unreadable_manifest_or_index_stops_everything(ws: Workspace) -> None:
    collect(ws, NOW)
    pair = make_pair(b"tuned", b"draft-3")
    path = ws.blobs.path(pair.digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"layers", b"player"))
    with pytest.raises(IntegrityError, match="no longer match the digest"):
        collect(ws, NOW)
    (ws.home / "store" / "index.json").write_text("{")
    with pytest.raises(IntegrityError, match="is not an OCI index"):
        collect(ws, NOW)
    assert DRAFT_3 in stored(ws)
