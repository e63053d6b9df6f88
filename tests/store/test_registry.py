"""The registry's contract, on each database that it runs on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairgate.domain.canonical import sha256_digest
from pairgate.domain.pair import PairVersion, VersionRef
from pairgate.domain.records import Approval, Delivery
from pairgate.domain.release import Decision, Kind, fold
from pairgate.errors import Conflict, InvalidInput, NotFound, Unavailable
from pairgate.store.sql import SqlRegistry
from tests.release.story import PROFILE, make_pair

AT = "2026-12-01T12:00:00.000000Z"
LINE = "code"


def add(registry: SqlRegistry, draft: bytes = b"draft", line: str = LINE) -> PairVersion:
    pair = make_pair(b"target", draft)
    registry.add_pair(pair, '{"from":"here"}', AT)
    return registry.add_version(
        line, pair.digest, pair.target_digest, pair.decoding.method, AT, "alice"
    )


def decision(registry: SqlRegistry, kind: Kind, **changes: object) -> Decision:
    head = registry.head(LINE)
    made = Decision(
        line=LINE,
        sequence=head.revision + 1,
        kind=kind,
        production=head.production,
        previous=head.previous,
        version=None,
        at=AT,
        actor="alice",
        identity_source="os-user",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def append(registry: SqlRegistry, made: Decision) -> Decision:
    with registry.lock(LINE) as transaction:
        return transaction.append(made)


def test_lines_are_made_once(registry: SqlRegistry) -> None:
    assert registry.lines() == []
    head = registry.create_line(LINE, AT)
    assert registry.lines() == [head] == [registry.head(LINE)]
    with pytest.raises(Conflict):
        registry.create_line(LINE, AT)
    with pytest.raises(InvalidInput):
        registry.create_line("No Such Name", AT)
    with pytest.raises(NotFound, match="known lines: code"):
        registry.head("other")


def test_a_version_is_named_by_its_content(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    first, second = add(registry), add(registry, b"draft-2")
    assert (first.number, second.number) == (1, 2)
    assert add(registry) == first
    assert registry.pair(first.pair_digest) == make_pair(b"target", b"draft")
    assert registry.provenance(first.pair_digest) == '{"from":"here"}'
    assert registry.versions(LINE) == [first, second]
    registry.create_line("other", AT)
    assert add(registry, line="other").number == 1


@pytest.mark.parametrize("selector", ["1", "sha256:{}", "sha256:{:.6}"])
def test_a_version_resolves(registry: SqlRegistry, selector: str) -> None:
    registry.create_line(LINE, AT)
    version = add(registry)
    text = selector.format(version.pair_digest.removeprefix("sha256:"))
    assert registry.version(VersionRef(line=LINE, selector=text)) == version


@pytest.mark.parametrize("selector", ["2", "production", "previous", "sha256:000000"])
def test_an_unknown_version_is_said_so(registry: SqlRegistry, selector: str) -> None:
    registry.create_line(LINE, AT)
    add(registry)
    with pytest.raises(NotFound):
        registry.version(VersionRef(line=LINE, selector=selector))


def test_decisions_move_the_head_and_chain(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    add(registry)
    add(registry, b"draft-2")
    moves: list[tuple[Kind, dict[str, object]]] = [
        (Kind.PROMOTE, {"production": 1, "version": 1}),
        (Kind.PROMOTE, {"production": 2, "previous": 1, "version": 2}),
        (Kind.PIN, {"version": 1}),
        (Kind.ROLLBACK, {"production": 1, "previous": None, "version": 1}),
        (Kind.UNPIN, {"version": 1}),
    ]
    for kind, changes in moves:
        sealed = append(registry, decision(registry, kind, **changes))
        assert sealed.hash == registry.head(LINE).hash
        assert fold(LINE, registry.decisions(LINE)) == registry.head(LINE)
    head = registry.head(LINE)
    assert (head.production, head.previous, head.revision) == (1, None, 5)
    assert head.withdrawn == {2}
    assert [v.state for v in registry.versions(LINE)] == ["production", "withdrawn"]
    assert registry.version(VersionRef.parse("code@production")).number == 1


def test_a_decision_for_another_revision_is_a_conflict(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    add(registry)
    late = decision(registry, Kind.PIN, version=1)
    append(registry, decision(registry, Kind.PIN, version=1))
    with pytest.raises(Conflict, match="another revision"):
        append(registry, late)
    assert registry.head(LINE).revision == 1


def test_a_body_that_raises_leaves_nothing(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    add(registry)
    with pytest.raises(RuntimeError), registry.lock(LINE) as transaction:
        transaction.append(decision(registry, Kind.PIN, version=1))
        transaction.enqueue("head", {"at": AT, "line": LINE})
        raise RuntimeError
    assert registry.head(LINE).revision == 0
    assert registry.decisions(LINE) == []
    assert registry.pending() == []


def test_a_decision_about_an_unknown_version_is_refused(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    with pytest.raises(InvalidInput, match="does not hold"):
        append(registry, decision(registry, Kind.PROMOTE, production=7, version=7))


def test_decisions_between_two_times(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    add(registry)
    for hour, kind in enumerate((Kind.PIN, Kind.UNPIN, Kind.PIN)):
        append(registry, decision(registry, kind, version=1, at=f"2026-12-01T0{hour}:00:00Z"))
    found = registry.decisions(LINE, since="2026-12-01T01:00:00Z", until="2026-12-01T01:30:00Z")
    assert [d.sequence for d in found] == [2]


def test_profiles_keep_their_numbers(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    newer = replace(PROFILE, engine_version="2.0")
    assert [registry.save_profile(LINE, p, AT) for p in (PROFILE, newer, PROFILE)] == [1, 2, 1]
    assert [str(r) for r in registry.profiles(LINE)] == ["native-cpu@1", "native-cpu@2"]
    assert registry.profile(newer.digest) == newer
    with pytest.raises(NotFound):
        registry.profile("sha256:none")


def test_slices_by_digest_and_by_newest_name(registry: SqlRegistry) -> None:
    one, two = sha256_digest(b"1"), sha256_digest(b"2")
    saved = registry.save_slice("held-out", one, 5, {"chat": 3, "code": 2}, one, AT)
    assert saved.domains == (("chat", 3), ("code", 2))
    registry.save_slice("held-out", two, 6, {"chat": 6}, two, AT.replace("12:", "13:"))
    assert registry.slice_("held-out").digest == two
    assert registry.slice_(one) == saved
    assert registry.save_slice("held-out", one, 5, {"chat": 3, "code": 2}, one, AT) == saved
    with pytest.raises(InvalidInput, match="slice 'held-out' already"):
        registry.save_slice("other", one, 5, {"chat": 5}, one, AT)
    with pytest.raises(NotFound, match="no slice 'x'"):
        registry.slice_("x")


def test_a_policy_keeps_its_digest_and_takes_new_advice(registry: SqlRegistry) -> None:
    registry.save_policy("sha256:p", "a", '{"name":"a"}', AT)
    registry.save_policy("sha256:p", "b", '{"name":"b"}', AT)
    assert registry.policy_document("sha256:p") == '{"name":"b"}'
    with pytest.raises(NotFound):
        registry.policy_document("sha256:q")


def test_attempts_spend_alpha_and_free_ones_do_not(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    version = add(registry)

    def start(slice_digest: str = "s1") -> int:
        return registry.start_attempt(LINE, 1, version.pair_digest, "p", slice_digest, AT)

    assert [start(), start(), start("s2")] == [1, 2, 1]
    registry.release_attempt(version.pair_digest, "p", "s1", 2)
    assert start() == 2
    assert registry.n_families(version.pair_digest, "p", 30.0, AT) == 2
    assert registry.n_families(version.pair_digest, "p", 30.0, "2027-06-01T00:00:00Z") == 0


def test_alpha_is_never_overspent(registry: SqlRegistry) -> None:
    """Whatever is released meanwhile: the k of those that count sum to under one alpha."""
    registry.create_line(LINE, AT)
    version = add(registry)
    counted = []
    for step in range(12):
        k = registry.start_attempt(LINE, 1, version.pair_digest, "p", "s", AT)
        counted.append(k)
        if step % 3 != 0:
            gone = counted.pop(step % len(counted))
            registry.release_attempt(version.pair_digest, "p", "s", gone)
    assert sum(2.0**-k for k in counted) < 1.0


def test_verification_is_recorded(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    digest = add(registry).pair_digest
    assert (registry.verification(digest).at, registry.verification(digest).problem) == (AT, "")
    registry.record_verification(digest, "2026-12-02T00:00:00Z", "blob differs")
    assert registry.verification(digest).problem == "blob differs"
    with pytest.raises(NotFound):
        registry.verification("sha256:none")


def test_the_outbox_keeps_order_targets_and_errors(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    with registry.lock(LINE) as transaction:
        transaction.enqueue("head", {"at": AT, "n": 1})
        transaction.enqueue("head", {"at": AT, "n": 2})
    first, second = registry.pending(LINE)
    assert first.id < second.id
    done = Delivery(target="pointer", state="done", n_tries=1)
    failed = Delivery(target="mlflow", n_tries=1, last_error="no route to host", next_try_at=AT)
    registry.mark(first.id, done, AT)
    registry.mark(second.id, failed, AT)
    found = registry.pending()
    assert [m.deliveries for m in found] == [(done,), (failed,)]
    assert found[0].delivery("mlflow") == Delivery(target="mlflow")
    registry.mark(second.id, replace(failed, n_tries=2), AT)
    assert registry.message(second.id).delivery("mlflow").n_tries == 2
    registry.mark_delivered(first.id, AT)
    assert [m.id for m in registry.pending()] == [second.id]
    with pytest.raises(NotFound, match="no message"):
        registry.message(first.id)


def test_the_targets_that_are_known(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    with registry.lock(LINE) as transaction:
        transaction.enqueue("head", {"at": AT})
        transaction.enqueue("head", {"at": AT})
    first, second = registry.pending()
    registry.mark(first.id, Delivery(target="webhook", state="done"), "2026-12-01T00:00:00Z")
    registry.mark(first.id, Delivery(target="mlflow", state="dropped"), "2026-12-01T00:00:00Z")
    assert registry.targets_since("2026-11-30T00:00:00Z") == {"webhook"}
    assert registry.targets_since("2026-12-02T00:00:00Z") == set()
    registry.mark(second.id, Delivery(target="mlflow", state="done"), "2026-12-03T00:00:00Z")
    registry.mark(second.id, Delivery(target="webhook", state="dropped"), "2026-12-03T00:00:00Z")
    assert registry.targets_since("2026-11-30T00:00:00Z") == {"mlflow"}


def test_one_delivery_at_a_time(registry: SqlRegistry, url: str) -> None:
    other = SqlRegistry.open(url)
    with (
        registry.delivering("webhook", wait_s=0),
        other.delivering("pointer", wait_s=0),
        pytest.raises(Unavailable, match="another process"),
        other.delivering("webhook", wait_s=0.05),
    ):
        raise AssertionError("two deliveries at once")
    with other.delivering("webhook", wait_s=0):
        pass
    other.close()


def test_an_approval_counts_once(registry: SqlRegistry) -> None:
    assert registry.approvals("sha256:e") == []
    with pytest.raises(InvalidInput, match="does not hold"):
        registry.add_approval(
            Approval(
                evaluation_digest="sha256:e",
                line=LINE,
                version=1,
                name="safety",
                actor="bob",
                identity_source="os-user",
                created_at=AT,
            )
        )


def test_a_snapshot_is_of_one_moment(registry: SqlRegistry, url: str) -> None:
    """Whatever is committed meanwhile, head and log belong together."""
    registry.create_line(LINE, AT)
    add(registry)
    other = SqlRegistry.open(url)
    with registry.snapshot(LINE) as view:
        append(other, decision(other, Kind.PIN, version=1))
        assert fold(LINE, view.decisions()) == view.head
        assert view.decisions() == []
    assert len(registry.decisions(LINE)) == 1
    other.close()
