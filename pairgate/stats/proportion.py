"""Shares of units: Wilson and Clopper-Pearson bounds, each one-sided."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from pairgate.domain.evidence import Estimate
from pairgate.stats.betting import betting_mean


def wilson(share: float, n: float, *, alpha: float) -> tuple[float, float]:
    """Score bounds (Wilson 1927) on a share of `n` units; `n` may be an effective number."""
    z = float(sps.norm.ppf(1.0 - alpha))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def clopper_pearson(events: float, n: float, *, alpha: float) -> tuple[float, float]:
    """Exact bounds (Clopper & Pearson 1934) for `events` of `n`; both may be effective numbers."""
    low = 0.0 if events <= 0 else float(sps.beta.ppf(alpha, events, n - events + 1))
    high = 1.0 if events >= n else float(sps.beta.ppf(1.0 - alpha, events + 1, n - events))
    return low, high


def share_of_units(
    events: NDArray[np.bool_], cluster: NDArray[np.int64], *, alpha: float, unit: str
) -> Estimate:
    """Share of `events` [n] with Clopper-Pearson bounds at the cluster-adjusted n.

    `cluster` [n] are ids 0, 1, …: with several requests per session the n is divided by the design
    effect of the observed events (Kish 1965), and is the number of sessions where nothing (or
    everything) happened, because then the effect cannot be seen.
    """
    n, share = len(events), float(events.mean())
    sizes = np.bincount(cluster)
    sizes = sizes[sizes > 0]
    effective = float(n) if len(sizes) == n else _effective_n(events, cluster, share)
    low, high = clopper_pearson(share * effective, effective, alpha=alpha)
    return Estimate(
        value=share,
        low=low,
        high=high,
        n=max(1, round(effective)),
        unit=unit,
        alpha=alpha,
        method="Clopper-Pearson",
    )


def anytime_share(
    events: NDArray[np.bool_], cluster: NDArray[np.int64], *, alpha: float, unit: str
) -> Estimate:
    """Share of `events` [n] by betting: holds at every moment of looking. `cluster` [n] are ids
    0, 1, … in the order of observation; each counts once, with its own share."""
    sizes = np.bincount(cluster)
    return betting_mean(np.bincount(cluster, weights=events) / sizes, alpha=alpha, unit=unit)


def _effective_n(events: NDArray[np.bool_], cluster: NDArray[np.int64], share: float) -> float:
    n, n_clusters = len(events), len(np.unique(cluster))
    if share in (0.0, 1.0) or n_clusters < 2:
        return float(n_clusters)
    residual = np.bincount(cluster, weights=events - share)
    clustered_variance = n_clusters / (n_clusters - 1) * np.square(residual).sum() / n**2
    design_effect = clustered_variance / (share * (1 - share) / n)
    return float(min(n, max(n / max(design_effect, 1.0), 1.0)))


def units_without_event(max_share: float, *, alpha: float) -> int:
    """How many units without one event bound the share by `max_share`: 59 for 5 % at 0.05."""
    return int(np.ceil(np.log(alpha) / np.log1p(-max_share)))
