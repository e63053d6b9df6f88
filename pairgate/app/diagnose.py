"""`diagnose`: why live acceptance dropped. Questions in a fixed order, one cause, one command.

The order is that of cost and of certainty: what a server says about itself comes before what a
probe measures, and the draft is blamed only when the same requests go worse than in the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.app.watch import (
    MARGIN,
    WatchOptions,
    production_of,
    promise_of,
    read_all,
    serving_evidence,
)
from pairgate.domain.freshness import major_minor
from pairgate.domain.situation import MOVES
from pairgate.errors import PairgateError
from pairgate.render.serve import pair_named_by

if TYPE_CHECKING:
    from pairgate.app.probe import Probe
    from pairgate.app.workspace import Workspace
    from pairgate.domain.observation import Observation, Promised, Reading
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.records import EvidenceRow

OK, CAUSE, UNKNOWN = "ok", "cause", "unknown"
_HISTORY = 500
_CHANGED_SHARE = 0.1  # of greedy answers; fewer are the near ties of a busy server


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One question. `outcome` is ok, cause or unknown; a cause comes with the `command` that
    ends it."""

    question: str
    outcome: str
    answer: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`cause` is the first finding that is one, or None."""

    line: str
    version: int
    findings: tuple[Finding, ...]

    @property
    def cause(self) -> Finding | None:
        return next((f for f in self.findings if f.outcome == CAUSE), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    ws: Workspace
    version: PairVersion
    row: EvidenceRow | None
    promised: Promised
    readings: tuple[Reading, ...]
    n_probe: int

    @property
    def answering(self) -> tuple[Reading, ...]:
        return tuple(r for r in self.readings if not r.error)

    @property
    def restart(self) -> str:
        return (
            f"restart it with: pairgate render {self.version.line}@production --models-dir DIR "
            "(bring the files with pairgate pull first)"
        )


def diagnose(ws: Workspace, line: str, options: WatchOptions, *, n_probe: int = 50) -> Diagnosis:
    """Ask in order and stop at the first cause. With `n_probe` 0 no request is sent.

    Raises as `watch` does; a server that does not answer is a finding.
    """
    version = production_of(ws, line)
    case = _Case(
        ws=ws,
        version=version,
        row=serving_evidence(ws, version),
        promised=promise_of(ws, line, options.expected),
        readings=read_all(options),
        n_probe=n_probe,
    )
    found: list[Finding] = []
    for finding in _findings(case):
        found.append(finding)
        if finding.outcome == CAUSE:
            break
    return Diagnosis(line=line, version=version.number, findings=tuple(found))


def _findings(case: _Case) -> Iterator[Finding]:
    yield _speculates(case)
    yield from _as_promoted(case)
    yield _since(case)
    tried = _probe(case)
    if isinstance(tried, Finding):
        yield tried
    else:
        yield _output(case, tried)
        yield _draft(case, tried)
    yield _cache(case)
    yield _traffic(case, tried)


def _speculates(case: _Case) -> Finding:
    question = "is speculation on?"
    silent = [r for r in case.readings if r.error]
    if not case.answering:
        return Finding(
            question=question,
            outcome=CAUSE,
            answer=f"no server answers: {silent[0].error}",
            command="start the server, or name another with --metrics URL",
        )
    off = [r.replica for r in case.answering if r.counters.n_drafts is None]
    if off:
        return Finding(
            question=question,
            outcome=CAUSE,
            answer=f"no: {', '.join(off)} runs without a speculative config",
            command=case.restart,
        )
    idle = [
        r.replica
        for r in case.answering
        if r.counters.n_drafts == 0
        and (r.counters.n_generated or 0) - (r.counters.n_finished or 0) > 0
    ]
    if idle:
        return Finding(
            question=question,
            outcome=CAUSE,
            answer=f"no: {', '.join(idle)} generates and has never drafted",
            command=case.restart,
        )
    said = f"yes, on {len(case.answering)} of {len(case.readings)} servers"
    return Finding(question=question, outcome=OK, answer=said)


def _as_promoted(case: _Case) -> Iterator[Finding]:
    """Served name, draft length, engine version: as far as the servers tell."""
    question, wanted = "is it what was promoted?", case.promised.pair_digest
    digests = {
        r.replica: next(filter(None, map(pair_named_by, r.served_names)), None)
        for r in case.answering
    }
    others = [name for name, d in digests.items() if d not in (None, wanted)]
    if others:
        known = {v.pair_digest: str(v) for v in case.ws.registry.versions(case.version.line)}
        other = str(digests[others[0]])
        yield Finding(
            question=question,
            outcome=CAUSE,
            answer=f"no: {others[0]} serves {known.get(other, other)}, "
            f"production is {case.version}",
            command=case.restart,
        )
    k = case.promised.num_speculative_tokens
    lengths = {r.replica: len(r.counters.per_position) for r in case.answering}
    wrong = {name: n for name, n in lengths.items() if n not in (0, k)}
    if wrong:
        name, n = next(iter(wrong.items()))
        yield Finding(
            question=question,
            outcome=CAUSE,
            answer=f"no: {name} drafts {n} tokens per step, {case.version} has K = {k}",
            command=case.restart,
        )
    promised = case.promised.engine_version
    moved = [
        r
        for r in case.answering
        if r.engine_version and promised and major_minor(r.engine_version) != major_minor(promised)
    ]
    if moved:
        yield Finding(
            question=question,
            outcome=CAUSE,
            answer=f"no: {moved[0].replica} runs version {moved[0].engine_version}, the evidence "
            f"is of {promised}",
            command=f"run {promised} again, or make a profile of the new version and: "
            f"pairgate evaluate {case.version} --profile NAME",
        )
    unnamed = [name for name, d in digests.items() if d is None]
    if unnamed:
        yield Finding(
            question=question,
            outcome=UNKNOWN,
            answer=f"{', '.join(unnamed)}: no served name carries a digest "
            "(pairgate render gives one)",
        )
    else:
        yield Finding(question=question, outcome=OK, answer=f"yes: {case.version}, K = {k}")


def _since(case: _Case) -> Finding:
    """When it began, and what else happened then; never a cause by itself."""
    question, line = "since when?", case.version.line
    looks = [
        o
        for o in case.ws.observations.last(line, _HISTORY)
        if o.promised.version == case.version.number
    ]
    if not looks:
        return Finding(
            question=question, outcome=UNKNOWN, answer="no look at this version is kept (watch)"
        )
    well = [o.at for o in looks if not o.degraded]
    bad = [o for o in looks if o.degraded]
    if not bad:
        return Finding(
            question=question,
            outcome=OK,
            answer=f"{len(looks)} looks since {looks[0].at[:19]}, none of them degraded",
        )
    began = next((o for o in bad if not well or o.at > well[-1]), bad[-1])
    last_well = f", well at {well[-1][:19]}" if well else ""
    return Finding(
        question=question,
        outcome=OK,
        answer=f"degraded at {began.at[:19]}{last_well}{_around(case, looks, began)}",
    )


def _around(case: _Case, looks: list[Observation], began: Observation) -> str:
    moves = [d for d in case.ws.registry.decisions(case.version.line) if d.kind in MOVES]
    restarts = [
        f"{o.at[:19]} {r.reading.replica} ({r.event})"
        for o in looks
        for r in o.replicas
        if r.event in ("restart", "reset") and o.at <= began.at
    ]
    parts = [f"; last restart seen: {restarts[-1]}"] if restarts else []
    if moves:
        parts.append(f"; last decision: {moves[-1].kind} at {moves[-1].at[:19]}")
    return "".join(parts)


def _probe(case: _Case) -> Probe | Finding:
    """Of the first server that answers and can be reached by URL."""
    from pairgate.app.probe import probe

    question = "draft or traffic?"
    reachable = [r.replica for r in case.answering if r.replica.startswith("http")]
    why = "not probed"
    if case.row is None:
        why = "there is no evidence on a serving engine to compare with"
    elif not reachable:
        why = "a server known by a Prometheus alone cannot be probed: give its --metrics URL"
    elif case.n_probe:
        try:
            return probe(
                case.ws, case.version, case.row, _worst(case, reachable), n_requests=case.n_probe
            )
        except PairgateError as error:
            why = error.message
    return Finding(question=question, outcome=UNKNOWN, answer=why)


def _worst(case: _Case, reachable: list[str]) -> str:
    """The replica that the newest look found wanting, else the first."""
    seen = case.ws.observations.newest(case.version.line)
    wanting = [r.reading.replica for r in seen.replicas if r.problem] if seen else []
    return next((name for name in wanting if name in reachable), reachable[0])


def _output(case: _Case, tried: Probe) -> Finding:
    question = "did the output change?"
    if not tried.n_compared:
        return Finding(
            question=question,
            outcome=UNKNOWN,
            answer="no greedy answer of the probe is in the evidence's traces here",
        )
    said = f"{tried.n_changed} of {tried.n_compared} greedy answers differ from the evidence"
    if tried.n_changed / tried.n_compared <= _CHANGED_SHARE:
        return Finding(question=question, outcome=OK, answer=said)
    return Finding(
        question=question,
        outcome=CAUSE,
        answer=f"{said}: the target is not the one that was promoted, or the engine changed it",
        command=f"{case.restart}; if it stays so: pairgate rollback {case.version.line} "
        "--reason 'output changed'",
    )


def _draft(case: _Case, tried: Probe) -> Finding:
    question = "draft or traffic?"
    if tried.rate is None or tried.expected is None:
        said = tried.unknown or tried.first_error or "the evidence says nothing to compare with"
        return Finding(question=question, outcome=UNKNOWN, answer=said)
    where = "on the same requests" if tried.is_same_requests else "over its whole slice"
    said = (
        f"{tried.n_requests - tried.n_failed} requests of the slice: {tried.rate:.3f} accepted, "
        f"the evidence has {tried.expected:.3f} {where}"
    )
    upper = tried.rate if tried.high is None else tried.high
    if upper < tried.expected - MARGIN:
        return Finding(
            question=question,
            outcome=CAUSE,
            answer=f"the draft: {said}",
            command=f"pairgate disable {case.version.line} --reason 'live acceptance lost'",
        )
    return Finding(question=question, outcome=OK, answer=f"not the draft: {said}")


def _cache(case: _Case) -> Finding:
    """Preemptions since the last kept look; a full cache makes servers draft from nothing."""
    question = "is it the cache?"
    seen = case.ws.observations.newest(case.version.line)
    before = {r.reading.replica: r.reading.counters for r in seen.replicas} if seen else {}
    lost: dict[str, int] = {}
    for reading in case.answering:
        then = before.get(reading.replica)
        if then is not None:
            lost[reading.replica] = reading.counters.since(then).n_preemptions or 0
    full = {name: n for name, n in lost.items() if n > 0}
    if full:
        name, n = next(iter(full.items()))
        return Finding(
            question=question,
            outcome=CAUSE,
            answer=f"{name} preempted {n} requests since the last look: its cache is full",
            command="give the cache more room (fewer sequences, a larger memory share) in a new "
            f"profile, and: pairgate evaluate {case.version} --profile NAME",
        )
    queries = sum(r.counters.n_cache_queries or 0 for r in case.answering)
    hits = sum(r.counters.n_cache_hits or 0 for r in case.answering)
    share = f", {hits / queries:.0%} of prompt tokens came out of it" if queries else ""
    known = f"no preemption since the last look{share}" if lost else f"no earlier look{share}"
    return Finding(question=question, outcome=OK if lost else UNKNOWN, answer=known)


def _traffic(case: _Case, tried: Probe | Finding) -> Finding:
    """What is left when the same requests go as well as they did."""
    question, seen = "did the traffic move?", case.ws.observations.newest(case.version.line)
    line = case.version.line
    is_low = seen is not None and seen.promised == case.promised and seen.degraded
    if is_low and not isinstance(tried, Finding) and tried.rate is not None:
        return Finding(
            question=question,
            outcome=CAUSE,
            answer="yes: the slice's requests go as in the evidence, the live ones do not",
            command=f"pairgate slice check SLICE --against LOG, then a new slice from a fresh "
            f"log: pairgate slice create NAME --from LOG && pairgate line set {line} --slice NAME",
        )
    if is_low:
        return Finding(
            question=question, outcome=UNKNOWN, answer="live acceptance is low; see the probe above"
        )
    return Finding(
        question=question, outcome=OK, answer="the newest look finds live acceptance as promised"
    )
