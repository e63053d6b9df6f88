"""From rounds to per-request sums, and how requests are sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.trace import RoundState, TraceBatch

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

EARLY_SHARE = 0.2  # of alpha, for what is judged by another interval at an early stop


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """The level of each bound, the generator, and how the requests were looked at.

    `looked`: a run that was looked at on the way keeps its order of submission, which was random,
    and betting bounds stay valid at `alpha`. Other intervals hold at one planned moment only: a
    pass that ended before (`stopped`) uses betting at a fifth of alpha instead of them, a complete
    one has the other four fifths (docs/decisions/0013-stopping-early.md). `longest` is the largest
    sum of max_tokens of one unit, known beforehand.
    """

    alpha: float
    rng: np.random.Generator
    looked: bool = False
    stopped: bool = False
    longest: int = 0

    @property
    def final_alpha(self) -> float:
        """Level of intervals that hold at one moment only."""
        if not self.looked:
            return self.alpha
        return self.alpha * (EARLY_SHARE if self.stopped else 1.0 - EARLY_SHARE)

    def ordered(self, rows: Ints) -> Ints:
        """`rows` [n] in the order in which they are looked at."""
        return rows if self.looked else self.rng.permutation(rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verified:
    """Per DRAFTED round [r]: `proposed`, raw `accepted`, what of it was `committed` (had room),
    whether a `rejected` token lay inside the room, and the row of its `request`."""

    request: Ints
    proposed: Ints
    accepted: Ints
    emitted: Ints
    committed: Ints
    rejected: Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTotals:
    """Per request [n], over DRAFTED rounds: sums of the counters, and where the request belongs.

    `cluster` are session ids 0, 1, …; a request without a session is a cluster of its own.
    """

    request_id: NDArray[np.str_]
    domain: NDArray[np.str_]
    temperature: NDArray[np.float64]
    prompt_tokens: Ints
    cluster: Ints
    has_sessions: bool
    rounds: Ints
    proposed: Ints
    accepted: Ints
    emitted: Ints
    committed: Ints
    tested: Ints

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def unit(self) -> str:
        return "sessions" if self.has_sessions else "requests"


def verified_rounds(batch: TraceBatch) -> Verified:
    """The draft rounds with the censored last round (gate.md, Definitions).

    Accepts count up to the room that was left, a rejection only if its replacement was emitted:
    EOS or max_tokens inside the accepted prefix hides what came after.
    """
    drafted = batch.round_state == RoundState.DRAFTED
    whole = bool(drafted.all())
    proposed, accepted, emitted = (
        (column if whole else column[drafted]).astype(np.int64)
        for column in (batch.proposed, batch.accepted, batch.emitted)
    )
    request = batch.round_request
    return Verified(
        request=request if whole else request[drafted],
        proposed=proposed,
        accepted=accepted,
        emitted=emitted,
        committed=np.minimum(accepted, emitted),
        rejected=(accepted < proposed) & (emitted == accepted + 1),
    )


def request_totals(batch: TraceBatch) -> RequestTotals:
    """Sums per request of a batch without failed requests."""
    rounds, n = verified_rounds(batch), len(batch)
    ends = np.concatenate(([0], np.cumsum(np.bincount(rounds.request, minlength=n))))
    committed = _sums(rounds.committed, ends)
    return RequestTotals(
        request_id=batch.request_id,
        domain=batch.domain,
        temperature=batch.temperature,
        prompt_tokens=batch.prompt_tokens.astype(np.int64),
        cluster=session_clusters(batch.session),
        has_sessions=bool((batch.session != "").any()),
        rounds=np.diff(ends),
        proposed=_sums(rounds.proposed, ends),
        accepted=_sums(rounds.accepted, ends),
        emitted=_sums(rounds.emitted, ends),
        committed=committed,
        tested=committed + _sums(rounds.rejected, ends),
    )


def session_clusters(session: NDArray[np.str_]) -> Ints:
    """[n] ids 0, 1, … in the order of first appearance: equal for equal sessions, own for each
    request without one."""
    n = len(session)
    if not (session != "").any():
        return np.arange(n)
    _, first, ids = np.unique(session, return_index=True, return_inverse=True)
    origin = np.where(session == "", np.arange(n), first[ids])
    return np.unique(origin, return_inverse=True)[1].astype(np.int64)


def _sums(values: NDArray[np.generic], ends: Ints) -> Ints:
    running = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
    return running[ends[1:]] - running[ends[:-1]]
