"""Counting rules on hand-made rounds, and against the law that made the rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_traffic import simulate_batch
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, RoundState, TraceBatch
from pairgate.measure.counts import consistent, counts_of, usable
from pairgate.measure.totals import request_totals, session_clusters, verified_rounds


def _request(
    rounds: list[tuple[int, int, int]], *, state: int = RoundState.DRAFTED, index: int = 0
) -> RequestTrace:
    """A request from (proposed, accepted, emitted) per round."""
    proposed, accepted, emitted = (np.array(c, np.int16) for c in zip(*rounds, strict=True))
    return RequestTrace(
        index=index,
        request_id=f"r{index}",
        domain="sql",
        temperature=1.0,
        prompt_tokens=10,
        completion_tokens=1 + int(emitted.sum()),
        ttft_ms=1.0,
        latency_ms=2.0,
        finish=Finish.LENGTH,
        proposed=proposed,
        accepted=accepted,
        emitted=emitted,
        round_state=np.full(len(rounds), state, np.uint8),
        round_ms=np.ones(len(rounds), np.float32),
    )


def _batch(*rows: RequestTrace) -> TraceBatch:
    return TraceBatch.from_rows(
        rows,
        arm=Arm.SPEC,
        phase=Phase.ACCEPTANCE,
        concurrency=8,
        block=0,
        wall_s=1.0,
        definition="pairgate.rounds.v1",
    )


@pytest.mark.parametrize(
    ("one_round", "committed", "tested"),
    [
        ((5, 3, 4), 3, 4),  # a rejection with its recovered token
        ((5, 5, 6), 5, 5),  # all accepted, and a bonus token
        ((5, 0, 1), 0, 1),  # rejected at once
        ((5, 3, 3), 3, 3),  # max_tokens cut the recovered token: the rejection was outside
        ((5, 4, 2), 2, 2),  # EOS inside the accepted prefix
        ((5, 5, 5), 5, 5),  # cut before the bonus token
        ((2, 1, 2), 1, 2),  # a shorter draft
    ],
)
def test_the_last_round_is_censored(
    one_round: tuple[int, int, int], committed: int, tested: int
) -> None:
    totals = request_totals(_batch(_request([one_round])))
    assert (totals.committed[0], totals.tested[0]) == (committed, tested)
    assert totals.accepted[0] == one_round[1]  # the raw view keeps what the draft did


def test_only_drafted_rounds_enter_a_denominator() -> None:
    plain = _request([(0, 0, 1), (0, 0, 1)], state=RoundState.SKIPPED, index=1)
    batch = _batch(_request([(5, 3, 4)]), plain)
    totals = request_totals(batch)
    assert totals.rounds.tolist() == [1, 0]
    assert totals.tested.tolist() == [4, 0]
    (counts,) = counts_of([batch])
    assert (counts.n_rounds, counts.n_skipped_rounds, counts.n_plain_tokens) == (1, 2, 2)


def test_censored_acceptance_is_unbiased_for_short_answers() -> None:
    """200,000 answers of 8 tokens at 0.7: the standard error is 0.0005."""
    rng = np.random.default_rng(0)
    n = 200_000
    totals = request_totals(simulate_batch(np.full(n, 0.7), np.full(n, 8), rng))
    assert totals.committed.sum() / totals.tested.sum() == pytest.approx(0.7, abs=0.002)


@pytest.mark.parametrize(
    "one_round", [(5, 6, 6), (5, 2, 4), (5, -1, 0), (5, 3, -1)], ids=lambda r: str(r)
)
def test_impossible_counters_are_found(one_round: tuple[int, int, int]) -> None:
    batch = _batch(_request([(5, 3, 4)]), _request([one_round], index=1))
    assert consistent(batch).tolist() == [True, False]
    assert len(usable(batch)) == 1


def test_tokens_that_do_not_add_up_are_found() -> None:
    batch = _batch(_request([(5, 3, 4)]), _request([(5, 3, 4)], index=1))
    wrong = replace(batch, completion_tokens=np.array([5, 9], np.int32))
    assert consistent(wrong).tolist() == [True, False]


def test_failed_requests_are_counted_and_add_nothing() -> None:
    batch = _batch(_request([(5, 3, 4)]), _request([(5, 3, 4)], index=1))
    failed = replace(batch, finish=np.array([Finish.LENGTH, Finish.ERROR], np.uint8))
    (counts,) = counts_of([failed])
    assert (counts.n_requests, counts.n_failed, counts.n_emitted) == (2, 1, 4)


def test_sessions_cluster_and_requests_without_one_stand_alone() -> None:
    ids = session_clusters(np.array(["a", "", "b", "a", ""]))
    assert ids[0] == ids[3]
    assert len(set(ids.tolist())) == 4


def test_rounds_know_their_request() -> None:
    batch = _batch(_request([(5, 3, 4), (5, 1, 2)]), _request([(5, 0, 1)], index=1))
    assert verified_rounds(batch).request.tolist() == [0, 0, 1]
