"""Bounds for looks on the way: pooled ratios and shares by betting, and what they need."""

from __future__ import annotations

import numpy as np
import pytest

from pairgate.domain.evidence import Estimate
from pairgate.stats.betting import STAKES, betting_mean
from pairgate.stats.proportion import anytime_share
from pairgate.stats.ratio import ClusterSums, anytime_ratio, pooled_ratio, pooled_ratios
from pairgate.stats.sample_size import units_to_decide


def _sums(rng: np.random.Generator, n: int, rate: float = 0.6) -> ClusterSums:
    tested = np.clip(rng.lognormal(3.7, 0.9, n), 5, 256).round()
    own = rng.beta(12 * rate, 12 * (1 - rate), n)
    return ClusterSums(numerator=rng.binomial(tested.astype(int), own), denominator=tested)


def test_the_capital_is_the_product_of_the_papers_bets() -> None:
    """Against an independent computation: 1 + λ·(a − θ·b) with λ = stake / (θ · largest b)."""
    rng = np.random.default_rng(0)
    sums, alpha, largest = _sums(rng, 80, 0.75), 0.01, 256.0
    found = anytime_ratio(sums, alpha=alpha, unit="requests", largest=largest)

    def refuted(theta: float) -> bool:
        steps = sums.numerator - theta * sums.denominator
        capital = np.cumprod(1.0 + np.outer(STAKES, steps) / (theta * largest), axis=1)
        return bool((capital.mean(axis=0) >= 1.0 / alpha).any())

    assert refuted(found.low - 1e-3)
    assert not refuted(found.low + 1e-3)


def test_a_largest_denominator_that_was_not_seen_makes_smaller_bets() -> None:
    sums = _sums(np.random.default_rng(1), 200, 0.75)
    seen = anytime_ratio(sums, alpha=0.05, unit="requests")
    planned = anytime_ratio(sums, alpha=0.05, unit="requests", largest=1024.0)
    assert planned.low < seen.low < sums.ratio


@pytest.mark.parametrize("seed", range(3))
def test_looking_at_every_request_seldom_refutes_the_truth(seed: int) -> None:
    """100 runs of 20 looks at a true ratio of 0.6: more than 12 have probability 0.001."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(100):
        sums = _sums(rng, 400)
        # With equal laws for short and long ones the true ratio is 0.6 exactly.
        bounds = anytime_ratio(sums, alpha=0.05, unit="requests", largest=256.0)
        wrong += bounds.low > 0.6  # the bound keeps the best of all moments
    assert wrong <= 12


def test_levels_share_their_resamples() -> None:
    sums = _sums(np.random.default_rng(2), 120)
    alphas = (0.05, 0.025, 0.0125)
    together = pooled_ratios(sums, alphas=alphas, rng=np.random.default_rng(3), unit="requests")
    lows = [e.low for e in together if isinstance(e, Estimate)]
    assert lows == sorted(lows, reverse=True)
    alone = pooled_ratio(sums, alpha=0.0125, rng=np.random.default_rng(3), unit="requests")
    assert isinstance(alone, Estimate)
    assert alone.low == lows[-1]


def test_a_share_without_events_is_bounded() -> None:
    found = anytime_share(np.zeros(200, bool), np.arange(200), alpha=0.05, unit="requests")
    assert found.low == 0.0
    assert 0.0 < found.high < 0.03


def test_the_needed_units_are_those_that_the_test_takes() -> None:
    needed = units_to_decide(0.7, 0.2, 0.6, alpha=0.05, power=0.9)
    assert needed is not None
    rng, decided = np.random.default_rng(9), 0
    for _ in range(200):
        x = rng.beta(0.7 * 4.25, 0.3 * 4.25, needed)  # a standard deviation of 0.2
        decided += betting_mean(x, alpha=0.05, unit="requests").low > 0.6
    assert 0.83 <= decided / 200 <= 0.97
    assert units_to_decide(0.5, 0.2, 0.6, alpha=0.05, power=0.9) is not None
    assert units_to_decide(0.6, 0.2, 0.6, alpha=0.05, power=0.9) is None
    closer = units_to_decide(0.65, 0.2, 0.6, alpha=0.05, power=0.9)
    assert closer is not None
    assert closer > needed
