"""Error rates of the acceptance rule on simulated traffic, from the gate's own code.

    python benchmarks/gate_error_rates.py            some seconds
    python benchmarks/gate_error_rates.py --full     2,000 simulations per cell, minutes

For each shape of traffic and number of requests: how often the lower bound clears a floor that is
*exactly* the true value (false pass, at most alpha but for Monte Carlo noise), and how often it
does when the truth is 0.05 above the floor (power). `naive` is the binomial interval over tokens
that many dashboards show.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import Estimate
from pairgate.domain.trace import Arm, Finish, Phase, RoundState, TraceBatch
from pairgate.measure.totals import request_totals
from pairgate.stats.betting import betting_bounds
from pairgate.stats.proportion import wilson
from pairgate.stats.ratio import ClusterSums, pooled_ratio

Floats = NDArray[np.float64]
K = 5
MARGIN = 0.05
POPULATION = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape of traffic: the law of a request's own acceptance and of its max_tokens."""

    name: str
    acceptance: Callable[[np.random.Generator, int], Floats]
    length: Callable[[np.random.Generator, int], NDArray[np.int64]]


def _lengths(
    median: float, spread: float
) -> Callable[[np.random.Generator, int], NDArray[np.int64]]:
    return lambda rng, n: np.clip(rng.lognormal(math.log(median), spread, n), 8, 256).astype(int)


def _bimodal(rng: np.random.Generator, n: int) -> Floats:
    return np.where(rng.random(n) < 0.35, rng.beta(24, 36, n), rng.beta(48, 12, n))


def _rare_bad(rng: np.random.Generator, n: int) -> Floats:
    return np.where(rng.random(n) < 0.05, rng.beta(6, 24, n), rng.beta(42, 14, n))


SHAPES = (
    Shape(
        name="over-dispersed",
        acceptance=lambda rng, n: rng.beta(7, 3, n),
        length=_lengths(60, 0.5),
    ),
    Shape(
        name="heavy-tailed",
        acceptance=lambda rng, n: rng.beta(14, 6, n),
        length=_lengths(40, 1.1),
    ),
    Shape(name="bimodal", acceptance=_bimodal, length=_lengths(60, 0.5)),
    Shape(name="rare-bad", acceptance=_rare_bad, length=_lengths(60, 0.5)),
)


def simulate_batch(
    acceptance: Floats,
    max_tokens: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    k: int = K,
    domain: str | NDArray[np.str_] = "all",
    session: NDArray[np.str_] | None = None,
    temperature: float = 1.0,
) -> TraceBatch:
    """An acceptance pass in which request i accepts each token with probability `acceptance[i]`.

    Rounds run until `max_tokens[i]` tokens are written; the last one is cut by the room left.
    """
    n, width = len(acceptance), int(max_tokens.max())
    stop = np.maximum(1.0 - acceptance, 1e-12)[:, None]
    accepted = np.minimum(rng.geometric(stop, (n, width)) - 1, k)
    accepted[acceptance >= 1.0] = k
    before = np.cumsum(accepted + 1, axis=1) - (accepted + 1)
    room = (max_tokens - 1)[:, None] - before
    ran = room > 0
    emitted = np.minimum(accepted + 1, room)[ran]
    accepted, n_rounds = accepted[ran], ran.sum(axis=1)
    ends = np.concatenate(([0], np.cumsum(n_rounds)))
    none = np.zeros(n + 1, np.int64)
    return TraceBatch(
        arm=Arm.SPEC,
        phase=Phase.ACCEPTANCE,
        concurrency=8,
        block=0,
        wall_s=1.0,
        definition="pairgate.rounds.v1",
        index=np.arange(n),
        request_id=np.char.add("r", np.arange(n).astype(str)),
        domain=np.broadcast_to(np.asarray(domain), n).astype(np.str_),
        session=np.full(n, "", np.str_) if session is None else session,
        temperature=np.full(n, temperature),
        prompt_tokens=np.full(n, 100, np.int32),
        completion_tokens=max_tokens.astype(np.int32),
        ttft_ms=np.full(n, 10.0),
        latency_ms=10.0 + max_tokens,
        finish=np.full(n, Finish.LENGTH, np.uint8),
        error=np.full(n, "", np.str_),
        fell_back_at=np.full(n, -1, np.int32),
        n_returns=np.zeros(n, np.int32),
        cached_tokens=np.full(n, -1, np.int32),
        round_offsets=ends,
        proposed=np.full(len(accepted), k, np.int16),
        accepted=accepted.astype(np.int16),
        emitted=emitted.astype(np.int16),
        round_state=np.full(len(accepted), RoundState.DRAFTED, np.uint8),
        round_ms=np.full(len(accepted), 20.0, np.float32),
        tokens_offsets=none,
        tokens=np.empty(0, np.int32),
        overlap_offsets=none,
        overlap=np.empty(0, np.float32),
        margin_offsets=none,
        margin=np.empty(0, np.float32),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Population:
    """Requests to draw from, so that the true mean and the true pooled rate are known exactly."""

    committed: Floats
    tested: Floats

    @property
    def mean(self) -> float:
        return float((self.committed / self.tested).mean())

    @property
    def pooled(self) -> float:
        return float(self.committed.sum() / self.tested.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of simulations in which the lower bound cleared the floor."""

    shape: str
    n: int
    mean_false_pass: float
    pooled_false_pass: float
    naive_false_pass: float
    mean_power: float
    pooled_power: float


def population(shape: Shape, rng: np.random.Generator, size: int = POPULATION) -> Population:
    batch = simulate_batch(shape.acceptance(rng, size), shape.length(rng, size), rng)
    totals = request_totals(batch)
    tested = totals.tested > 0
    return Population(
        committed=totals.committed[tested].astype(float), tested=totals.tested[tested].astype(float)
    )


def error_rates(
    shape: Shape, n: int, n_sim: int, *, alpha: float, rng: np.random.Generator
) -> Rates:
    """False pass and power of the three intervals at `n` requests."""
    truth = population(shape, rng)
    hits = np.zeros(5)
    for _ in range(n_sim):
        rows = rng.integers(0, len(truth.tested), n)
        committed, tested = truth.committed[rows], truth.tested[rows]
        mean_low = betting_bounds(committed / tested, alpha=alpha)[0]
        sums = ClusterSums(numerator=committed, denominator=tested)
        pooled = pooled_ratio(sums, alpha=alpha, rng=rng, unit="requests")
        pooled_low = pooled.low if isinstance(pooled, Estimate) else 0.0
        naive_low = wilson(sums.ratio, float(tested.sum()), alpha=alpha)[0]
        hits += (
            mean_low >= truth.mean,
            pooled_low >= truth.pooled,
            naive_low >= truth.pooled,
            mean_low >= truth.mean - MARGIN,
            pooled_low >= truth.pooled - MARGIN,
        )
    return _rates(shape, n, hits / n_sim)


def _rates(shape: Shape, n: int, shares: Floats) -> Rates:
    mean_false, pooled_false, naive_false, mean_power, pooled_power = shares.tolist()
    return Rates(
        shape=shape.name,
        n=n,
        mean_false_pass=mean_false,
        pooled_false_pass=pooled_false,
        naive_false_pass=naive_false,
        mean_power=mean_power,
        pooled_power=pooled_power,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="2,000 simulations per cell")
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    n_sim = 2000 if options.full else 100
    noise = 2.0 * math.sqrt(options.alpha * (1 - options.alpha) / n_sim)
    print(f"alpha {options.alpha}, {n_sim} simulations: false pass is alpha ± {noise:.3f} at best")
    print(f"{'':17}false pass at the floor       pass {MARGIN} above it")
    print(f"{'traffic':15}{'n':>6}   mean pooled  naive        mean pooled")
    rng = np.random.default_rng(options.seed)
    for shape in SHAPES:
        for n in (100, 300, 1000):
            found = error_rates(shape, n, n_sim, alpha=options.alpha, rng=rng)
            false = (found.mean_false_pass, found.pooled_false_pass, found.naive_false_pass)
            power = (found.mean_power, found.pooled_power)
            shown = "  ".join(f"{x:5.3f}" for x in false) + "       "
            print(f"{found.shape:15}{n:6d}  {shown}" + "  ".join(f"{x:5.2f}" for x in power))


if __name__ == "__main__":
    main()
