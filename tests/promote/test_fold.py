"""Whatever is decided in whatever order: the stored head is the fold of the log."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairgate import promote as rules
from pairgate.app.release import target_alone
from pairgate.domain.release import Actor, Decision, Head, fold
from pairgate.domain.situation import Ask, Situation
from pairgate.errors import IntegrityError, PairgateError
from pairgate.store.sql import SqlRegistry, Transaction
from tests.release.story import make_pair

AT = "2026-12-01T12:00:00.000000Z"
ASK = Ask(by=Actor(name="alice", source="os-user"), at=AT, reason="because")
PAIRS = [make_pair(b"base", b"draft-1"), make_pair(b"base", b"draft-2"), make_pair(b"tuned", b"d")]

versions = st.integers(1, len(PAIRS))
moves = st.one_of(
    st.tuples(st.just("promote"), versions),
    st.tuples(st.just("rollback"), st.none() | versions),
    st.tuples(st.sampled_from(["pin", "unpin"]), versions),
    st.tuples(st.sampled_from(["disable", "enable"]), st.none()),
)
_lines = count()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> SqlRegistry:
    folder: Path = tmp_path_factory.mktemp("fold")
    return SqlRegistry.open(f"sqlite:///{folder / 'registry.db'}")


def situation(transaction: Transaction) -> Situation:
    return Situation(
        head=transaction.head,
        decisions=tuple(transaction.decisions()),
        versions=tuple(transaction.versions()),
    )


def decided(transaction: Transaction, move: str, number: int | None) -> Decision | None:
    now = situation(transaction)
    if move == "promote":
        assert number is not None
        version = now.version(number)
        return rules.promotion(now, version, ASK, override="test", reinstate="test")
    if move == "rollback":
        return rules.rollback(now, ASK, to=number)
    if move == "enable":
        return rules.enabling(now, ASK)
    if move == "disable":
        serving = rules.draft_in_production(now)
        if serving is None:
            return None
        pair = next(p for p in PAIRS if p.digest == serving.pair_digest)
        alone = transaction.ensure_version(target_alone(pair), at=AT, by="alice")
        return rules.disabling(situation(transaction), alone, ASK)
    assert number is not None
    return rules.pinning(now, now.version(number), ASK, pinned=move == "pin")


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(moves, min_size=3, max_size=12))
def test_the_head_is_the_fold(registry: SqlRegistry, steps: list[tuple[str, int | None]]) -> None:
    line = f"line-{next(_lines)}"
    registry.create_line(line, AT)
    with registry.lock(line) as transaction:
        for pair in PAIRS:
            transaction.ensure_version(pair, at=AT, by="alice")
    for move, number in steps:
        before = registry.head(line)
        try:
            with registry.lock(line) as transaction:
                decision = decided(transaction, move, number)
                if decision is not None:
                    transaction.append(decision)
        except PairgateError:
            assert registry.head(line) == before
        head = registry.head(line)
        assert head == fold(line, registry.decisions(line))
        check(registry, before, head, move)


def check(registry: SqlRegistry, before: Head, head: Head, move: str) -> None:
    assert head.production not in head.withdrawn
    assert before.production is None or head.production is not None
    assert before.pinned <= head.pinned or move == "unpin"
    if move == "rollback" and head.revision > before.revision:
        assert head.previous is None
        assert before.production in head.withdrawn | {head.production}
    states = {v.number: v.state for v in registry.versions(head.line)}
    assert [n for n, state in states.items() if state == "production"] == (
        [] if head.production is None else [head.production]
    )
    assert {n for n, state in states.items() if state == "withdrawn"} == head.withdrawn


def log(registry: SqlRegistry, line: str) -> list[Decision]:
    registry.create_line(line, AT)
    with registry.lock(line) as transaction:
        for pair in PAIRS:
            transaction.ensure_version(pair, at=AT, by="alice")
        for number in (1, 2, 3):
            made = decided(transaction, "promote", number)
            assert made is not None
            transaction.append(made)
    return registry.decisions(line)


def test_fold_finds_an_edit_a_gap_and_another_order(registry: SqlRegistry) -> None:
    from dataclasses import replace

    one, two, three = log(registry, "tampered")
    with pytest.raises(IntegrityError, match="decision 2 was altered"):
        fold("tampered", [one, replace(two, reason="another"), three])
    with pytest.raises(IntegrityError, match="decision 2 is missing"):
        fold("tampered", [one, three])
    with pytest.raises(IntegrityError):
        fold("tampered", [two, one, three])
    with pytest.raises(IntegrityError, match="decision 2 was altered"):
        fold("tampered", [one, replace(two, reason="another").sealed(""), three])
    # Cutting the tail off is not visible from the inside: that is what `audit head` is for.
    assert fold("tampered", [one, two]).production == 2
