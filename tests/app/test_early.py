"""Stopping early: what ends a replay, and that a pair at the floor seldom passes by it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from benchmarks.gate_acceptance import acceptance_cells
from benchmarks.gate_traffic import SHAPES, Shape, population, simulate_batch
from benchmarks.gate_whole import candidate_of, slice_of
from pairgate.app.early import Looks
from pairgate.app.evidence import Candidate
from pairgate.domain.evidence import BoundaryResult
from pairgate.domain.policy import (
    AcceptanceRule,
    BimodalityRule,
    Mode,
    NonInferiorityRule,
    Policy,
    Rule,
    SpeedupRule,
)
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.domain.verdict import Outcome

BLOCK = 64
FLOOR = AcceptanceRule(threshold=0.6, advise_threshold=None)


def _candidate(*rules: Rule, with_incumbent: bool = False) -> Candidate:
    return candidate_of(Policy(name="test", rules=rules), with_incumbent=with_incumbent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a simulated acceptance pass ended."""

    outcome: Outcome
    n: int


def _run(batch: TraceBatch, looks: Looks) -> Ended:
    """Look after every block, as the replay does; judge at the end if nothing stopped before."""
    rows = np.arange(len(batch))
    for n in range(BLOCK, len(batch), BLOCK):
        if looks.stop(batch.where(rows < n)):
            return Ended(outcome=Outcome.FAIL if looks.failed else Outcome.PASS, n=n)
    return Ended(outcome=looks.outcome(batch, ()), n=len(batch))


def _simulated(shape: Shape, n: int, rng: np.random.Generator, shift: float = 0.0) -> TraceBatch:
    drawn = shape.draw(rng, n)
    return simulate_batch(np.clip(drawn.acceptance + shift, 0.0, 1.0), drawn.max_tokens, rng)


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]], ids=lambda s: s.name)
def test_a_pair_at_the_floor_seldom_passes_with_looks_at_every_block(shape: Shape) -> None:
    """40 simulations: a true rate of 0.05 shows more than 0.15 with probability 0.003."""
    rng = np.random.default_rng(5)
    candidate = _candidate(replace(FLOOR, threshold=population(shape, rng).truth))
    passed = 0
    for _ in range(40):
        batch = _simulated(shape, 256, rng)
        looks = Looks(candidate, slice_of(batch, shape.longest), 0.05)
        passed += _run(batch, looks).outcome is Outcome.PASS
    assert passed / 40 <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_false_pass_with_stopping_on(shape: Shape) -> None:
    """800 simulations of up to 640 requests, by the rule's vectorised form (which is compared with
    this one in tests/stats): a true rate of 0.05 shows over 0.075 with probability 0.0012."""
    cells, _ = acceptance_cells(
        shape, n_sim=800, alpha=0.05, seed=6, sizes=(640,), distances=(0.0,)
    )
    assert cells[0].passed <= 0.075


def test_a_clear_pair_needs_a_part_of_the_requests() -> None:
    rng = np.random.default_rng(1)
    good, bad = [], []
    for _ in range(10):
        batch = _simulated(SHAPES[0], 960, rng, shift=0.08)
        good.append(_run(batch, Looks(_candidate(FLOOR), slice_of(batch), 0.05)))
        batch = _simulated(SHAPES[0], 960, rng, shift=-0.25)
        bad.append(_run(batch, Looks(_candidate(FLOOR), slice_of(batch), 0.05)))
    assert {e.outcome for e in good} == {Outcome.PASS}
    assert {e.outcome for e in bad} == {Outcome.FAIL}
    assert np.mean([e.n for e in good]) <= 400
    assert np.mean([e.n for e in bad]) <= 200
    assert min(e.n for e in good) >= 100


def _batch(n: int = 320, mean: float = 0.8, domain: str = "all", **fields: object) -> TraceBatch:
    rng = np.random.default_rng(3)
    rates = rng.beta(40 * mean, 40 * (1 - mean), n)
    names = np.array(["rare"] * 20 + [domain] * (n - 20)) if domain != "all" else domain
    return replace(simulate_batch(rates, np.full(n, 60), rng, domain=names), **fields)  # type: ignore[arg-type]


def test_what_a_pass_waits_for() -> None:
    batch = _batch()
    rows = np.arange(len(batch))

    def stops(*rules: Rule, n: int = 256, of: TraceBatch = batch, **options: bool) -> bool:
        candidate = _candidate(*rules, **options)
        return Looks(candidate, slice_of(of), 0.05).stop(of.where(rows < n))

    assert stops(FLOOR)
    assert not stops(FLOOR, n=64)  # a hundred requests at least
    rare = _batch(domain="common")
    shuffled = rare.where(rows >= 0)
    assert not stops(FLOOR, of=shuffled)  # 20 requests of a domain decide nothing
    assert stops(replace(FLOOR, other=("rare",)), of=shuffled)
    # The share under a floor has no bound that holds at every look.
    assert not stops(FLOOR, BimodalityRule(mode=Mode.GATE, max_share=0.5))
    # Production has to be known on the same requests where it is compared with.
    assert not stops(FLOOR, NonInferiorityRule(), with_incumbent=True)
    looks = Looks(
        _candidate(FLOOR, NonInferiorityRule(margin=0.1), with_incumbent=True),
        slice_of(batch),
        0.05,
        incumbent=lambda: replace(batch, arm=Arm.INCUMBENT),
    )
    looks.screened((), ())
    assert looks.stop(batch.where(rows < 256))


def test_a_domain_that_has_not_come_up_yet_is_waited_for() -> None:
    rng = np.random.default_rng(4)
    late = np.array(["a"] * 256 + ["b"] * 64)
    batch = simulate_batch(rng.beta(32, 8, 320), np.full(320, 60), rng, domain=late)
    looks = Looks(_candidate(FLOOR), slice_of(batch), 0.05)
    assert not looks.stop(batch.where(np.arange(320) < 256))


def test_all_goes_on_after_a_fail() -> None:
    batch = _batch(mean=0.3)
    first = batch.where(np.arange(len(batch)) < 64)
    ends = Looks(_candidate(FLOOR), slice_of(batch), 0.05)
    assert ends.stop(first) and ends.failed
    assert not ends.goes_on(first, ())
    assert ends.why == "it had certainly failed (acceptance)"
    anyway = Looks(_candidate(FLOOR), slice_of(batch), 0.05, goes_on_anyway=True)
    assert not anyway.stop(first)
    assert anyway.goes_on(first, ())


def test_a_boundary_request_that_fails_with_the_draft_ends_it() -> None:
    batch = _batch()
    looks = Looks(_candidate(FLOOR), slice_of(batch), 0.05)
    results = tuple(
        BoundaryResult(name="empty prompt", arm=arm, ok=arm is Arm.TARGET)
        for arm in (Arm.TARGET, Arm.SPEC)
    )
    looks.screened(results, ())
    assert looks.stop(batch.where(np.arange(len(batch)) < 64))
    assert "boundary" in looks.why


def test_speed_that_fails_ends_it_too() -> None:
    batch = _batch()
    slow = [
        replace(batch, arm=arm, phase=Phase.SPEED, block=block, wall_s=wall_s * (1 + 0.01 * block))
        for block in range(3)
        for arm, wall_s in ((Arm.SPEC, 2.0), (Arm.TARGET, 1.0 + 0.002 * block))
    ]
    looks = Looks(_candidate(FLOOR, SpeedupRule()), slice_of(batch), 0.05)
    assert not looks.goes_on(batch, tuple(slow))
    assert "speedup" in looks.why
