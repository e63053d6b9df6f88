"""Ratios of two arms that ran in interleaved blocks, so that drift cancels inside each block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from pairgate.domain.evidence import Estimate, Missing

Floats = NDArray[np.float64]

MIN_BLOCKS = 3


def block_ratio(with_draft: Floats, without_draft: Floats, *, alpha: float) -> Estimate | Missing:
    """Geometric mean of with/without over blocks [n], t interval on the mean of log ratios.

    Fewer than two blocks have no spread and are Missing; a verdict needs three.
    """
    n = len(with_draft)
    if n < 2:
        return Missing(reason="a ratio needs two blocks of each arm at least", n=n)
    if not (np.isfinite(with_draft).all() and np.isfinite(without_draft).all()):
        return Missing(reason="a block has no finite value", n=n)
    if (with_draft <= 0).any() or (without_draft <= 0).any():
        return Missing(reason="a block measured nothing", n=n)
    logs = np.log(with_draft / without_draft)
    # Two blocks that agree by chance say nothing about the spread; 0.1 % is the clock's own.
    error = max(float(logs.std(ddof=1)), 1e-3) / np.sqrt(n)
    half = float(sps.t.ppf(1.0 - alpha, n - 1)) * error
    middle = float(logs.mean())
    return Estimate(
        value=float(np.exp(middle)),
        low=float(np.exp(middle - half)),
        high=float(np.exp(min(middle + half, 700.0))),
        n=n,
        unit="blocks",
        alpha=alpha,
        method="t of block log ratios",
    )


def block_mean(values: Floats, *, alpha: float) -> Estimate | Missing:
    """Geometric mean of a positive quantity over blocks [n], t interval on the logs."""
    return block_ratio(values, np.ones_like(values), alpha=alpha)


def block_difference(values: Floats, *, alpha: float, support: float) -> Estimate | Missing:
    """Mean of a difference of shares over blocks [n], t interval cut to [−support, support].

    Fewer than two blocks have no spread and are Missing; a verdict needs three.
    """
    n = len(values)
    if n < 2:
        return Missing(reason="a difference needs two blocks of each arm at least", n=n)
    middle = float(values.mean())
    # As above: blocks that agree say little about the spread.
    half = float(sps.t.ppf(1.0 - alpha, n - 1)) * max(float(values.std(ddof=1)), 1e-3) / n**0.5
    return Estimate(
        value=middle,
        low=max(middle - half, -support),
        high=min(middle + half, support),
        n=n,
        unit="blocks",
        alpha=alpha,
        method="t of block differences",
    )


def quantile_interval(values: Floats, q: float, *, alpha: float, unit: str) -> Estimate | Missing:
    """The q-quantile of `values` [n] with order-statistic bounds (free of any distribution).

    Where n is too small for a bound, the extreme observation stands in for it.
    """
    n = len(values)
    if n == 0:
        return Missing(reason=f"no {unit} to take a quantile of")
    low, high = sps.binom.ppf((alpha, 1.0 - alpha), n, q)
    ordered = np.sort(values)
    value = float(np.quantile(ordered, q))
    return Estimate(
        value=value,
        low=min(float(ordered[max(int(low) - 1, 0)]), value),
        high=max(float(ordered[min(int(high), n - 1)]), value),
        n=n,
        unit=unit,
        alpha=alpha,
        method="order statistics",
    )
