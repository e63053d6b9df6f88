"""Confidence bounds by betting: valid at every n, and at every moment at once.

Waudby-Smith & Ramdas 2020 (arXiv 2010.09686), section 4: under the hypothesis that the mean is at
most m, a gambler who stakes the fraction λ on "larger" multiplies the capital by 1 + λ(X − m) per
observation and cannot expect a gain; by Ville's inequality the capital ever reaches 1/alpha with
probability alpha at most. All m that are refuted so far lie under the lower bound. Here the capital
is spread evenly over six fixed stakes λ = c/m, which is again such a game and needs no tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import Estimate
from pairgate.errors import require

Floats = NDArray[np.float64]

STAKES = np.array([0.05, 0.15, 0.3, 0.5, 0.75, 0.95])
# The capital is looked at after every observation up to here, then at ever wider distances:
# looking less often keeps the guarantee and costs next to nothing.
_LOOK_ALWAYS = 500
_MORE_LOOKS = 150
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Where single observations can lie."""

    low: float = 0.0
    high: float = 1.0


UNIT = Range()


def betting_mean(
    values: Floats,
    *,
    alpha: float,
    unit: str,
    support: Range = UNIT,
    weights: Floats | None = None,
    largest_weight: float = 0.0,
) -> Estimate:
    """Mean of `values` [n] in `support`, each bound at `alpha`, in the order of observation.

    With `weights` [n] > 0 the estimand is Σ weights·values / Σ weights: (X − m) is staked times
    weight / largest weight, which keeps the game fair for a ratio of expectations. The bounds hold
    at every moment at once only if `largest_weight` was known beforehand; 0 takes the largest one
    seen. Raises `InvalidInput` when a value lies outside the support.
    """
    x = _scaled(values, support)
    w = None if weights is None else weights / max(largest_weight, float(weights.max()))
    span = support.high - support.low
    low, high = betting_bounds(x, alpha=alpha, weights=w)
    value = float(np.average(values, weights=weights))
    return Estimate(
        value=value,
        low=min(support.low + span * low, value),
        high=max(support.low + span * high, value),
        n=len(values),
        unit=unit,
        alpha=alpha,
        method="betting",
    )


def betting_bounds(
    x: Floats, *, alpha: float, weights: Floats | None = None
) -> tuple[float, float]:
    """(lower, upper) bound on the mean of `x` [n] in [0, 1], each with confidence 1 − alpha."""
    return _lower(x, alpha, weights), 1.0 - _lower(1.0 - x, alpha, weights)


def running_bounds(x: Floats, *, alpha: float, at: tuple[int, ...]) -> tuple[Floats, Floats]:
    """[len(at)] lower and upper bounds after the first `at[i]` observations of `x` [n]."""
    bounds = [betting_bounds(x[:n], alpha=alpha) for n in at]
    low, high = zip(*bounds, strict=True)
    return np.asarray(low), np.asarray(high)


def refutes_mean_at_most(
    x: Floats, m: float, *, alpha: float, weights: Floats | None = None
) -> bool:
    """Whether the capital staked against "the mean is at most m" ever reached 1/alpha."""
    if m <= 0.0:
        return bool((x > 0).any())
    gains = x / m - 1.0 if weights is None else weights * (x / m - 1.0)
    starts = _looks(len(x))
    log_capital = np.empty((len(STAKES), len(starts)))
    for i, stake in enumerate(STAKES):
        log_capital[i] = np.cumsum(np.add.reduceat(np.log1p(stake * gains), starts))
    return bool(log_mixed(log_capital).max() >= -np.log(alpha))


def refuted_after(
    x: Floats, m: float, *, alpha: float, weights: Floats | None = None
) -> NDArray[np.int64]:
    """[s] how many observations of each row of `x` [s, n] it takes until the capital against "the
    mean is at most m" (0 < m) has reached 1/alpha; n + 1 where that does not happen.

    `refutes_mean_at_most` for many samples at once, looked at after every observation.
    """
    gains = x / m - 1.0
    if weights is not None:
        gains = weights * gains
    log_capital = np.stack([np.cumsum(np.log1p(stake * gains), axis=1) for stake in STAKES])
    reached = log_mixed(log_capital) >= -np.log(alpha)
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, x.shape[1] + 1)


def log_mixed(log_capital: Floats) -> Floats:
    """[..] log of the capital that is spread evenly over the stakes, from [stakes, ..] logs."""
    largest = log_capital.max(axis=0)
    mixed: Floats = largest + np.log(np.exp(log_capital - largest).mean(axis=0))
    return mixed


def _lower(x: Floats, alpha: float, weights: Floats | None) -> float:
    """Largest refuted m below the mean; the capital falls in m, so bisection finds it."""
    low, high = 0.0, float(np.average(x, weights=weights))
    guess = high - 6.0 * (float(x.std()) + 0.1) / np.sqrt(len(x))  # only to start closer
    if guess > 0.0 and refutes_mean_at_most(x, guess, alpha=alpha, weights=weights):
        low = guess
    while high - low > _TOLERANCE:
        middle = 0.5 * (low + high)
        if refutes_mean_at_most(x, middle, alpha=alpha, weights=weights):
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=64)
def _looks(n: int) -> NDArray[np.int64]:
    """First observation after each look: between two of these the capital is not looked at."""
    if n <= _LOOK_ALWAYS:
        return np.arange(n)
    later = np.geomspace(_LOOK_ALWAYS, n - 1, _MORE_LOOKS).astype(np.int64)
    return np.unique(np.concatenate((np.arange(_LOOK_ALWAYS), later)))


def _scaled(values: Floats, support: Range) -> Floats:
    require(len(values) > 0, "a mean of nothing was asked for")
    x = (values - support.low) / (support.high - support.low)
    inside = bool((x >= -1e-9).all() and (x <= 1 + 1e-9).all())
    require(
        inside,
        f"values between {values.min()} and {values.max()} leave the range "
        f"{support.low} to {support.high}",
    )
    return np.clip(x, 0.0, 1.0)
