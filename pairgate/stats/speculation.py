"""The arithmetic of speculative decoding at a constant token acceptance (Leviathan et al. 2023)."""

from __future__ import annotations

import numpy as np


def acceptance_length(alpha: float, k: float) -> float:
    """Emitted tokens per round, (1 − α^{K+1}) / (1 − α): arXiv 2211.17192, equation 1."""
    if alpha >= 1.0:
        return k + 1.0
    return float((1.0 - alpha ** (k + 1.0)) / (1.0 - alpha))


def acceptance_rate(alpha: float, k: float) -> float:
    """Accepted of proposed tokens: (τ − 1) / K."""
    return (acceptance_length(alpha, k) - 1.0) / k


def break_even(cost_ratio: float, k: float) -> float:
    """The token acceptance at which a draft round emits as much per time as plain steps.

    `cost_ratio` is the time of a draft round over that of a plain step; solves τ(α) = cost ratio.
    0 when even a useless draft costs nothing, 1 when not even a perfect one pays.
    """
    if cost_ratio <= 1.0:
        return 0.0
    if cost_ratio >= k + 1.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if acceptance_length(middle, k) < cost_ratio:
            low = middle
        else:
            high = middle
    return float(np.round(0.5 * (low + high), 12))
