"""Bounds of single intervals: known values, degenerate samples, coverage at a fixed seed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as sps

from pairgate.domain.evidence import Estimate, Missing
from pairgate.errors import InvalidInput
from pairgate.stats.betting import (
    Range,
    betting_bounds,
    betting_mean,
    refutes_mean_at_most,
    running_bounds,
)
from pairgate.stats.blocks import block_ratio, quantile_interval
from pairgate.stats.paired import paired_difference
from pairgate.stats.proportion import (
    clopper_pearson,
    share_of_units,
    units_without_event,
    wilson,
)
from pairgate.stats.ratio import ClusterSums, bootstrap_t_bounds, clustered, pooled_ratio


def test_betting_bounds_refute_exactly_what_lies_outside() -> None:
    x = np.random.default_rng(1).beta(8, 2, 200)
    low, high = betting_bounds(x, alpha=0.05)
    assert low < x.mean() < high
    assert refutes_mean_at_most(x, low - 0.002, alpha=0.05)
    assert not refutes_mean_at_most(x, low + 0.002, alpha=0.05)
    assert refutes_mean_at_most(1 - x, 1 - high - 0.002, alpha=0.05)


def test_betting_bounds_tighten_along_the_prefix() -> None:
    x = np.random.default_rng(2).beta(8, 2, 400)
    low, high = running_bounds(x, alpha=0.05, at=(30, 100, 400))
    assert (np.diff(low) >= -1e-4).all()
    assert (np.diff(high) <= 1e-4).all()


def test_betting_looks_less_often_at_long_samples_and_stays_close() -> None:
    x = np.random.default_rng(3).beta(8, 2, 20_000)
    low, high = betting_bounds(x, alpha=0.05)
    assert x.mean() - 0.02 < low < x.mean() < high < x.mean() + 0.02


def test_betting_of_a_perfect_draft_is_not_certain() -> None:
    found = betting_mean(np.ones(120), alpha=0.05, unit="requests")
    assert 0.94 < found.low < 0.98
    assert found.high == found.value == 1.0


def test_betting_scales_to_its_support_and_refuses_what_leaves_it() -> None:
    unit = betting_mean(np.array([0.2, 0.5] * 30), alpha=0.05, unit="requests")
    wide = betting_mean(
        np.array([2.0, 5.0] * 30), alpha=0.05, unit="requests", support=Range(low=0.0, high=10.0)
    )
    assert wide.low == pytest.approx(10 * unit.low, abs=1e-3)
    with pytest.raises(InvalidInput, match="leave the range"):
        betting_mean(np.array([0.5, 1.5]), alpha=0.05, unit="requests")


def test_wilson_and_clopper_pearson_agree_with_scipy() -> None:
    exact = sps.binomtest(7, 90, alternative="less").proportion_ci(0.95, "exact")
    assert clopper_pearson(7, 90, alpha=0.05)[1] == pytest.approx(exact.high)
    score = sps.binomtest(7, 90, alternative="less").proportion_ci(0.95, "wilson")
    assert wilson(7 / 90, 90, alpha=0.05)[1] == pytest.approx(score.high)


@pytest.mark.parametrize(("share", "n"), [(0.05, 59), (0.02, 149), (0.01, 299)])
def test_units_without_event(share: float, n: int) -> None:
    assert units_without_event(share, alpha=0.05) == n
    assert clopper_pearson(0, n, alpha=0.05)[1] <= share < clopper_pearson(0, n - 1, alpha=0.05)[1]


def test_share_of_units_counts_sessions_when_requests_repeat_each_other() -> None:
    session = np.repeat(np.arange(100), 5)
    events = np.repeat(np.arange(100) < 20, 5)
    alone = share_of_units(events, np.arange(500), alpha=0.05, unit="requests")
    together = share_of_units(events, session, alpha=0.05, unit="sessions")
    assert alone.n == 500
    assert together.n == pytest.approx(100, abs=2)
    nothing = share_of_units(np.zeros(500, bool), session, alpha=0.05, unit="sessions")
    assert nothing.n == 100


def test_pooled_ratio_method_follows_n() -> None:
    rng = np.random.default_rng(4)
    for n, method in ((150, "bootstrap-t"), (1500, "delta")):
        tested = rng.integers(20, 80, n).astype(float)
        accepted = rng.binomial(tested.astype(int), rng.beta(8, 2, n)).astype(float)
        sums = ClusterSums(numerator=accepted, denominator=tested)
        found = pooled_ratio(sums, alpha=0.05, rng=rng, unit="requests")
        assert isinstance(found, Estimate)
        assert (found.method, found.n) == (method, n)
        assert found.low < sums.ratio == found.value < found.high


def test_pooled_ratio_without_spread_falls_back_to_betting() -> None:
    ones = ClusterSums(numerator=np.full(120, 40.0), denominator=np.full(120, 40.0))
    assert bootstrap_t_bounds(ones, alpha=0.05, rng=np.random.default_rng(0)) is None
    for n in (120, 1200):
        sums = ClusterSums(numerator=np.full(n, 40.0), denominator=np.full(n, 40.0))
        found = pooled_ratio(sums, alpha=0.05, rng=np.random.default_rng(0), unit="requests")
        assert isinstance(found, Estimate)
        assert found.method == "betting"
        assert 0.9 < found.low < 1.0 == found.high
    nearly = np.full(120, 40.0)
    nearly[3] = 39.0
    sums = ClusterSums(numerator=nearly, denominator=np.full(120, 40.0))
    found = pooled_ratio(sums, alpha=0.05, rng=np.random.default_rng(0), unit="requests")
    assert isinstance(found, Estimate)
    assert found.low > 0.9


def test_pooled_ratio_of_a_few_long_requests_is_missing() -> None:
    tested = np.ones(200)
    tested[:5] = 10_000.0
    sums = ClusterSums(numerator=0.7 * tested, denominator=tested)
    found = pooled_ratio(sums, alpha=0.05, rng=np.random.default_rng(0), unit="requests")
    assert isinstance(found, Missing)
    assert "5.0 of equal length" in found.reason


def test_clusters_without_a_denominator_are_left_out() -> None:
    sums = clustered(np.array([1.0, 0, 2]), np.array([2.0, 0, 4]), np.array([0, 1, 0]))
    assert len(sums) == 1
    assert sums.ratio == 0.5


def test_block_ratio_needs_blocks_and_hits_the_ratio() -> None:
    assert isinstance(block_ratio(np.array([1.5]), np.array([1.0]), alpha=0.05), Missing)
    assert isinstance(block_ratio(np.array([1.0, np.nan]), np.ones(2), alpha=0.05), Missing)
    # Drift of the machine is common to both arms of a block and cancels.
    drift = np.array([1.0, 1.4, 0.7])
    found = block_ratio(1.5 * drift * [1.0, 1.01, 0.99], drift, alpha=0.05)
    assert isinstance(found, Estimate)
    assert found.value == pytest.approx(1.5, rel=0.01)
    assert 1.4 < found.low < 1.5 < found.high < 1.6


def test_block_ratio_covers_at_its_level() -> None:
    """1,000 simulations: a rate of 0.05 lies in 0.03 to 0.07 with probability 0.996."""
    rng = np.random.default_rng(5)
    with_draft = np.exp(rng.normal(0.0, 0.05, (1000, 3)))
    above = 0
    for row in with_draft:
        found = block_ratio(row, np.ones(3), alpha=0.05)
        assert isinstance(found, Estimate)
        above += found.low > 1.0
    assert 30 <= above <= 70


def test_quantile_interval_of_a_known_sample() -> None:
    found = quantile_interval(np.arange(1.0, 1002.0), 0.5, alpha=0.05, unit="requests")
    assert isinstance(found, Estimate)
    assert found.value == 501.0
    assert found.low == pytest.approx(501 - 26, abs=2)
    assert found.high == pytest.approx(501 + 26, abs=2)
    assert isinstance(quantile_interval(np.empty(0), 0.5, alpha=0.05, unit="requests"), Missing)


def test_paired_difference_clusters_by_session() -> None:
    rng = np.random.default_rng(6)
    session_effect = np.repeat(rng.normal(0.0, 0.1, 120), 5)
    difference = session_effect + rng.normal(0.0, 0.02, 600)
    alone = paired_difference(difference, np.arange(600), alpha=0.05, unit="requests")
    together = paired_difference(
        difference, np.repeat(np.arange(120), 5), alpha=0.05, unit="sessions"
    )
    assert isinstance(alone, Estimate) and isinstance(together, Estimate)
    assert together.n == 120
    assert together.high - together.low > 1.8 * (alone.high - alone.low)
    few = paired_difference(difference[:50], np.arange(50), alpha=0.05, unit="requests")
    assert isinstance(few, Estimate)
    assert few.method == "betting"
