"""How many requests a domain needs before its verdict can be expected to be decided."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pairgate.domain.trace import RoundState, TraceBatch
from pairgate.errors import require

DEFAULT_SD = 0.2
# Under this number the gate answers INCONCLUSIVE whatever it sees (gate.md, Intervals).
FEWEST_REQUESTS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviation over requests of the token acceptance, in one domain."""

    domain: str
    n: int
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRequests:
    """`n` requests decide, with the named power, a mean that lies `distance` from the floor."""

    distance: float
    n: int


def needed_requests(
    distances: Iterable[float], *, sd: float, alpha: float = 0.05, power: float = 0.9
) -> tuple[NeededRequests, ...]:
    """n = ((z₁₋α + z_power) · sd / distance)²: one-sided, for independent requests. The anytime
    bound of the gate needs up to 2.5 times as many close to the floor (gate.md)."""
    scale = _scale(sd, alpha, power)
    found = []
    for distance in distances:
        require(1e-6 <= distance < 1, f"distance {distance} is not in [1e-6, 1)")
        n = max(FEWEST_REQUESTS, math.ceil((scale / distance) ** 2))
        found.append(NeededRequests(distance=distance, n=n))
    return tuple(found)


def decidable_distance(n: int, *, sd: float, alpha: float = 0.05, power: float = 0.9) -> float:
    """The smallest distance from the floor that `n` requests decide with that power."""
    return _scale(sd, alpha, power) / math.sqrt(n)


def _scale(sd: float, alpha: float, power: float) -> float:
    require(0 < sd <= 1, f"the standard deviation is {sd}; it must be above 0 and at most 1")
    require(1e-12 <= alpha < 0.5, f"alpha {alpha} is not in [1e-12, 0.5)")
    require(0.5 <= power < 1, f"power {power} is not in [0.5, 1)")
    normal = NormalDist()
    return (normal.inv_cdf(1 - alpha) + normal.inv_cdf(power)) * sd


def spreads(batch: TraceBatch) -> tuple[Spread, ...]:
    """Over-dispersion seen in an acceptance pass: sd of accepted / tested over the requests that
    tested a token, per domain with at least two of them."""
    drafted = batch.round_state == RoundState.DRAFTED
    rows = batch.round_request[drafted]
    accepted = batch.accepted[drafted].astype(np.int64)
    # A round tests its accepted tokens, and one more when it ended in a rejection.
    tested = accepted + (accepted < batch.proposed[drafted])
    n_accepted = np.bincount(rows, accepted, minlength=len(batch))
    n_tested = np.bincount(rows, tested, minlength=len(batch))
    usable = batch.ok & (n_tested > 0)
    rate = n_accepted[usable] / n_tested[usable]
    domains = batch.domain[usable]
    return tuple(
        Spread(domain=str(d), n=int((domains == d).sum()), sd=float(rate[domains == d].std(ddof=1)))
        for d in np.unique(domains)
        if (domains == d).sum() > 1
    )
