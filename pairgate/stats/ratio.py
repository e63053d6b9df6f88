"""Pooled ratios Σa / Σb with intervals clustered by request or session.

Tokens of one request are alike, so a binomial interval over tokens lies (false pass 0.39 to 0.56);
the unit that was sampled is the request, or the session where the traffic has sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from pairgate.domain.evidence import Estimate, Missing
from pairgate.stats.betting import UNIT, Range, betting_mean

Floats = NDArray[np.float64]

MIN_EFFECTIVE_N = 20.0
DELTA_FROM = 1000  # the delta method is as good from here on, and free
_RESAMPLES = 2000
_MAX_RESAMPLES = 10_000
_CHUNK = 4_000_000  # cells of one bootstrap count matrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterSums:
    """Per cluster [n]: numerator and denominator; denominators are positive."""

    numerator: Floats
    denominator: Floats

    def __len__(self) -> int:
        return len(self.numerator)

    @property
    def ratio(self) -> float:
        return float(self.numerator.sum() / self.denominator.sum())

    @property
    def effective_n(self) -> float:
        """(Σb)² / Σb²: how many equally long clusters the denominators are worth."""
        return float(self.denominator.sum() ** 2 / np.square(self.denominator).sum())


def clustered(numerator: Floats, denominator: Floats, cluster: NDArray[np.int64]) -> ClusterSums:
    """Sums by cluster id [n] (0, 1, …); clusters without a denominator are left out."""
    a = np.bincount(cluster, weights=numerator).astype(float)
    b = np.bincount(cluster, weights=denominator).astype(float)
    return ClusterSums(numerator=a[b > 0], denominator=b[b > 0])


def pooled_ratio(
    sums: ClusterSums,
    *,
    alpha: float,
    rng: np.random.Generator,
    unit: str,
    support: Range = UNIT,
) -> Estimate | Missing:
    """Σa / Σb; studentised cluster bootstrap under 1,000 clusters, delta method above.

    `support` is where the ratio of one cluster can lie. From 100 clusters on, an effective n under
    20 is Missing: a few very long requests would decide alone.
    """
    return pooled_ratios(sums, alphas=(alpha,), rng=rng, unit=unit, support=support)[0]


def pooled_ratios(
    sums: ClusterSums,
    *,
    alphas: tuple[float, ...],
    rng: np.random.Generator,
    unit: str,
    support: Range = UNIT,
) -> tuple[Estimate | Missing, ...]:
    """`pooled_ratio` at several levels from the same resamples."""
    n = len(sums)
    if n < 2:
        missing = Missing(reason=f"a pooled ratio needs two {unit} at least", n=n)
        return (missing,) * len(alphas)
    if n >= 100 and sums.effective_n < MIN_EFFECTIVE_N:
        missing = Missing(
            reason=f"{n} {unit} are worth {sums.effective_n:.1f} of equal length, "
            f"under {MIN_EFFECTIVE_N:.0f}: a few long ones would decide alone",
            n=n,
        )
        return (missing,) * len(alphas)
    large = n >= DELTA_FROM
    found = (
        tuple(delta_bounds(sums, alpha=a) for a in alphas)
        if large
        else bootstrap_t_levels(sums, alphas=alphas, rng=rng)
    )
    method = "delta" if large else "bootstrap-t"
    return tuple(
        anytime_ratio(sums, alpha=alpha, unit=unit, support=support)
        if bounds is None
        else _estimate(sums, bounds, alpha=alpha, unit=unit, support=support, method=method)
        for alpha, bounds in zip(alphas, found, strict=True)
    )


def anytime_ratio(
    sums: ClusterSums, *, alpha: float, unit: str, support: Range = UNIT, largest: float = 0.0
) -> Estimate:
    """Σa / Σb by betting on a − m·b (Waudby-Smith & Ramdas, arXiv 2010.09686): wider, sound where
    the data have next to no spread, and valid at every moment of looking if no denominator can be
    over `largest`, which was known beforehand. The clusters stand in the order of observation.
    """
    return betting_mean(
        np.clip(sums.numerator / sums.denominator, support.low, support.high),
        weights=sums.denominator,
        largest_weight=largest,
        alpha=alpha,
        unit=unit,
        support=support,
    )


def _estimate(
    sums: ClusterSums,
    bounds: tuple[float, float],
    *,
    alpha: float,
    unit: str,
    support: Range,
    method: str,
) -> Estimate:
    value, (low, high) = sums.ratio, bounds
    return Estimate(
        value=value,
        low=min(max(low, support.low), value),
        high=max(min(high, support.high), value),
        n=len(sums),
        unit=unit,
        alpha=alpha,
        method=method,
    )


def delta_bounds(sums: ClusterSums, *, alpha: float) -> tuple[float, float] | None:
    """Linearised ratio with Student's t of effective-n degrees of freedom (Cochran 1977, 6.3).

    None where all clusters are alike: such a sample says nothing about its spread.
    """
    n, value = len(sums), sums.ratio
    residual = sums.numerator - value * sums.denominator
    error = np.sqrt(n / (n - 1) * np.square(residual).sum()) / sums.denominator.sum()
    if error <= 1e-12:
        return None
    quantile = sps.t.ppf(1.0 - alpha, max(sums.effective_n - 1.0, 1.0))
    return float(value - quantile * error), float(value + quantile * error)


def bootstrap_t_bounds(
    sums: ClusterSums, *, alpha: float, rng: np.random.Generator
) -> tuple[float, float] | None:
    """`bootstrap_t_levels` at one level."""
    return bootstrap_t_levels(sums, alphas=(alpha,), rng=rng)[0]


def bootstrap_t_levels(
    sums: ClusterSums, *, alphas: tuple[float, ...], rng: np.random.Generator
) -> tuple[tuple[float, float] | None, ...]:
    """Studentised cluster bootstrap (Efron & Tibshirani 1993, 12.5), all resamples at once.

    Per level the bounds, or None where they do not exist: when too many resamples have no spread
    at all, as with a draft that is nearly always accepted.
    """
    n, value = len(sums), sums.ratio
    scale = sums.denominator.mean()
    a, b = sums.numerator / scale, sums.denominator / scale
    moments = np.column_stack((a, b, a * a, a * b, b * b))
    resamples = int(min(max(_RESAMPLES, np.ceil(25.0 / min(alphas))), _MAX_RESAMPLES))
    sampled = np.concatenate(
        [
            _resampled(moments, size, rng)
            for size in _chunks(resamples, max(1, min(resamples, _CHUNK // n)))
        ]
    )
    ratio, error = _ratio_and_error(sampled, n)
    own_error = _ratio_and_error(moments.sum(axis=0)[None], n)[1][0]
    spread = error > 1e-12
    if own_error <= 1e-12:
        return (None,) * len(alphas)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(spread, (ratio - value) / error, np.sign(ratio - value) * np.inf)

    def bounds(alpha: float) -> tuple[float, float] | None:
        if (~spread).mean() > alpha / 10.0:
            return None
        t_low, t_high = np.quantile(t, (alpha, 1.0 - alpha), method="inverted_cdf")
        return float(value - t_high * own_error), float(value - t_low * own_error)

    return tuple(bounds(alpha) for alpha in alphas)


def _resampled(moments: Floats, size: int, rng: np.random.Generator) -> Floats:
    """[size, 5] sums of the moments over resampled clusters."""
    n = len(moments)
    drawn = rng.integers(0, n, (size, n))
    drawn += np.arange(size)[:, None] * n
    counts = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
    return counts @ moments


def _ratio_and_error(sums: Floats, n: int) -> tuple[Floats, Floats]:
    """Ratio and its standard error from [.., 5] sums of a, b, a², ab, b²."""
    a, b, aa, ab, bb = sums.T
    ratio = a / b
    squares = np.maximum(aa - 2.0 * ratio * ab + ratio * ratio * bb, 0.0)
    # Rounding leaves 1e-16 of nothing; that is not spread.
    squares[squares < 1e-13 * (aa + bb)] = 0.0
    return ratio, np.sqrt(n / (n - 1) * squares) / b


def _chunks(total: int, size: int) -> list[int]:
    return [size] * (total // size) + ([total % size] if total % size else [])
