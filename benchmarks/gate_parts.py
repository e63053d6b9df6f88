"""Error rates of single rules: two kinds of requests, the share under a floor, speedup under drift,
fallback. Each function is one cell of a table: a seed in, shares of simulations out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.gate_traffic import Floats, K, Shape, generator
from pairgate.domain.evidence import Estimate, Missing
from pairgate.domain.policy import FallbackSettings, ReplaySettings
from pairgate.measure.looks import speed_alpha
from pairgate.stats.blocks import block_ratio
from pairgate.stats.fallback_rule import replay_rule
from pairgate.stats.mixture import Bimodality, bimodality, two_kinds

Draw = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How acceptance is spread over requests, with `tested` tokens each (lowest, highest)."""

    name: str
    draw: Draw
    tested: tuple[int, int] = (20, 120)
    two: bool = False


def _either(share: float, low: tuple[float, float], high: tuple[float, float]) -> Draw:
    return lambda rng, n: np.where(rng.random(n) < share, rng.beta(*low, n), rng.beta(*high, n))


KINDS = (
    Kind(name="one kind, beta(14, 6)", draw=lambda rng, n: rng.beta(14, 6, n)),
    Kind(name="one kind, short answers", draw=lambda rng, n: rng.beta(14, 6, n), tested=(15, 20)),
    Kind(name="skewed, beta(8, 1)", draw=lambda rng, n: rng.beta(8, 1, n)),
    Kind(name="flat, 0.4 to 0.8", draw=lambda rng, n: rng.uniform(0.4, 0.8, n)),
    Kind(name="half at 0.4, half at 0.8", draw=_either(0.5, (24, 36), (48, 12)), two=True),
    Kind(name="a tenth at 0.3, the rest at 0.8", draw=_either(0.1, (18, 42), (48, 12)), two=True),
    Kind(name="30 % at 0.5, 70 % at 0.75, wide", draw=_either(0.3, (10, 10), (15, 5)), two=True),
)


def flagged(kind: Kind, n: int, *, n_sim: int, seed: int) -> float:
    """How often `n` requests are called two kinds."""
    rng = generator(seed, "kinds", kind.name, n)
    strong = 0
    for _ in range(n_sim):
        tested = rng.integers(kind.tested[0], kind.tested[1] + 1, n)
        found = two_kinds(rng.binomial(tested, kind.draw(rng, n)), tested, rng=rng)
        strong += not isinstance(found, Missing) and found.strong
    return strong / n_sim


def share_cleared(shape: Shape, n: int, *, n_sim: int, alpha: float, seed: int) -> float:
    """How often the upper bound of the share under a floor stays under a cap that is exactly that
    share. The floor is where a tenth of the requests lie, or between two kinds."""
    rng = generator(seed, "share", shape.name, n)
    own = shape.draw(rng, 200_000).acceptance
    floor = 0.6 if shape.name == "bimodal" else float(np.quantile(own, 0.1))
    cap = float((own < floor).mean())
    cleared = 0
    for _ in range(n_sim):
        drawn = shape.draw(rng, n)
        tested = np.maximum(drawn.max_tokens * 2 // 5, 1)
        found = bimodality(
            rng.binomial(tested, drawn.acceptance),
            tested,
            np.arange(n),
            floor=floor,
            alpha=alpha,
            rng=rng,
            unit="requests",
        )
        cleared += isinstance(found, Bimodality) and found.share_below_floor.high <= cap
    return cleared / n_sim


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the log of the machine's speed moves: by `trend` over 18 runs, a random walk with
    `wander` per run, `noise` of a single run."""

    name: str
    trend: float = 0.0
    wander: float = 0.0
    noise: float = 0.02


DRIFTS = (
    Drift(name="steady"),
    Drift(name="30 % faster by the end", trend=0.26),
    Drift(name="wandering", wander=0.03),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Shares of simulations that say "faster": the gate's ABBA blocks with their looks, the same
    runs as all of one arm and then all of the other; and the blocks that were used."""

    abba: float
    one_after_the_other: float
    blocks: float


def speed_cleared(drift: Drift, ratio: float, *, n_sim: int, alpha: float, seed: int) -> Speed:
    """A draft that is `ratio` times as fast as its target, judged against 1.0."""
    rng = generator(seed, "speed", drift.name, ratio)
    settings = ReplaySettings()
    most, step = settings.max_blocks, settings.min_blocks
    level = speed_alpha(alpha, settings)
    passed, naive, used = 0, 0, 0
    for _ in range(n_sim):
        runs = 2 * most
        walk = np.cumsum(rng.normal(0.0, drift.wander, runs)) if drift.wander else 0.0
        machine = np.linspace(0.0, drift.trend, runs) + walk + rng.normal(0.0, drift.noise, runs)
        # Block by block: without, with; with, without; …
        first, second = machine[0::2], machine[1::2]
        odd = np.arange(most) % 2 == 1
        spec = np.exp(np.where(odd, first, second)) * ratio
        target = np.exp(np.where(odd, second, first))
        for n in range(step, most + 1, step):
            found = block_ratio(spec[:n], target[:n], alpha=level)
            assert isinstance(found, Estimate)
            faster = found.low > 1.0
            if faster or found.high < 1.0:
                break
        passed += faster
        used += n
        # All without a draft first, and both halves as independent samples.
        apart = block_ratio(np.exp(machine[most:]) * ratio, np.exp(machine[:most]), alpha=alpha)
        naive += isinstance(apart, Estimate) and apart.low > 1.0
    return Speed(abba=passed / n_sim, one_after_the_other=naive / n_sim, blocks=used / n_sim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """Shares of requests of `n_rounds` rounds that leave speculation: by the gate's rule, and by
    "accepted / proposed of the last 20 proposals is under the floor"."""

    acceptance: float
    n_rounds: int
    rule: float
    literal: float


def fallback_fired(
    acceptance: float, n_rounds: int, *, n_requests: int, seed: int, k: int = K
) -> Fired:
    """Requests whose tokens are all accepted with one probability; the floor is 0.6."""
    rng = generator(seed, "fallback", acceptance, n_rounds)
    total = n_requests * n_rounds
    accepted = np.minimum(rng.geometric(1.0 - acceptance, total) - 1, k)
    offsets = np.arange(n_requests + 1) * n_rounds
    settings = FallbackSettings()
    fell = replay_rule(np.full(total, k), accepted, accepted + 1, offsets, settings).fell
    window = 20 // k
    by_round = np.cumsum(accepted.reshape(n_requests, n_rounds), axis=1)
    sums = by_round[:, window - 1 :].copy()
    sums[:, 1:] -= by_round[:, :-window]
    literal = (sums < 0.6 * window * k).any(axis=1)
    return Fired(
        acceptance=acceptance,
        n_rounds=n_rounds,
        rule=float(fell.mean()),
        literal=float(literal.mean()),
    )
