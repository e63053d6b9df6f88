"""Each statistic against an implementation of its own: plain loops, enumeration, root finding or
direct optimisation, number by number on random data."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, special
from scipy import stats as sps

from pairgate.domain.evidence import OVERALL, Estimate, Measurements, Metric, Scope
from pairgate.domain.policy import AcceptanceRule, Policy
from pairgate.domain.trace import Arm
from pairgate.judge.acceptance import Threshold, holm_refuted
from pairgate.judge.case import Case
from pairgate.measure.gated import holm_divisors
from pairgate.stats.betting import betting_bounds, refuted_after
from pairgate.stats.blocks import block_difference, block_ratio, quantile_interval
from pairgate.stats.mixture import bimodality
from pairgate.stats.paired import paired_difference
from pairgate.stats.permutation import Words, hashed_counts, label_swap
from pairgate.stats.proportion import clopper_pearson, share_of_units, wilson
from pairgate.stats.ratio import ClusterSums, bootstrap_t_levels, delta_bounds

Floats = NDArray[np.float64]
STAKES = (0.05, 0.15, 0.3, 0.5, 0.75, 0.95)


# --- betting ----------------------------------------------------------------------------------


def _crossed_after(x: list[float], m: float, alpha: float, weights: list[float]) -> int:
    """Observations until the mean of six fortunes reaches 1/alpha; len + 1 if it never does."""
    fortunes = [1.0] * len(STAKES)
    for i, (value, weight) in enumerate(zip(x, weights, strict=True), 1):
        for j, stake in enumerate(STAKES):
            fortunes[j] *= 1.0 + stake * weight * (value / m - 1.0)
        if sum(fortunes) / len(STAKES) >= 1.0 / alpha:
            return i
    return len(x) + 1


@pytest.mark.parametrize("seed", range(4))
def test_betting_bounds_by_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, alpha = int(rng.integers(30, 120)), float(rng.choice([0.05, 0.01]))
    x = rng.beta(6, 3, n)
    weights = rng.uniform(0.1, 1.0, n) if seed % 2 else np.ones(n)
    grid = np.arange(1, 2000) / 2000
    plain, scale = x.tolist(), weights.tolist()
    refuted = [m for m in grid if _crossed_after(plain, m, alpha, scale) <= n]
    mirrored = (1.0 - x).tolist()
    above = [m for m in grid if _crossed_after(mirrored, 1.0 - m, alpha, scale) <= n]
    low, high = betting_bounds(x, alpha=alpha, weights=weights if seed % 2 else None)
    assert low == pytest.approx(max(refuted, default=0.0), abs=6e-4)
    assert high == pytest.approx(min(above, default=1.0), abs=6e-4)


def test_the_moment_of_refutation_by_brute_force() -> None:
    rng = np.random.default_rng(9)
    x, w = rng.beta(8, 3, (40, 150)), rng.uniform(0.05, 1.0, (40, 150))
    for m in (0.5, 0.65, 0.8):
        found = refuted_after(x, m, alpha=0.05, weights=w)
        own = [_crossed_after(a, m, 0.05, b) for a, b in zip(x.tolist(), w.tolist(), strict=True)]
        assert found.tolist() == own
    assert set(found) == {151}  # a true statement, here


# --- ratios -----------------------------------------------------------------------------------


def _sums(rng: np.random.Generator, n: int) -> ClusterSums:
    tested = np.clip(rng.lognormal(3.7, 0.7, n), 5, 300).round()
    own = rng.beta(7, 3, n)
    return ClusterSums(numerator=rng.binomial(tested.astype(int), own) * 1.0, denominator=tested)


def _ratio_and_error(a: Floats, b: Floats) -> tuple[float, float]:
    """Cochran 1977, 6.3, as in the book."""
    n, ratio = len(a), a.sum() / b.sum()
    residuals = [(y - ratio * x) ** 2 for y, x in zip(a, b, strict=True)]
    return ratio, math.sqrt(sum(residuals) / (n - 1) / n) / (b.sum() / n)


@pytest.mark.parametrize("seed", range(3))
def test_bootstrap_t_by_a_loop_over_the_same_resamples(seed: int) -> None:
    sums = _sums(np.random.default_rng(seed), 100 + 20 * seed)
    alphas = (0.05, 0.02)
    found = bootstrap_t_levels(sums, alphas=alphas, rng=np.random.default_rng(seed + 50))
    n = len(sums)
    rows = np.random.default_rng(seed + 50).integers(0, n, (2000, n))
    value, error = _ratio_and_error(sums.numerator, sums.denominator)
    t = []
    for drawn in rows:
        r, e = _ratio_and_error(sums.numerator[drawn], sums.denominator[drawn])
        t.append((r - value) / e)
    t.sort()
    for alpha, bounds in zip(alphas, found, strict=True):
        low, high = (t[math.ceil(q * 2000) - 1] for q in (alpha, 1.0 - alpha))
        assert bounds == pytest.approx((value - high * error, value - low * error), abs=1e-9)


def test_the_delta_method_by_the_book() -> None:
    sums = _sums(np.random.default_rng(5), 1200)
    value, error = _ratio_and_error(sums.numerator, sums.denominator)
    effective = sums.denominator.sum() ** 2 / (sums.denominator**2).sum()
    quantile = sps.t.isf(0.05, effective - 1.0)
    expected = (value - quantile * error, value + quantile * error)
    assert delta_bounds(sums, alpha=0.05) == pytest.approx(expected, abs=1e-12)


# --- shares -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "n"), [(0, 59), (3, 80), (17, 40), (40, 40)])
def test_clopper_pearson_by_binomial_tails(events: int, n: int) -> None:
    """The bounds at which the observed count or a more extreme one has probability alpha."""
    low, high = clopper_pearson(events, n, alpha=0.05)
    own_low = (
        0.0
        if events == 0
        else optimize.brentq(lambda p: sps.binom.sf(events - 1, n, p) - 0.05, 1e-9, 1 - 1e-9)
    )
    own_high = (
        1.0
        if events == n
        else optimize.brentq(lambda p: sps.binom.cdf(events, n, p) - 0.05, 1e-9, 1 - 1e-9)
    )
    assert (low, high) == pytest.approx((own_low, own_high), abs=1e-8)


@pytest.mark.parametrize(("share", "n"), [(0.02, 100), (0.4, 37), (0.97, 500)])
def test_wilson_solves_the_score_equation(share: float, n: int) -> None:
    z = sps.norm.isf(0.05)

    def score(p: float) -> float:
        return (share - p) / math.sqrt(p * (1.0 - p) / n)

    low = optimize.brentq(lambda p: score(p) - z, 1e-9, share)
    high = optimize.brentq(lambda p: score(p) + z, share, 1 - 1e-9)
    assert wilson(share, n, alpha=0.05) == pytest.approx((low, high), abs=1e-9)


def test_the_design_effect_by_a_loop() -> None:
    rng = np.random.default_rng(4)
    cluster = np.repeat(np.arange(80), rng.integers(1, 8, 80))
    level = rng.beta(1, 3, 80)[cluster]
    events = rng.random(len(cluster)) < level
    found = share_of_units(events, cluster, alpha=0.05, unit="sessions")
    n, share = len(events), events.mean()
    between = sum(
        (events[cluster == c].sum() - share * (cluster == c).sum()) ** 2 for c in range(80)
    )
    variance = 80 / 79 * between / n**2
    effective = share * (1 - share) / variance
    assert found.n == round(min(effective, n))
    assert found.high == pytest.approx(
        clopper_pearson(share * effective, effective, alpha=0.05)[1], abs=1e-9
    )


# --- two kinds --------------------------------------------------------------------------------


def test_the_mixture_by_direct_optimisation() -> None:
    """Exact beta-binomial likelihoods and a general optimiser instead of EM on a grid."""
    rng = np.random.default_rng(6)
    n = 500
    own = np.where(rng.random(n) < 0.3, rng.beta(20, 30, n), rng.beta(40, 10, n))
    tested = rng.integers(20, 120, n)
    accepted = rng.binomial(tested, own)
    found = bimodality(
        accepted, tested, np.arange(n), floor=0.6, alpha=0.05, rng=rng, unit="requests"
    )

    def parts(theta: Floats) -> tuple[float, Floats, Floats]:
        weight = special.expit(theta[0])
        return float(weight), np.exp(theta[1:3]), np.exp(theta[3:5])

    def loss(theta: Floats) -> float:
        weight, a, b = parts(theta)
        log = special.betaln(accepted[:, None] + a, tested[:, None] - accepted[:, None] + b)
        log = log - special.betaln(a, b) + np.log([weight, 1.0 - weight])
        return -float(special.logsumexp(log, axis=1).sum())

    start = np.array([-0.5, *np.log([8.0, 16.0]), *np.log([12.0, 4.0])])
    weight, a, b = parts(optimize.minimize(loss, start, method="Nelder-Mead", options={
        "maxiter": 6000, "maxfev": 6000, "xatol": 1e-5, "fatol": 1e-6}).x)  # fmt: skip
    mixture = found.mixture  # type: ignore[union-attr]
    assert mixture.weight_low == pytest.approx(weight, abs=0.01)
    assert (mixture.mean_low, mixture.mean_high) == pytest.approx(tuple(a / (a + b)), abs=0.005)
    share = float(np.dot([weight, 1 - weight], special.betainc(a, b, 0.6)))
    assert found.share_below_floor.value == pytest.approx(share, abs=0.01)  # type: ignore[union-attr]


# --- Holm -------------------------------------------------------------------------------------


def _holm(p_values: dict[str, float], alpha: float) -> set[str]:
    """Holm 1979: the smallest p against alpha / m, the next against alpha / (m − 1), …"""
    rejected: set[str] = set()
    for i, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if p_values[name] > alpha / (len(p_values) - i):
            break
        rejected.add(name)
    return rejected


def test_holm_by_p_values_of_the_same_bounds() -> None:
    rng, alpha, floor = np.random.default_rng(8), 0.05, 0.6
    seen = set()
    for _ in range(200):
        m = int(rng.integers(2, 9))
        value, error = rng.uniform(0.5, 0.62, m), rng.uniform(0.01, 0.05, m)
        metrics = []
        for i in range(m):
            for divisor in (1, *holm_divisors(m)):
                half = float(sps.norm.isf(alpha / divisor)) * error[i]
                bound = Estimate(
                    value=value[i],
                    low=value[i] - half,
                    high=value[i] + half,
                    n=200,
                    unit="requests",
                    alpha=alpha / divisor,
                    method="normal",
                )
                name = "rate.request_mean" + ("" if divisor == 1 else ".corrected")
                scope = Scope(kind="domain", key=f"d{i}")
                metrics.append(Metric(name=name, arm=Arm.SPEC, scope=scope, value=bound))
        case = Case(
            measurements=Measurements(definition="x", metrics=tuple(metrics), counts=()),
            policy=Policy(name="p", rules=(AcceptanceRule(),)),
            same_target=None,
            incumbent_has_draft=False,
            concurrencies=(8,),
            engine="x",
            has_draft=True,
            prefix_cache=False,
            version="x@1",
        )
        at = {
            Scope(kind="domain", key=f"d{i}"): Threshold(value=floor, low=floor, high=floor)
            for i in range(m)
        }
        refuted = {s.key for s in holm_refuted(case, "rate.request_mean", at, tuple(at))}
        own = _holm({f"d{i}": sps.norm.cdf((value[i] - floor) / error[i]) for i in range(m)}, alpha)
        assert refuted == own
        seen.add(len(own))
    assert len(seen) >= 5  # from none to several
    assert OVERALL not in at


# --- permutation ------------------------------------------------------------------------------


def test_the_moments_of_the_label_swap_by_enumeration() -> None:
    """All 2^9 ways to swap: the statistic has mean 0, and these deviations give both z."""
    rng, n, length = np.random.default_rng(10), 9, 40
    law = rng.dirichlet(np.full(50, 0.5))
    owner = np.repeat(np.arange(n), length)
    first, second = (
        Words(tokens=rng.choice(50, n * length, p=law).astype(np.int32), owner=owner, n=n)
        for _ in range(2)
    )
    a, b = hashed_counts(first), hashed_counts(second)
    total = (a + b).sum(axis=0)
    difference = (a - b)[:, total > 0] / np.sqrt(total[total > 0])
    signs = np.array(list(product((-1.0, 1.0), repeat=n)))
    lengths = np.square(signs @ difference).sum(axis=1)
    centred = lengths - lengths.mean()
    deviation, own = centred.std(), np.square(difference.sum(axis=0)).sum() - lengths.mean()
    skew = (centred**3).mean() / deviation**3
    shape = 4.0 / skew**2
    tail = sps.gamma.sf(own / deviation * math.sqrt(shape) + shape, shape)
    found = label_swap(first, second)
    assert found.z_ngrams == pytest.approx(float(sps.norm.isf(tail)), abs=1e-9)
    per_arm = n * length
    assert found.detectable == pytest.approx(
        math.sqrt(0.02 * (3.48 + 1.28) * deviation / per_arm), rel=1e-9
    )
    exact = (lengths >= own + lengths.mean() - 1e-9).mean()
    assert float(tail) == pytest.approx(exact, abs=0.05)


# --- blocks, quantiles, pairs -------------------------------------------------------------------


def test_block_ratios_and_differences_by_scipy() -> None:
    rng = np.random.default_rng(11)
    spec, alone = rng.lognormal(0.3, 0.1, 6), rng.lognormal(0.0, 0.1, 6)
    found = block_ratio(spec, alone, alpha=0.05)
    interval = sps.ttest_1samp(np.log(spec / alone), 0.0).confidence_interval(0.90)
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))
    gaps = rng.normal(0.01, 0.02, 6)
    shares = block_difference(gaps, alpha=0.05, support=1.0)
    interval = sps.ttest_1samp(gaps, 0.0).confidence_interval(0.90)
    assert isinstance(shares, Estimate)
    assert (shares.low, shares.high) == pytest.approx((interval.low, interval.high))


def test_quantile_bounds_hold_at_their_level_by_counting() -> None:
    """For uniform samples the rank of the true quantile is binomial: each bound errs with alpha at
    most, and the next order statistic would err more often (but for the edges)."""
    n, q, alpha = 400, 0.95, 0.05
    ordered = np.arange(1.0, n + 1.0)
    found = quantile_interval(ordered, q, alpha=alpha, unit="requests")
    assert isinstance(found, Estimate)
    low, high = int(found.low), int(found.high)  # ranks
    # The low bound errs when fewer than `low` observations lie under the true quantile.
    assert sps.binom.cdf(low - 1, n, q) <= alpha < sps.binom.cdf(low, n, q)
    assert sps.binom.sf(high - 1, n, q) <= alpha < sps.binom.sf(high - 2, n, q)


def test_paired_t_by_scipy_and_by_a_loop_over_sessions() -> None:
    rng = np.random.default_rng(12)
    alone = rng.normal(0.02, 0.1, 150)
    found = paired_difference(alone, np.arange(150), alpha=0.05, unit="requests")
    interval = sps.ttest_1samp(alone, 0.0).confidence_interval(0.90)
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    cluster = np.repeat(np.arange(120), rng.integers(1, 5, 120))
    values = rng.normal(0.0, 0.1, 120)[cluster] + rng.normal(0.0, 0.05, len(cluster))
    mean = values.mean()
    squares = sum((values[cluster == c] - mean).sum() ** 2 for c in range(120))
    error = math.sqrt(120 / 119 * squares) / len(values)
    together = paired_difference(values, cluster, alpha=0.05, unit="sessions")
    assert isinstance(together, Estimate)
    assert together.low == pytest.approx(mean - sps.t.isf(0.05, 119) * error)
