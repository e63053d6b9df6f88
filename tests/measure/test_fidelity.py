"""Do the outputs agree? Hand-made divergences, and laws that agree or do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.gate_traffic import simulate_batch
from pairgate.domain.evidence import EngineInfo
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, TraceBatch
from pairgate.fidelity import compare_outputs, white_box

ENGINE = EngineInfo(
    name="native",
    version="1",
    hardware_class="cpu",
    device="cpu",
    dtype="float32",
    definition="pairgate.rounds.v1",
)


def _outputs(
    outputs: list[list[int]],
    *,
    arm: Arm,
    phase: Phase = Phase.SPEED,
    block: int = 0,
    temperature: float = 0.0,
    margins: list[float] | None = None,
) -> TraceBatch:
    rows = [
        RequestTrace(
            index=i,
            request_id=f"r{i}",
            domain="all",
            temperature=temperature,
            prompt_tokens=5,
            completion_tokens=len(tokens),
            ttft_ms=1.0,
            latency_ms=2.0,
            finish=Finish.LENGTH,
            tokens=np.array(tokens, np.int32),
            margin=np.array(margins or [], np.float32),
        )
        for i, tokens in enumerate(outputs)
    ]
    return TraceBatch.from_rows(
        rows,
        arm=arm,
        phase=phase,
        concurrency=8,
        block=block,
        wall_s=1.0,
        definition="pairgate.rounds.v1",
    )


def _recorded(
    speed: tuple[TraceBatch, ...], control: tuple[TraceBatch, ...] = (), dtype: str = "float32"
) -> Recorded:
    empty = _outputs([], arm=Arm.SPEC, phase=Phase.ACCEPTANCE)
    return Recorded(
        boundary=(),
        acceptance=empty,
        speed=speed,
        control=control,
        engine=replace(ENGINE, dtype=dtype),
        max_model_len=64,
    )


def test_greedy_divergence_is_found_where_it_begins() -> None:
    alone = _outputs([[1, 2, 3, 4], [5, 6, 7], [8, 9]], arm=Arm.TARGET)
    drafted = _outputs([[1, 2, 3, 4], [5, 0, 7], [8, 9, 1]], arm=Arm.SPEC)
    found = compare_outputs(_recorded((alone, drafted)))
    assert (found.n_greedy_requests, found.n_divergent) == (3, 2)
    assert found.n_greedy_tokens == 4 + 2 + 3  # up to and with the first difference
    assert found.n_near_tie == found.n_unclassified == 0  # float32: every one is real


@pytest.mark.parametrize(
    ("margins", "near", "unknown"),
    [([9.0, 0.1, 9.0], 1, 0), ([0.1, 3.0, 0.1], 0, 0), (None, 0, 1)],
)
def test_near_ties_in_low_precision(margins: list[float] | None, near: int, unknown: int) -> None:
    alone = _outputs([[1, 2, 3]], arm=Arm.TARGET, margins=margins)
    drafted = _outputs([[1, 7, 3]], arm=Arm.SPEC)
    found = compare_outputs(_recorded((alone, drafted), dtype="bfloat16"))
    assert (found.n_divergent, found.n_near_tie, found.n_unclassified) == (1, near, unknown)


def test_the_control_compares_two_runs_of_the_target() -> None:
    first = _outputs([[1, 2], [3, 4]], arm=Arm.TARGET, phase=Phase.CONTROL, block=0)
    second = _outputs([[1, 2], [3, 5]], arm=Arm.TARGET, phase=Phase.CONTROL, block=1)
    found = compare_outputs(_recorded((), (first, second)))
    assert (found.n_control_requests, found.n_control_divergent) == (2, 1)


def _sampled(rng: np.random.Generator, law: NDArray[np.float64], arm: Arm) -> TraceBatch:
    return _outputs(
        [rng.choice(len(law), 64, p=law).tolist() for _ in range(80)], arm=arm, temperature=1.0
    )


def test_sampled_outputs_are_compared_in_law() -> None:
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.full(100, 0.3))
    alone = _sampled(rng, law, Arm.TARGET)
    same = compare_outputs(_recorded((alone, _sampled(rng, law, Arm.SPEC))))
    assert all(abs(score.z) < 3.48 for score in same.scores)
    assert same.n_sampled_tokens == 80 * 64
    assert "sampled output" in same.smallest_defect
    flat = law**0.6 / (law**0.6).sum()
    other = compare_outputs(_recorded((alone, _sampled(rng, flat, Arm.SPEC))))
    assert max(abs(score.z) for score in other.scores) > 3.48


def _with_overlap(acceptance: NDArray[np.float64], reported: NDArray[np.float64]) -> TraceBatch:
    rng = np.random.default_rng(5)
    batch = simulate_batch(acceptance, np.full(len(acceptance), 64), rng)
    overlap = np.repeat(reported[batch.round_request], batch.proposed).astype(np.float32)
    ends = np.concatenate(([0], np.cumsum(batch.proposed, dtype=np.int64)))[batch.round_offsets]
    return replace(batch, overlap=overlap, overlap_offsets=ends)


def test_white_box_agrees_with_an_honest_log_and_not_with_a_lenient_one() -> None:
    own = np.random.default_rng(1).beta(14, 6, 300)
    honest = white_box(_with_overlap(own, own))
    assert honest.score is not None
    assert abs(honest.score.z) < 3.48
    # A decoder that accepts 3 % more than the overlap allows bends the output.
    lenient = white_box(_with_overlap(np.minimum(own * 1.03, 1.0), own))
    assert lenient.score is not None
    assert lenient.score.z > 3.48


def test_white_box_needs_the_engines_overlaps() -> None:
    batch = simulate_batch(np.full(50, 0.7), np.full(50, 40), np.random.default_rng(2))
    assert white_box(batch).score is None


def test_accepting_outside_the_support_is_a_violation() -> None:
    own = np.full(20, 0.7)
    batch = _with_overlap(own, own)
    impossible = np.where(np.arange(len(batch.overlap)) == 0, 0.0, batch.overlap)
    accepted = batch.accepted.copy()
    assert accepted[0] >= 1
    assert white_box(replace(batch, overlap=impossible.astype(np.float32))).n_violations == 1
