"""Sums of scores whose conditional mean is zero as long as a law is kept.

Tokens of one output depend on each other, yet each score has mean zero given everything before it,
so variances add up and the standardised sum is asymptotically normal (martingale central limit
theorem, Brown 1971). No independence of tokens or requests is needed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from pairgate.domain.evidence import Estimate

Floats = NDArray[np.float64]

_MIN_TERMS = 20.0  # the largest variance fits into the sum so often, or it is too far from normal
_MAX_Z = 38.0


def standardised(scores: Floats, variances: Floats) -> float | None:
    """Σ scores / √Σ variances of [n] scores, or None where too few of them vary."""
    variance = float(variances.sum())
    if variance <= 0.0 or variance < _MIN_TERMS * float(variances.max()):
        return None
    return float(scores.sum() / math.sqrt(variance))


def mean_score(scores: Floats, variances: Floats, *, alpha: float, unit: str) -> Estimate | None:
    """The mean score with two one-sided bounds at `alpha` each; None where too few of
    them vary.

    The variances are those under the hypothesis that the law is kept, which is the case that a
    PASS claims.
    """
    z = standardised(scores, variances)
    if z is None:
        return None
    n = len(scores)
    error = math.sqrt(float(variances.sum())) / n
    half = float(sps.norm.isf(alpha)) * error
    mean = z * error
    return Estimate(
        value=mean,
        low=mean - half,
        high=mean + half,
        n=n,
        unit=unit,
        alpha=alpha,
        method="martingale",
    )


def mean_at(mean: Estimate, alpha: float) -> Estimate:
    """`mean_score` with its bounds at another `alpha`."""
    half = (mean.high - mean.value) * float(sps.norm.isf(alpha) / sps.norm.isf(mean.alpha))
    return replace(mean, low=mean.value - half, high=mean.value + half, alpha=alpha)


def detectable_mean(variances: Floats, *, max_abs_z: float) -> float:
    """The mean score that |z| > `max_abs_z` would find nine times in ten."""
    if len(variances) == 0:
        return math.inf
    return (
        (max_abs_z + float(sps.norm.isf(0.1))) * math.sqrt(float(variances.sum())) / len(variances)
    )


def uniform_z(values: Floats) -> float | None:
    """Kolmogorov-Smirnov distance of [n] values from the uniform law on [0, 1], as the |z| of the
    same two-sided p-value; None under 100 values, for which the limit law is not used."""
    if len(values) < 100:
        return None
    p_value = float(sps.kstest(values, "uniform").pvalue)
    return min(float(sps.norm.isf(p_value / 2.0)), _MAX_Z) if p_value > 0.0 else _MAX_Z
