"""What lies at its boundary in simulated evaluations, and how often they pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from benchmarks.gate_traffic import (
    SHAPES,
    Floats,
    Shape,
    generator,
    population,
    simulate_batch,
)
from benchmarks.gate_whole import Simulated, run
from pairgate.domain.policy import (
    AcceptanceRule,
    BimodalityRule,
    FallbackRateRule,
    FidelityRule,
    MemoryRule,
    Mode,
    NonInferiorityRule,
    Policy,
    Rule,
    SpeedupRule,
)
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.domain.verdict import Outcome
from pairgate.measure.totals import request_totals, verified_rounds
from pairgate.stats.fallback_rule import replay_rule
from pairgate.stats.speculation import acceptance_length

MARGIN = 0.02
MILD, HEAVY, BIMODAL, RARE = SHAPES

Make = Callable[[np.random.Generator, float], Simulated]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A policy and a traffic whose truth lies a `distance` above what a PASS needs."""

    name: str
    make: Callable[[int], Make]


_SAFE: tuple[Rule, ...] = (SpeedupRule(), MemoryRule(), FidelityRule())
_LOW = AcceptanceRule(threshold=0.3, advise_threshold=None)


def _policy(*rules: Rule) -> Policy:
    return Policy(name="simulated", rules=rules)


def _floor(threshold: float | str, **fields: object) -> AcceptanceRule:
    return replace(_LOW, threshold=threshold, **fields)  # type: ignore[arg-type]


def _domains(names: str, n: int) -> np.ndarray:
    return np.array(list(names))[np.arange(n) % len(names)]


def _replayed(shape: Shape, n: int, rng: np.random.Generator, names: str = "ab") -> TraceBatch:
    drawn = shape.draw(rng, n)
    return simulate_batch(drawn.acceptance, drawn.max_tokens, rng, domain=_domains(names, n))


def _at_the_floor(shape: Shape, names: str = "ab", n: int = 256) -> Callable[[int], Make]:
    def prepared(seed: int) -> Make:
        truth = population(shape, generator(seed, "whole", shape.name)).truth
        return lambda rng, distance: Simulated(
            policy=_policy(_floor(truth - distance), *_SAFE),
            acceptance=_replayed(shape, n, rng, names),
            longest=shape.longest,
        )

    return prepared


def _one_domain(seed: int) -> Make:
    truth = population(RARE, generator(seed, "whole", "one domain")).truth
    return lambda rng, distance: Simulated(
        policy=_policy(_floor(0.3, domains=(("b", truth - distance),)), *_SAFE),
        acceptance=_replayed(RARE, 384, rng, "aab"),
    )


def _session_rates(rng: np.random.Generator, n_sessions: int) -> Floats:
    """[sessions, 5] rates with an intraclass correlation of about a half."""
    level = rng.beta(21, 9, n_sessions)[:, None]
    return rng.beta(30 * level, 30 * (1.0 - level), (n_sessions, 5))


def _session_batch(rng: np.random.Generator, n_sessions: int) -> TraceBatch:
    """Blocks of 13 sessions, each with its five turns spread over the block."""
    rates, name = _session_rates(rng, n_sessions), np.arange(n_sessions)
    order = [
        (s, turn) for b in range(0, n_sessions, 13) for turn in range(5) for s in name[b : b + 13]
    ]
    session, turn = np.array(order).T
    lengths = np.clip(rng.lognormal(4.1, 0.5, len(order)), 8, 256).astype(np.int64)
    return simulate_batch(
        rates[session, turn], lengths, rng, session=np.char.add("s", session.astype(str))
    )


def _in_sessions(seed: int) -> Make:
    totals = request_totals(_session_batch(generator(seed, "whole", "sessions"), 5200))
    kept = totals.tested > 0
    mean = float((totals.committed[kept] / totals.tested[kept]).mean())
    truth = min(mean, float(totals.committed.sum() / totals.tested.sum()))
    return lambda rng, distance: Simulated(
        policy=_policy(_floor(truth - distance), *_SAFE),
        acceptance=_session_batch(rng, 104),
        longest=256,
        block=65,
    )


def _speed(seed: int) -> Make:
    del seed
    return lambda rng, distance: Simulated(
        policy=_policy(_LOW, *_SAFE),
        acceptance=_replayed(MILD, 256, rng),
        speedup=1.0 + distance,
    )


def _break_even(seed: int) -> Make:
    """The cost of a round is what the truth earns; the speedup itself is only shown."""
    truth = population(MILD, generator(seed, "whole", "break-even")).truth
    shown = SpeedupRule(mode=Mode.ADVISE)
    return lambda rng, distance: Simulated(
        policy=_policy(_floor("break-even"), shown, *_SAFE[1:]),
        acceptance=_replayed(MILD, 256, rng),
        round_cost=acceptance_length(truth - distance, 5),
    )


def _production(seed: int) -> Make:
    """Both pairs on the same requests; the candidate accepts `MARGIN` less, plus the distance."""
    del seed

    def make(rng: np.random.Generator, distance: float) -> Simulated:
        drawn = MILD.draw(rng, 256)
        own = np.clip(drawn.acceptance, 0.2, 0.85)
        batch = simulate_batch(own - MARGIN + distance, drawn.max_tokens, rng)
        production = simulate_batch(own, drawn.max_tokens, rng)
        return Simulated(
            policy=_policy(_LOW, NonInferiorityRule(margin=MARGIN), *_SAFE),
            acceptance=batch,
            incumbent=replace(production, arm=Arm.INCUMBENT),
        )

    return make


def _fallback(seed: int) -> Make:
    rng = generator(seed, "whole", "fallback")
    drawn = BIMODAL.draw(rng, 10_000)
    batch = simulate_batch(drawn.acceptance, drawn.max_tokens, rng)
    rounds, totals = verified_rounds(batch), request_totals(batch)
    ends = np.concatenate(([0], np.cumsum(totals.rounds)))
    policy = _policy(_LOW)
    cap = float(
        replay_rule(
            rounds.proposed, rounds.accepted, rounds.emitted, ends, policy.fallback
        ).fell[totals.rounds > 0].mean()
    )  # fmt: skip
    return lambda rng, distance: Simulated(
        policy=_policy(_LOW, FallbackRateRule(mode=Mode.GATE, max_share=cap + distance), *_SAFE),
        acceptance=_replayed(BIMODAL, 256, rng),
    )


def _share(seed: int) -> Make:
    own = BIMODAL.draw(generator(seed, "whole", "share"), 200_000).acceptance
    cap = float((own < 0.6).mean())
    return lambda rng, distance: Simulated(
        policy=_policy(_LOW, BimodalityRule(mode=Mode.GATE, max_share=cap + distance), *_SAFE),
        acceptance=_replayed(BIMODAL, 256, rng),
    )


SCENARIOS = (
    Scenario(name="floor, mild traffic", make=_at_the_floor(MILD)),
    Scenario(name="floor, heavy-tailed traffic", make=_at_the_floor(HEAVY)),
    Scenario(name="floor, all of six domains at it", make=_at_the_floor(RARE, "abcdef", 384)),
    Scenario(name="floor of one domain in two", make=_one_domain),
    Scenario(name="floor, sessions of five", make=_in_sessions),
    Scenario(name="speedup", make=_speed),
    Scenario(name="break-even", make=_break_even),
    Scenario(name="margin to production", make=_production),
    Scenario(name="cap on fallback", make=_fallback),
    Scenario(name="cap on the share under 0.6", make=_share),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """How simulated evaluations of one scenario ended, at one distance."""

    name: str
    distance: float
    n_sim: int
    n_passed: int
    n_failed: int
    n_used: int
    n_planned: int

    def __add__(self, other: Whole) -> Whole:
        return replace(
            self,
            n_sim=self.n_sim + other.n_sim,
            n_passed=self.n_passed + other.n_passed,
            n_failed=self.n_failed + other.n_failed,
            n_used=self.n_used + other.n_used,
        )


def whole_cell(name: str, distance: float, *, n_sim: int, seed: int, part: int = 0) -> Whole:
    """`n_sim` evaluations of a scenario whose truth lies `distance` above what a PASS needs; every
    `part` is drawn from a generator of its own."""
    make, rng = _prepared(name, seed), generator(seed, "whole", name, distance, part)
    ended, planned = [], 0
    for _ in range(n_sim):
        simulated = make(rng, distance)
        planned = len(simulated.acceptance)
        ended.append(run(simulated, rng))
    return Whole(
        name=name,
        distance=distance,
        n_sim=n_sim,
        n_passed=sum(e.outcome is Outcome.PASS for e in ended),
        n_failed=sum(e.outcome is Outcome.FAIL for e in ended),
        n_used=sum(e.n for e in ended),
        n_planned=planned,
    )


@lru_cache(maxsize=len(SCENARIOS))
def _prepared(name: str, seed: int) -> Make:
    """The scenario with its truth, which takes seconds to know."""
    return next(s for s in SCENARIOS if s.name == name).make(seed)
