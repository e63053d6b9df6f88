"""Per-request counts against a loop, and the null band's own error rates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, TraceBatch
from pairgate.review.acceptance import (
    RequestAcceptance,
    histogram,
    histograms,
    request_acceptance,
    worst_requests,
)


def requests(tested: np.ndarray, accepted: np.ndarray) -> RequestAcceptance:
    n = len(tested)
    return RequestAcceptance(
        request_id=np.array([f"r{i:04d}" for i in range(n)]),
        domain=np.array(["all"] * n),
        temperature=np.zeros(n),
        prompt_tokens=np.ones(n, np.int32),
        completion_tokens=np.ones(n, np.int32),
        tested=tested,
        accepted=accepted,
    )


def test_counts_equal_those_of_a_loop_over_rounds() -> None:
    # (proposed, accepted, emitted, state): full, rejected, cut inside the accepted, fallen back.
    rounds = [(5, 5, 6, 0), (5, 2, 3, 0), (5, 4, 2, 0), (0, 0, 1, 1)]
    row = RequestTrace(
        index=0, request_id="a", domain="d", temperature=0.0, prompt_tokens=3,
        completion_tokens=13, ttft_ms=1.0, latency_ms=2.0, finish=Finish.LENGTH,
        proposed=np.array([r[0] for r in rounds], np.int16),
        accepted=np.array([r[1] for r in rounds], np.int16),
        emitted=np.array([r[2] for r in rounds], np.int16),
        round_state=np.array([r[3] for r in rounds], np.uint8),
        round_ms=np.ones(4, np.float32),
    )  # fmt: skip
    batch = TraceBatch.from_rows(
        [row], arm=Arm.SPEC, phase=Phase.ACCEPTANCE, concurrency=1, block=0, wall_s=1.0,
        definition="d",
    )  # fmt: skip
    found = request_acceptance(batch)
    # 5 of 5; 2 accepted and a rejection; 2 emitted of 4 accepted, nothing else had room.
    assert found.accepted.tolist() == [5 + 2 + 2]
    assert found.tested.tolist() == [5 + 3 + 2]


def test_failed_requests_are_left_out(batch: TraceBatch) -> None:
    found = request_acceptance(batch)
    assert len(found) == len(batch) - 1
    assert "req-00005" not in found.request_id


def test_identical_requests_stay_inside_the_band() -> None:
    """At 95 % per bin about one bin in twenty is expected outside; over 20 seeds the share is
    measured with a standard error of about 0.01."""
    outside = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tested = rng.integers(40, 120, 300)
        found = histogram("all", requests(tested, rng.binomial(tested, 0.7)), seed=seed + 1000)
        assert found is not None
        outside.append(found.n_outside / len(found.counts))
    assert np.mean(outside) < 0.08


def test_two_kinds_of_requests_leave_the_band() -> None:
    rng = np.random.default_rng(1)
    tested = rng.integers(40, 120, 300)
    alpha = np.where(np.arange(300) % 3 == 0, 0.35, 0.8)
    found = histogram("all", requests(tested, rng.binomial(tested, alpha)), seed=2)
    assert found is not None
    assert found.n_outside >= 8
    assert found.counts.sum() == found.n == 300


def test_short_requests_make_no_histogram_and_are_counted() -> None:
    short = requests(np.array([3, 14]), np.array([1, 7]))
    assert histogram("all", short, seed=1) is None
    mixed = requests(np.array([3, 15, 15]), np.array([1, 9, 15]))
    found = histogram("all", mixed, seed=1)
    assert found is not None
    assert (found.n, found.n_left_out) == (2, 1)
    # 9/15 = 0.6 belongs to the bin that starts at 0.6, 1.0 to the last.
    assert found.counts[12] == 1
    assert found.counts[19] == 1


def test_worst_come_first_and_longest_of_equals(make_batch: Callable[..., TraceBatch]) -> None:
    found = requests(np.array([20, 40, 30, 10]), np.array([10, 20, 3, 0]))
    assert worst_requests(found, 2).request_id.tolist() == ["r0002", "r0001"]
    lowest = histograms(request_acceptance(make_batch()), seed=1)[0]
    assert lowest.domain == "sql"
