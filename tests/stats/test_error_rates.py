"""The gate's error rates, in short; `python -m benchmarks.gate_error_rates` has the rest.

Tolerances: of n simulations with a true rate of 0.05, the stated share is exceeded with a
probability under 0.002.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_acceptance import (
    Samples,
    acceptance_cells,
    capitals,
    drawn,
    pooled_bounds,
    rule_ends,
)
from benchmarks.gate_error_rates import PARTS, Table, main, written
from benchmarks.gate_parts import (
    DRIFTS,
    KINDS,
    fallback_fired,
    flagged,
    share_cleared,
    speed_cleared,
)
from benchmarks.gate_scenarios import SCENARIOS, whole_cell
from benchmarks.gate_traffic import SHAPES, Shape, generator, population, simulate_batch
from benchmarks.gate_whole import candidate_of, run, slice_of
from pairgate.app.early import Looks
from pairgate.domain.policy import AcceptanceRule, Policy
from pairgate.domain.verdict import Outcome
from pairgate.measure.totals import EARLY_SHARE, request_totals

ALPHA = 0.05


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_false_pass_is_near_alpha_and_naive_is_not(shape: Shape) -> None:
    """80 simulations: at most 0.15. FAIL at the floor has two bounds, each at alpha: 0.19."""
    decided, false_pass = acceptance_cells(
        shape, n_sim=80, alpha=ALPHA, seed=7, sizes=(100, 300), distances=(-0.05, 0.0, 0.10)
    )
    for found in false_pass:
        assert found.mean <= 0.15
        assert found.pooled <= 0.15
    assert max(found.naive for found in false_pass) >= 0.16
    by = {(c.n, c.distance): c for c in decided}
    for n in (100, 300):
        assert by[n, 0.0].passed <= 0.15
        assert by[n, 0.0].failed <= 0.19
        assert by[n, -0.05].passed <= 0.03
        assert by[n, 0.10].failed <= 0.03
        assert by[n, 0.10].passed >= (0.7 if n == 100 else 0.95)
    assert by[300, 0.10].n_used < 300


def test_the_vectorised_rule_is_the_one_that_evaluations_use() -> None:
    """On the same requests: where a look ends the pass, and with what."""
    rng, n = generator(3, "same"), 320
    ended = []
    for shape, shift in ((SHAPES[0], 0.0), (SHAPES[0], 0.09), (SHAPES[1], 0.1), (SHAPES[2], 0.0),
                         (SHAPES[3], -0.2)):  # fmt: skip
        requests = shape.draw(rng, n)
        rates = np.clip(requests.acceptance + shift, 0.0, 1.0)
        batch = simulate_batch(rates, requests.max_tokens, rng)
        totals = request_totals(batch)
        assert (totals.tested > 0).all()
        policy = Policy(name="p", rules=(AcceptanceRule(threshold=0.65, advise_threshold=None),))
        looks = Looks(candidate_of(policy), slice_of(batch, shape.longest), ALPHA)
        stops = [k for k in range(64, n, 64) if looks.stop(batch.where(np.arange(n) < k))]
        one = Samples(
            committed=totals.committed[None].astype(float),
            tested=totals.tested[None].astype(float),
            longest=shape.longest,
        )
        at = capitals(one, 0.65, alpha=ALPHA)
        late = ALPHA * (1 - EARLY_SHARE)
        (end,) = pooled_bounds(one, alphas=(late,), rng=np.random.default_rng(policy.seed))
        passed, failed, used = rule_ends(at, end, 0.65, n)
        if stops:
            assert used[0] == stops[0]
            first = Looks(candidate_of(policy), slice_of(batch, shape.longest), ALPHA)
            assert first.stop(batch.where(np.arange(n) < stops[0]))
            assert bool(failed[0]) is first.failed
            assert bool(passed[0]) is not first.failed
        else:
            assert used[0] == n
            outcome = looks.outcome(batch, ())
            assert (bool(passed[0]), bool(failed[0])) == (
                outcome is Outcome.PASS,
                outcome is Outcome.FAIL,
            )
        ended.append((int(used[0]), bool(passed[0]), bool(failed[0])))
    assert len(set(ended)) >= 3  # the cases differ


def test_one_kind_is_seldom_called_two() -> None:
    """12 simulations with a false alarm of 0.05 at most: three or more have probability 0.02 there,
    and 0.0002 at the 0.01 of a single mode."""
    for kind in KINDS[:4]:
        assert flagged(kind, 200, n_sim=12, seed=2) <= (3 if "flat" in kind.name else 2) / 12
    assert flagged(KINDS[4], 200, n_sim=6, seed=2) == 1.0


def test_a_share_at_its_cap_is_seldom_cleared() -> None:
    """8 simulations of a true 0.05: over 3 have probability 0.0004."""
    assert share_cleared(SHAPES[2], 150, n_sim=8, alpha=ALPHA, seed=3) <= 3 / 8


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda d: d.name)
def test_drift_does_not_make_a_draft_faster(drift) -> None:
    """400 simulations: at most 0.085."""
    found = speed_cleared(drift, 1.0, n_sim=400, alpha=ALPHA, seed=4)
    assert found.abba <= 0.085
    assert speed_cleared(drift, 1.1, n_sim=100, alpha=ALPHA, seed=4).abba >= 0.85
    if drift.trend:
        assert found.one_after_the_other >= 0.26


def test_the_literal_fallback_rule_fires_on_healthy_requests() -> None:
    healthy = fallback_fired(0.88, 25, n_requests=1000, seed=5)  # 0.70 of the proposed tokens
    assert healthy.literal >= 0.6
    assert healthy.rule <= 0.01
    assert fallback_fired(0.45, 100, n_requests=500, seed=5).rule >= 0.9


def test_a_whole_policy_seldom_passes_at_its_boundary() -> None:
    """4 evaluations of a true 0.05: three or more have probability 0.0005."""
    name = "margin to production"
    both = whole_cell(name, 0.0, n_sim=2, seed=6) + whole_cell(name, 0.0, n_sim=2, seed=6, part=1)
    assert (both.n_sim, both.n_planned) == (4, 256)
    assert both.n_passed <= 2


def test_a_whole_policy_passes_well_above_and_fails_well_below() -> None:
    scenario = next(s for s in SCENARIOS if s.name == "floor, mild traffic")
    make, rng = scenario.make(6), generator(6, "sides")
    assert run(make(rng, 0.12), rng).outcome is Outcome.PASS
    ended = run(make(rng, -0.15), rng)
    assert (ended.outcome, ended.n) == (Outcome.FAIL, 64)


def test_populations_know_their_truth() -> None:
    """Censoring of the last round keeps the token acceptance of the law (± 0.005 of 3,000)."""
    flat = replace(
        SHAPES[0],
        draw=lambda rng, n: replace(SHAPES[0].draw(rng, n), acceptance=np.full(n, 0.7)),
    )
    found = population(flat, generator(1, "flat"), 3000)
    assert found.pooled == pytest.approx(0.7, abs=0.005)
    assert drawn(found, flat, 2, 5, generator(1)).tested.shape == (2, 5)


def test_tables_are_written_between_their_markers(capsys: pytest.CaptureFixture[str]) -> None:
    page = "a\n<!-- error rates: rules -->\nold\n<!-- error rates: rules end -->\nz\n"
    table = Table(title="t", header=("x", "y"), rows=[["1", "2"]]).markdown
    assert table.splitlines() == ["**t**", "", "| x | y |", "| --- | --- |", "| 1 | 2 |"]
    text = written(page, "rules", table)
    assert "old" not in text and table in text and text.endswith("z\n")
    with pytest.raises(ValueError, match="no markers"):
        written("", "rules", table)
    with pytest.raises(SystemExit):
        main(["--part", "everything"])
    assert set(PARTS) == {"acceptance", "rules", "whole"}
