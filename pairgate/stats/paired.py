"""Paired differences per request, clustered by session."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from pairgate.domain.evidence import Estimate, Missing
from pairgate.stats.betting import Range, betting_mean

T_FROM = 100  # clusters; below, the betting test makes no assumption


def paired_difference(
    difference: NDArray[np.float64],
    cluster: NDArray[np.int64],
    *,
    alpha: float,
    unit: str,
    anytime: bool = False,
) -> Estimate | Missing:
    """Mean of `difference` [n] in [−1, 1]; `cluster` [n] are session ids 0, 1, … in the order of
    observation.

    Student's t on cluster sums from 100 clusters on; betting on the scaled difference below, and
    wherever the bounds have to hold at `anytime`.
    """
    sizes = np.bincount(cluster)
    sizes, n = sizes[sizes > 0], len(np.unique(cluster))
    if n < 2:
        return Missing(reason=f"a paired difference needs two {unit} at least", n=n)
    if n < T_FROM or anytime:
        means = np.bincount(cluster, weights=difference)[np.unique(cluster)] / sizes
        return betting_mean(means, alpha=alpha, unit=unit, support=Range(low=-1.0, high=1.0))
    value = float(difference.mean())
    residual = np.bincount(cluster, weights=difference - value)
    error = max(
        float(np.sqrt(n / (n - 1) * np.square(residual).sum())) / len(difference), 1e-4 / np.sqrt(n)
    )
    half = float(sps.t.ppf(1.0 - alpha, n - 1)) * error
    return Estimate(
        value=value,
        low=max(value - half, -1.0),
        high=min(value + half, 1.0),
        n=n,
        unit=unit,
        alpha=alpha,
        method="paired t",
    )
