"""Simulated traffic for the gate's error rates: shapes, batches, populations of known truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pairgate.domain.trace import Arm, Finish, Phase, RoundState, TraceBatch
from pairgate.measure.totals import request_totals

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
K = 5
POPULATION = 20_000
_CHUNK = 2000  # requests simulated at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Of each request [n]: the probability that one of its tokens is accepted, and its length."""

    acceptance: Floats
    max_tokens: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape of traffic; no answer is longer than `longest` tokens."""

    name: str
    draw: Callable[[np.random.Generator, int], Requests]
    longest: int = 256


def _lengths(rng: np.random.Generator, n: int) -> Ints:
    return np.clip(rng.lognormal(math.log(60), 0.5, n), 8, 256).astype(np.int64)


def _mild(rng: np.random.Generator, n: int) -> Requests:
    return Requests(acceptance=rng.beta(28, 12, n), max_tokens=_lengths(rng, n))


def _heavy_tailed(rng: np.random.Generator, n: int) -> Requests:
    """Log-normal lengths with a heavy tail; the longer an answer, the less of it is accepted
    (Gaussian copula with a correlation of −0.6)."""
    length = rng.standard_normal(n)
    level = special.ndtr(-0.6 * length + 0.8 * rng.standard_normal(n))
    return Requests(
        acceptance=special.betaincinv(7, 3, level),
        max_tokens=np.clip(40 * np.exp(1.1 * length), 8, 512).astype(np.int64),
    )


def _bimodal(rng: np.random.Generator, n: int) -> Requests:
    acceptance = np.where(rng.random(n) < 0.5, rng.beta(24, 36, n), rng.beta(48, 12, n))
    return Requests(acceptance=acceptance, max_tokens=_lengths(rng, n))


def _rare_bad(rng: np.random.Generator, n: int) -> Requests:
    acceptance = np.where(rng.random(n) < 0.05, rng.beta(6, 24, n), rng.beta(42, 14, n))
    return Requests(acceptance=acceptance, max_tokens=_lengths(rng, n))


SHAPES = (
    Shape(name="mild", draw=_mild),
    Shape(name="heavy-tailed", draw=_heavy_tailed, longest=512),
    Shape(name="bimodal", draw=_bimodal),
    Shape(name="rare-bad", draw=_rare_bad),
)


def generator(seed: int, *names: object) -> np.random.Generator:
    """A generator of its own for one cell, so that cells can run in any order and process."""
    return np.random.default_rng([seed, *"/".join(map(str, names)).encode()])


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
        latency_ms=10.0 + max_tokens.astype(np.float64),
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
    def rates(self) -> Floats:
        return self.committed / self.tested

    @property
    def mean(self) -> float:
        return float(self.rates.mean())

    @property
    def pooled(self) -> float:
        return float(self.committed.sum() / self.tested.sum())

    @property
    def truth(self) -> float:
        """The smaller of both: a floor there makes one of the two bounds a boundary."""
        return min(self.mean, self.pooled)


def population(shape: Shape, rng: np.random.Generator, size: int = POPULATION) -> Population:
    """`size` requests of a shape, as measured: with the censored last round."""
    committed, tested = [], []
    for begin in range(0, size, _CHUNK):
        drawn = shape.draw(rng, min(_CHUNK, size - begin))
        totals = request_totals(simulate_batch(drawn.acceptance, drawn.max_tokens, rng))
        committed.append(totals.committed)
        tested.append(totals.tested)
    counts = np.concatenate(tested)
    return Population(
        committed=np.concatenate(committed)[counts > 0].astype(float),
        tested=counts[counts > 0].astype(float),
    )
