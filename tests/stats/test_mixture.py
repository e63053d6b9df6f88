from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import Missing
from pairgate.stats.mixture import Bimodality, bimodality


def _fit(acceptance: NDArray[np.float64], seed: int = 0) -> Bimodality:
    rng = np.random.default_rng(seed)
    tested = rng.integers(20, 80, len(acceptance))
    found = bimodality(
        rng.binomial(tested, acceptance),
        tested,
        np.arange(len(acceptance)),
        floor=0.6,
        alpha=0.05,
        rng=rng,
        unit="requests",
    )
    assert isinstance(found, Bimodality)
    return found


def test_two_kinds_are_found_with_their_weights_and_means() -> None:
    rng = np.random.default_rng(1)
    low = rng.random(400) < 0.3
    found = _fit(np.where(low, rng.beta(32, 48, 400), rng.beta(64, 16, 400)))
    assert found.mixture.strong
    assert abs(found.mixture.weight_low - low.mean()) < 0.05
    assert abs(found.mixture.mean_low - 0.4) < 0.05
    assert abs(found.mixture.mean_high - 0.8) < 0.05
    share = found.share_below_floor
    assert share.low < low.mean() < share.high


def test_one_kind_is_not_flagged_and_noise_is_taken_out_of_the_share() -> None:
    acceptance = np.random.default_rng(2).beta(60, 30, 300)
    found = _fit(acceptance)
    assert not found.mixture.strong
    # Requests of 20 to 80 tokens look worse than they are: the raw share is biased by noise.
    true = float((acceptance < 0.6).mean())
    assert abs(found.share_below_floor.value - true) < 0.06
    assert found.share_below_floor.high >= true


def test_all_requests_alike_have_one_mode() -> None:
    found = _fit(np.full(200, 0.8))
    assert not found.mixture.strong
    assert found.share_below_floor.value < 0.02


def test_above_5000_requests_wilson_alone_is_used() -> None:
    found = _fit(np.random.default_rng(3).beta(16, 4, 6000))
    assert found.share_below_floor.n == 6000
    assert found.share_below_floor.high - found.share_below_floor.low < 0.02


def test_short_requests_do_not_count() -> None:
    short = bimodality(
        np.full(500, 7),
        np.full(500, 10),
        np.arange(500),
        floor=0.6,
        alpha=0.05,
        rng=np.random.default_rng(0),
        unit="requests",
    )
    assert isinstance(short, Missing)
    assert short.n == 0


def test_a_flat_plateau_is_one_kind() -> None:
    """Two betas fit it better than one, with a valley that is not there. 6 simulations with a
    false alarm of 0.05 each: more than two have probability 0.002."""
    rng = np.random.default_rng(5)
    flagged = sum(_fit(rng.uniform(0.4, 0.8, 500), seed).mixture.strong for seed in range(6))
    assert flagged <= 2
