"""When a request leaves speculation: one rule, for the engine (online) and for recorded rounds.

Over the last `window` tested tokens (accepted proposals, and the rejected one that ended a round),
with at least `minimum` of them: fall back when the upper Wilson bound at `z` lies under `floor`.
Judged after every round. With `reprobe` a request comes back after `FIRST_GAP` plain tokens, with
an empty window; every further gap is twice as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.policy import FallbackSettings
from pairgate.errors import InvalidInput

FIRST_GAP = 64
_CHUNK_TOKENS = 4_000_000


def wilson_upper(successes: float, n: float, z: float) -> float:
    """Upper end of Wilson's score interval of a proportion; n > 0."""
    share = successes / n
    z2 = z * z / n
    spread = z * math.sqrt(share * (1 - share) / n + z2 / (4 * n))
    return (share + z2 / 2 + spread) / (1 + z2)


def falls(successes: float, n: float, settings: FallbackSettings) -> bool:
    """Whether `successes` of the last `n` tested tokens are enough to fall back."""
    if n < settings.minimum:
        return False
    return wilson_upper(successes, n, settings.z) < floor_of(settings)


def floor_of(settings: FallbackSettings) -> float:
    """The floor as a number; `break-even` must have been replaced by its value before."""
    if isinstance(settings.floor, str):
        raise InvalidInput(
            f"the fallback floor {settings.floor!r} is not a number yet",
            hint="replace it by the measured value, e.g. dataclasses.replace(settings, floor=0.55)",
        )
    return settings.floor


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackReplay:
    """What the rule would have done. Per request [n]: `fell`, `fell_at_round` (−1: never; the
    last round that it still speculated in), `plain_tokens` (emitted tokens of the rounds it would
    have decoded plainly), `n_returns`."""

    fell: NDArray[np.bool_]
    fell_at_round: NDArray[np.int64]
    plain_tokens: NDArray[np.int64]
    n_returns: NDArray[np.int64]


def replay_rule(
    proposed: NDArray[np.integer],
    accepted: NDArray[np.integer],
    emitted: NDArray[np.integer],
    round_offsets: NDArray[np.integer],
    settings: FallbackSettings,
) -> FallbackReplay:
    """The rule over recorded rounds (counterfactual fallback).

    proposed, accepted and emitted [rounds] of the DRAFTED rounds only, round_offsets [n + 1].
    Memory is bounded: about `_CHUNK_TOKENS` tested tokens at a time.
    """
    offsets = np.asarray(round_offsets, np.int64)
    n = len(offsets) - 1
    hits: NDArray[np.int64] = np.asarray(accepted, np.int64)
    tested: NDArray[np.int64] = hits + (hits < np.asarray(proposed, np.int64))
    fell_at = np.full(n, -1, np.int64)
    ends = np.concatenate(([0], np.cumsum(tested)))
    first = 0
    while first < n:
        limit = ends[offsets[first]] + _CHUNK_TOKENS
        last = max(first + 1, int(np.searchsorted(ends[offsets], limit, side="right")) - 1)
        last = min(last, n)
        part = slice(int(offsets[first]), int(offsets[last]))
        fell_at[first:last] = _first_falls(
            hits[part], tested[part], offsets[first : last + 1] - offsets[first], settings
        )
        first = last
    received: NDArray[np.int64] = np.asarray(emitted, np.int64)
    return _consequences(hits, tested, received, offsets, fell_at, settings)


def _first_falls(
    accepted: NDArray[np.int64],
    tested: NDArray[np.int64],
    offsets: NDArray[np.int64],
    settings: FallbackSettings,
) -> NDArray[np.int64]:
    """[n] the first round of each request after which the rule fires, −1 if none."""
    floor = floor_of(settings)
    n_rounds = len(tested)
    token_ends = np.cumsum(tested)  # tested tokens up to the end of each round
    total = int(token_ends[-1]) if n_rounds else 0
    hit = np.ones(total + 1, np.int64)
    hit[0] = 0
    hit[token_ends[tested > accepted]] = 0  # the last tested token of a round that rejected
    successes = np.cumsum(hit)
    request = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    origin = np.concatenate(([0], token_ends))[offsets[:-1]][request]
    begin = np.maximum(origin, token_ends - settings.window)
    size = token_ends - begin
    share = (successes[token_ends] - successes[begin]) / np.maximum(size, 1)
    upper = _wilson_uppers(share, np.maximum(size, 1), settings.z)
    fires = np.flatnonzero((size >= settings.minimum) & (upper < floor))
    found = np.full(len(offsets) - 1, -1, np.int64)
    # Written backwards, so that the first one of each request stays.
    found[request[fires[::-1]]] = fires[::-1] - offsets[request[fires[::-1]]]
    return found


def _wilson_uppers(
    share: NDArray[np.float64], n: NDArray[np.int64], z: float
) -> NDArray[np.float64]:
    """`wilson_upper` of many proportions."""
    z2 = z * z / n
    spread = z * np.sqrt(share * (1 - share) / n + z2 / (4 * n))
    return (share + z2 / 2 + spread) / (1 + z2)


def _consequences(
    accepted: NDArray[np.int64],
    tested: NDArray[np.int64],
    emitted: NDArray[np.int64],
    offsets: NDArray[np.int64],
    fell_at: NDArray[np.int64],
    settings: FallbackSettings,
) -> FallbackReplay:
    """Plain tokens and returns; only the requests that fell are walked one by one."""
    plain = np.zeros(len(fell_at), np.int64)
    returns = np.zeros(len(fell_at), np.int64)
    for i in np.flatnonzero(fell_at >= 0):
        rounds = slice(int(offsets[i] + fell_at[i]) + 1, int(offsets[i + 1]))
        if not settings.reprobe:
            plain[i] = emitted[rounds].sum()
            continue
        plain[i], returns[i] = _walk_reprobes(
            accepted[rounds], tested[rounds], emitted[rounds], settings
        )
    return FallbackReplay(
        fell=fell_at >= 0, fell_at_round=fell_at, plain_tokens=plain, n_returns=returns
    )


def _walk_reprobes(
    accepted: NDArray[np.int64],
    tested: NDArray[np.int64],
    emitted: NDArray[np.int64],
    settings: FallbackSettings,
) -> tuple[int, int]:
    """Plain tokens and number of returns in the rounds after the first fall."""
    state = FallbackState(settings, fallen=True)
    plain = 0
    for a, t, e in zip(accepted.tolist(), tested.tolist(), emitted.tolist(), strict=True):
        if state.fallen:
            plain += e
            state.decoded_plainly(e)
        else:
            state.observe(a, t)
    return plain, state.n_returns


class FallbackState:
    """The rule for one running request. `fallen` says whether it decodes plainly now."""

    __slots__ = ("_gap", "_outcomes", "_plain", "_settings", "_successes", "fallen", "n_returns")

    def __init__(self, settings: FallbackSettings, *, fallen: bool = False) -> None:
        self._settings = settings
        self._outcomes: list[int] = []
        self._successes = 0
        self._gap = FIRST_GAP
        self._plain = 0
        self.fallen = fallen
        self.n_returns = 0

    def observe(self, accepted: int, tested: int) -> bool:
        """One draft round; True when the request falls back now."""
        outcomes = self._outcomes
        outcomes.extend([1] * accepted)
        if tested > accepted:
            outcomes.append(0)
        self._successes += accepted
        surplus = len(outcomes) - self._settings.window
        if surplus > 0:
            self._successes -= sum(outcomes[:surplus])
            del outcomes[:surplus]
        if falls(self._successes, len(outcomes), self._settings):
            self.fallen = True
        return self.fallen

    def decoded_plainly(self, n_tokens: int) -> bool:
        """Plain tokens while fallen; True when it is time to speculate again."""
        self._plain += n_tokens
        if not self._settings.reprobe or self._plain < self._gap:
            return False
        self._gap *= 2
        self._plain = 0
        self._outcomes, self._successes = [], 0
        self.fallen = False
        self.n_returns += 1
        return True
