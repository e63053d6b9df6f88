"""How many units the sequential test needs: simulated with the very bound that judges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pairgate.stats.betting import STAKES, log_mixed

_N_SIMULATED = 400
_LONGEST = 20_000


def units_to_decide(
    mean: float, sd: float, threshold: float, *, alpha: float, power: float, seed: int = 0
) -> int | None:
    """The number of units with which the betting bound lies on the right side of `threshold`, with
    probability `power`; None if that takes over 20,000.

    Units are drawn from a beta law with this mean and standard deviation (at most that of a coin);
    the test is that of `betting.refutes_mean_at_most` (arXiv 2010.09686), looked at every unit.
    """
    if mean == threshold or not 0.0 < threshold < 1.0:
        return None
    if mean < threshold:  # a FAIL: the same question about 1 − x
        mean, threshold = 1.0 - mean, 1.0 - threshold
    rng = np.random.default_rng(seed)
    ends = np.sort([_first_crossing(rng, mean, sd, threshold, alpha) for _ in range(_N_SIMULATED)])
    needed = int(ends[min(int(np.ceil(power * _N_SIMULATED)), _N_SIMULATED) - 1])
    return None if needed > _LONGEST else needed


def _first_crossing(
    rng: np.random.Generator, mean: float, sd: float, threshold: float, alpha: float
) -> int:
    """Units until the mixed capital against "the mean is at most `threshold`" reaches 1/alpha."""
    log_capital = np.full(len(STAKES), 0.0)
    done, size = 0, 256
    while done < _LONGEST:
        gains = _beta(rng, mean, sd, size) / threshold - 1.0
        running = log_capital[:, None] + np.cumsum(np.log1p(STAKES[:, None] * gains), axis=1)
        over = np.flatnonzero(log_mixed(running) >= -np.log(alpha))
        if len(over):
            return done + int(over[0]) + 1
        log_capital = running[:, -1]
        done += size
        size *= 2
    return _LONGEST + 1


def _beta(rng: np.random.Generator, mean: float, sd: float, n: int) -> NDArray[np.float64]:
    middle = min(max(mean, 1e-6), 1.0 - 1e-6)
    most = middle * (1.0 - middle)
    concentration = max(most / max(sd * sd, 1e-12) - 1.0, 1e-3)
    return rng.beta(middle * concentration, (1.0 - middle) * concentration, n)
