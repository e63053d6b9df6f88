"""The acceptance rule as an evaluation uses it, on many simulated evaluations at once.

A look after every block of 64 requests: FAIL once the capital against "at least the floor" has
reached 1/alpha, PASS from 100 requests on once both capitals against "under the floor" have. At
the planned end the pooled ratio is judged by the studentised bootstrap (delta method from 1,000
requests on). That this is what `app.early` and `judge` do is tested (tests/stats).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.gate_traffic import Floats, Ints, Population, Shape, generator, population
from pairgate.domain.evidence import Estimate
from pairgate.measure.totals import EARLY_SHARE
from pairgate.stats.betting import refuted_after
from pairgate.stats.proportion import wilson
from pairgate.stats.ratio import ClusterSums, pooled_ratios

BLOCK = 64
MIN_UNITS, MIN_POOLED = 30, 100
SIZES = (30, 100, 300, 1000)
DISTANCES = (-0.10, -0.05, -0.02, 0.0, 0.02, 0.05, 0.10)
_AT_ONCE = 250  # simulations whose capitals are in memory together


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Shares of the simulations, at a truth `distance` above the floor: the rule's PASS and FAIL,
    and the mean number of requests it used of the `n` that were planned."""

    shape: str
    n: int
    distance: float
    passed: float
    failed: float
    n_used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FalsePass:
    """Shares of simulations in which a lower bound cleared a floor that is exactly the truth of
    its own quantity: request mean by betting, pooled ratio, binomial over tokens."""

    shape: str
    n: int
    mean: float
    pooled: float
    naive: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Simulated evaluations [s, n] in the order of submission; `longest`: no request has more."""

    committed: Floats
    tested: Floats
    longest: int

    @property
    def rates(self) -> Floats:
        return self.committed / self.tested


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capitals:
    """[s] requests after which a capital reached 1/alpha: against "under the floor" (`mean_over`,
    `pooled_over`) and against "at least the floor" (`mean_under`, `pooled_under`)."""

    mean_over: Ints
    mean_under: Ints
    pooled_over: Ints
    pooled_under: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledBounds:
    """[s] bounds on the pooled ratio at the planned end; NaN where it is Missing."""

    low: Floats
    high: Floats


def drawn(truth: Population, shape: Shape, n_sim: int, n: int, rng: np.random.Generator) -> Samples:
    rows = rng.integers(0, len(truth.tested), (n_sim, n))
    return Samples(
        committed=truth.committed[rows], tested=truth.tested[rows], longest=shape.longest
    )


def capitals(of: Samples, floor: float, *, alpha: float) -> Capitals:
    """When each capital decides; the pooled ones at a fifth of alpha, as at a look."""
    parts = []
    for begin in range(0, len(of.tested), _AT_ONCE):
        rows = slice(begin, begin + _AT_ONCE)
        x, w = of.rates[rows], of.tested[rows] / of.longest
        early = alpha * EARLY_SHARE
        parts.append(
            (
                refuted_after(x, floor, alpha=alpha),
                refuted_after(1.0 - x, 1.0 - floor, alpha=alpha),
                refuted_after(x, floor, alpha=early, weights=w),
                refuted_after(1.0 - x, 1.0 - floor, alpha=early, weights=w),
            )
        )
    mean_over, mean_under, pooled_over, pooled_under = map(np.concatenate, zip(*parts, strict=True))
    return Capitals(
        mean_over=mean_over,
        mean_under=mean_under,
        pooled_over=pooled_over,
        pooled_under=pooled_under,
    )


def pooled_bounds(
    of: Samples, *, alphas: tuple[float, ...], rng: np.random.Generator
) -> tuple[PooledBounds, ...]:
    """Per level the bounds of every simulation, from the gate's own `pooled_ratios`."""
    bounds = np.full((len(alphas), len(of.tested), 2), np.nan)
    for i, (a, b) in enumerate(zip(of.committed, of.tested, strict=True)):
        sums = ClusterSums(numerator=a, denominator=b)
        found = pooled_ratios(sums, alphas=alphas, rng=rng, unit="requests")
        for j, value in enumerate(found):
            if isinstance(value, Estimate):
                bounds[j, i] = value.low, value.high
    return tuple(PooledBounds(low=level[:, 0], high=level[:, 1]) for level in bounds)


def rule_ends(
    at: Capitals, end: PooledBounds | None, floor: float, n: int
) -> tuple[Floats, Floats, Ints]:
    """[s] whether the rule passes, whether it fails, and how many of the `n` planned requests it
    used. `end` None: fewer than the pooled ratio needs were planned, so it can only fail."""
    size = len(at.mean_over)
    passed, failed = np.zeros(size, bool), np.zeros(size, bool)
    used = np.full(size, n)
    open_ = np.ones(size, bool)
    for look in range(BLOCK, n, BLOCK):
        fails = open_ & ((at.mean_under <= look) | (at.pooled_under <= look))
        clear = (at.mean_over <= look) & (at.pooled_over <= look)
        passes = open_ & ~fails & clear & (look >= MIN_POOLED)
        failed |= fails
        passed |= passes
        used[fails | passes] = look
        open_ &= ~(fails | passes)
    fails = open_ & (at.mean_under <= n)
    if end is not None:
        fails |= open_ & (end.high < floor)
        passed |= open_ & ~fails & (at.mean_over <= n) & (end.low >= floor)
    failed |= fails
    return passed, failed, used


def acceptance_cells(
    shape: Shape,
    *,
    n_sim: int,
    alpha: float,
    seed: int,
    sizes: tuple[int, ...] = SIZES,
    distances: tuple[float, ...] = DISTANCES,
) -> tuple[tuple[Decided, ...], tuple[FalsePass, ...]]:
    """Every planned size and distance of one shape of traffic, from the same simulations."""
    rng = generator(seed, "acceptance", shape.name)
    truth = population(shape, rng)
    samples = drawn(truth, shape, n_sim, max(sizes), rng)
    own = refuted_after_chunked(samples.rates, truth.mean, alpha=alpha)
    ends: dict[int, PooledBounds] = {}
    false_pass = []
    for n in sizes:
        cut = Samples(
            committed=samples.committed[:, :n],
            tested=samples.tested[:, :n],
            longest=samples.longest,
        )
        pooled_false = np.nan
        if n >= MIN_POOLED:
            late = alpha * (1.0 - EARLY_SHARE)
            once, ends[n] = pooled_bounds(cut, alphas=(alpha, late), rng=rng)
            pooled_false = float((once.low >= truth.pooled).mean())
        naive = [
            wilson(a.sum() / b.sum(), float(b.sum()), alpha=alpha)[0]
            for a, b in zip(cut.committed, cut.tested, strict=True)
        ]
        false_pass.append(
            FalsePass(
                shape=shape.name,
                n=n,
                mean=float((own <= n).mean()),
                pooled=pooled_false,
                naive=float((np.array(naive) >= truth.pooled).mean()),
            )
        )
    decided = []
    for distance in distances:
        floor = truth.truth - distance
        at = capitals(samples, floor, alpha=alpha)
        for n in sizes:
            passed, failed, used = rule_ends(at, ends.get(n), floor, n)
            decided.append(
                Decided(
                    shape=shape.name,
                    n=n,
                    distance=distance,
                    passed=float(passed.mean()),
                    failed=float(failed.mean()),
                    n_used=float(used.mean()),
                )
            )
    return tuple(decided), tuple(false_pass)


def refuted_after_chunked(x: Floats, m: float, *, alpha: float) -> Ints:
    """`refuted_after` with bounded memory."""
    return np.concatenate(
        [refuted_after(x[i : i + _AT_ONCE], m, alpha=alpha) for i in range(0, len(x), _AT_ONCE)]
    )
