"""One look at the servers of a line, from readings and the look before; pure.

Counters are gathered into windows of a number of draft steps; the acceptance of each window is one
observation of a sequential test (`stats/drift.py`), so that looking often costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pairgate.domain.observation import (
    DEGRADED,
    IDLE_DRAFT,
    OTHER_PAIR,
    OUTLIER,
    UNREACHABLE,
    Betting,
    LiveCounters,
    Observation,
    Promised,
    Reading,
    ReplicaState,
)
from pairgate.render.serve import pair_named_by
from pairgate.stats.drift import RiseTest

ALPHA = 0.01
WINDOW_DRAFTS = 200
OUTLIER_MARGIN = 0.05
_IDLE_TOKENS = 500
_SAME_START_S = 1.0
_ALARMS = (DEGRADED, IDLE_DRAFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRules:
    """`alpha` is the chance of ever calling a line degraded that is not, between two restarts.
    `window_drafts` is how many draft steps make one observation."""

    alpha: float = ALPHA
    window_drafts: int = WINDOW_DRAFTS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A replica with what it added since the look before; `counts` when that is production's."""

    state: ReplicaState
    added: LiveCounters
    counts: bool


def look(
    before: Observation | None,
    readings: Sequence[Reading],
    promised: Promised,
    rules: LookRules,
    *,
    at: str,
    line: str,
) -> Observation:
    """The observation that follows. A look before that was made against another promise only
    lends its readings, so that differences can be taken."""
    known = {} if before is None else {r.reading.replica: r for r in before.replicas}
    if before is not None and before.promised != promised:
        known = {name: ReplicaState(reading=r.reading) for name, r in known.items()}
        before = None
    steps = [_step(known.get(r.replica), r, promised) for r in readings]
    n_tested = sum(step.counts for step in steps)
    replicas = tuple(
        _tested(step, _others(steps, i), promised, rules, n_tested) for i, step in enumerate(steps)
    )
    restarted = any(s.state.event in ("restart", "reset") for s in steps)
    together = _sum(step.added for step in steps if step.counts)
    open_, test = LiveCounters(), Betting()
    if before is not None and not restarted:
        open_, test = before.open, before.floor_test
    open_ = open_.plus(together)
    if (open_.n_drafts or 0) >= rules.window_drafts * max(1, n_tested):
        test, open_ = (
            _bet(test, 1.0 - promised.floor, 1.0 - (open_.acceptance_rate or 0.0)),
            LiveCounters(),
        )
    total = together if before is None else before.total.plus(together)
    low = test.evidence >= 2.0 / rules.alpha
    degraded = low or any(r.problem in _ALARMS for r in replicas)
    problems = [_sentence(r, promised) for r in replicas if r.problem]
    if low:
        problems.insert(0, f"the line as a whole: {_rate(total)}, {_against(promised)}")
    return Observation(
        line=line, at=at, promised=promised, alpha=rules.alpha, replicas=replicas, total=total,
        open=open_, floor_test=test, problems=tuple(problems), degraded=degraded,
    )  # fmt: skip


def _step(before: ReplicaState | None, reading: Reading, promised: Promised) -> _Step:
    if reading.error:
        seen = Reading(replica=reading.replica) if before is None else before.reading
        state = before or ReplicaState(reading=seen)
        failed = replace(state, reading=replace(seen, error=reading.error), event="")
        return _Step(state=failed, added=LiveCounters(), counts=False)
    digest = next(filter(None, map(pair_named_by, reading.served_names)), None)
    counts = digest in (None, promised.pair_digest)
    if before is None or before.reading.counters == LiveCounters():
        state = ReplicaState(reading=reading, pair_digest=digest, event="new")
        return _Step(state=state, added=LiveCounters(), counts=counts)
    added = reading.counters.since(before.reading.counters)
    event = _event(before.reading, reading, added)
    if event:  # everything that it counts is new
        state = ReplicaState(reading=reading, pair_digest=digest, event=event, total=before.total)
        return _Step(state=state, added=reading.counters, counts=counts)
    state = replace(before, reading=reading, pair_digest=digest, event="", problem="")
    return _Step(state=state, added=added, counts=counts)


def _event(before: Reading, now: Reading, added: LiveCounters) -> str:
    known = before.started_at and now.started_at
    if known and abs(now.started_at - before.started_at) > _SAME_START_S:
        return "restart"
    return "reset" if added.went_back else ""


def _tested(
    step: _Step, others: LiveCounters, promised: Promised, rules: LookRules, n_replicas: int
) -> ReplicaState:
    state = step.state
    if state.reading.error:
        return replace(state, problem=UNREACHABLE)
    if not step.counts:
        return replace(state, problem=OTHER_PAIR, open=LiveCounters(), rest=LiveCounters())
    open_, rest = state.open.plus(step.added), state.rest.plus(others)
    # Tokens of prefill are one per request; the rest came from decoding.
    decoded = max(0, (step.added.n_generated or 0) - (step.added.n_finished or 0))
    state = replace(
        state,
        total=state.total.plus(step.added),
        open=open_,
        rest=rest,
        n_idle_tokens=0 if step.added.n_drafts else state.n_idle_tokens + decoded,
    )
    if (open_.n_drafts or 0) >= rules.window_drafts:
        state = _whole_window(state, promised, rules)
    share = rules.alpha / n_replicas
    if state.floor_test.evidence >= 2.0 / share:
        return replace(state, problem=DEGRADED)
    if state.n_idle_tokens >= _IDLE_TOKENS:
        return replace(state, problem=IDLE_DRAFT)
    if state.outlier_test.evidence >= 1.0 / share:
        return replace(state, problem=OUTLIER)
    return replace(state, problem="")


def _whole_window(state: ReplicaState, promised: Promised, rules: LookRules) -> ReplicaState:
    mine, theirs = state.open.acceptance_rate or 0.0, state.rest.acceptance_rate
    outlier_test = state.outlier_test
    if theirs is not None and (state.rest.n_drafts or 0) >= rules.window_drafts:
        outlier_test = _bet(outlier_test, (1.0 + OUTLIER_MARGIN) / 2.0, (1.0 + theirs - mine) / 2.0)
    return replace(
        state,
        floor_test=_bet(state.floor_test, 1.0 - promised.floor, 1.0 - mine),
        outlier_test=outlier_test,
        window=state.open,
        open=LiveCounters(),
        rest=LiveCounters(),
    )


def _bet(test: Betting, bound: float, value: float) -> Betting:
    """The test one observation later."""
    before = RiseTest(bound=bound)
    if test.capitals:
        before = RiseTest(bound=bound, n=test.n, capitals=test.capitals)
    after = before.after(min(1.0, max(0.0, value)))
    return Betting(n=after.n, capitals=after.capitals, evidence=after.evidence)


def _others(steps: Sequence[_Step], me: int) -> LiveCounters:
    return _sum(step.added for i, step in enumerate(steps) if i != me and step.counts)


def _sum(counters: Iterable[LiveCounters]) -> LiveCounters:
    total = LiveCounters()
    for each in counters:
        total = total.plus(each)
    return total


def _sentence(state: ReplicaState, promised: Promised) -> str:
    where, problem = state.reading.replica, state.problem
    if problem == UNREACHABLE:
        return f"{where}: {state.reading.error}"
    if problem == DEGRADED:
        return f"{where}: {_rate(state.total)}, {_against(promised)}"
    if problem == IDLE_DRAFT:
        return f"{where}: {state.n_idle_tokens:,} tokens generated without one draft step"
    if problem == OTHER_PAIR:
        return f"{where}: serves {state.pair_digest}, production is {promised.pair_digest}"
    return f"{where}: {_rate(state.total)}, less than the other replicas in the same time"


def _rate(counters: LiveCounters) -> str:
    rate = counters.acceptance_rate
    shown = "nothing accepted yet" if rate is None else f"accepts {rate:.3f} of what it proposes"
    return f"{shown} ({counters.n_drafts or 0:,} draft steps)"


def _against(promised: Promised) -> str:
    if promised.value is None:
        return f"under the floor {promised.floor:.3f}"
    return f"under {promised.floor:.3f} (its evidence: {promised.value:.3f}, less the margin)"
