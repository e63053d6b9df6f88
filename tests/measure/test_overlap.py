"""Token acceptance from Σ min(p, q): the tested positions, no bias, a narrower interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pairgate.domain.evidence import Estimate, Metric, Missing
from pairgate.domain.policy import AcceptanceRule, Policy
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, TraceBatch
from pairgate.measure.overlap import overlap_metrics
from pairgate.measure.totals import Sampling, request_totals

K = 4


def trace(index: int, rounds: Sequence[tuple[int, int, int]], overlap: Sequence[float],
          temperature: float = 1.0) -> RequestTrace:  # fmt: skip
    """`rounds`: (proposed, accepted, emitted), all drafted."""
    proposed, accepted, emitted = np.array(rounds, np.int16).T
    return RequestTrace(
        index=index, request_id=str(index), domain="chat", temperature=temperature, prompt_tokens=5,
        completion_tokens=1 + int(emitted.sum()), ttft_ms=1.0, latency_ms=2.0, finish=Finish.LENGTH,
        proposed=proposed, accepted=accepted, emitted=emitted,
        round_state=np.zeros(len(rounds), np.uint8), round_ms=np.ones(len(rounds), np.float32),
        overlap=np.array(overlap, np.float32),
    )  # fmt: skip


def metrics(rows: Sequence[RequestTrace]) -> list[Metric]:
    batch = TraceBatch.from_rows(
        rows, arm=Arm.SPEC, phase=Phase.ACCEPTANCE, concurrency=1, block=0, wall_s=1.0,
        definition="pairgate.rounds.v1",
    )  # fmt: skip
    sampling = Sampling(alpha=0.05, rng=np.random.default_rng(0))
    return list(overlap_metrics(batch, request_totals(batch), sampling, domains=["chat"]))


def test_only_tested_positions_count() -> None:
    # Accepted 1 of 3, the rejection has room: two tested. Then 2 of 3 accepted, room for one.
    rows = [trace(i, [(3, 1, 2), (3, 2, 1)], [0.5, 0.25, 9, 0.75, 9, 9]) for i in range(40)]
    found = metrics(rows)
    value = found[0].value
    assert isinstance(value, Estimate)
    assert value.value == pytest.approx((0.5 + 0.25 + 0.75) / 3)
    assert [(m.scope.kind, m.scope.key) for m in found[1:]] == [
        ("domain", "chat"),
        ("temperature", "0.5-1"),
    ]


def test_a_request_without_the_log_makes_it_missing() -> None:
    rows = [trace(0, [(2, 2, 3)], [0.5, 0.5]), trace(1, [(2, 2, 3)], [])]
    for metric in metrics(rows):
        assert isinstance(metric.value, Missing)
        assert "1 of 2 requests" in metric.value.reason


def simulated(rng: np.random.Generator, n: int = 60, n_rounds: int = 6) -> list[RequestTrace]:
    rows = []
    for i in range(n):
        rounds, overlap = [], list[float]()
        for _ in range(n_rounds):
            chance = rng.uniform(0.4, 0.9, K)
            accepted = int(np.cumprod(rng.random(K) < chance).sum())
            rounds.append((K, accepted, accepted + 1))
            overlap.extend(chance)
        rows.append(trace(i, rounds, overlap))
    return rows


def test_the_mean_is_that_of_the_raw_rate_and_the_noise_is_less() -> None:
    """Sixty data sets. The paired difference of the two estimates has mean zero (|t| under 3.5:
    a false alarm of 0.0009), and the estimate from overlaps varies less than half as much."""
    raw, reduced = [], []
    for seed in range(60):
        rows = simulated(np.random.default_rng(seed))
        accepted = sum(int(r.accepted.sum()) for r in rows)
        tested = accepted + sum(int((r.accepted < r.proposed).sum()) for r in rows)
        value = metrics(rows)[0].value
        assert isinstance(value, Estimate)
        raw.append(accepted / tested)
        reduced.append(value.value)
    difference = np.subtract(raw, reduced)
    assert abs(difference.mean()) < 3.5 * difference.std(ddof=1) / len(raw) ** 0.5
    assert np.std(reduced) < 0.5 * np.std(raw)


def test_it_stands_beside_the_raw_rate(make_recorded: Callable[..., object]) -> None:
    from pairgate.measure import measure

    policy = Policy(name="test", rules=(AcceptanceRule(),))
    rows = simulated(np.random.default_rng(3), n=120)
    batch = TraceBatch.from_rows(
        rows, arm=Arm.SPEC, phase=Phase.ACCEPTANCE, concurrency=1, block=0, wall_s=1.0,
        definition="pairgate.rounds.v1",
    )  # fmt: skip
    found = {m.name: m.value for m in measure(make_recorded(batch), policy=policy).metrics
             if m.scope.kind == "overall"}  # fmt: skip
    raw, reduced = found["token_acceptance.pooled"], found["token_acceptance.overlap"]
    assert isinstance(raw, Estimate) and isinstance(reduced, Estimate)
    assert reduced.high - reduced.low < 0.5 * (raw.high - raw.low)
