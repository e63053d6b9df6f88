"""A few requests of the line's slice to one live server: does it still do what the evidence says?

Their counts come with the answers where the server sends them. Without, its counters are
differenced over the probe, which says nothing while other traffic moves them.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.errors import InvalidEvaluation, PairgateError
from pairgate.stats.running import RunningRatio

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.records import EvidenceRow
    from pairgate.domain.traffic import Request
    from pairgate.engines.server.dialect import Counters, Dialect
    from pairgate.engines.server.wire import Reply

N_REQUESTS = 50
_CONCURRENCY = 4
_WATCHDOG_S = 120.0
_Z = 2.576  # 0.5 % on each side
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """`rate` is accepted of proposed tokens of the probe, with an interval where single requests
    were counted; None with the reason in `unknown`. `expected` is what the evidence saw on the
    same requests (`is_same_requests`), or over all of them. Of `n_compared` greedy answers
    `n_changed` differ from those in the evidence."""

    n_requests: int
    n_failed: int
    first_error: str = ""
    rate: float | None = None
    low: float | None = None
    high: float | None = None
    unknown: str = ""
    expected: float | None = None
    is_same_requests: bool = False
    n_compared: int = 0
    n_changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    accepted: tuple[int, ...]
    proposed: tuple[int, ...]


def probe(
    ws: Workspace, version: PairVersion, row: EvidenceRow, url: str, *, n_requests: int = N_REQUESTS
) -> Probe:
    """Send the first requests of the evidence's slice to the server at `url`.

    Raises `Refused` where the slice's texts are gone, `Unavailable` where the server does not
    answer at all.
    """
    from pairgate.app.engines import dialect_of
    from pairgate.app.slices import load_slice
    from pairgate.engines.server.asking import base_url

    requests = load_slice(ws, row.slice_digest).requests[:n_requests]
    dialect, root = dialect_of(row.engine), base_url(url)
    before = dialect.counters(root)
    replies = _ask(root, dialect, requests)
    fine = {i: r for i, r in replies.items() if not r.error}
    errors = [r.error for r in replies.values() if r.error]
    stored = _stored(ws, row)
    rate = _rate(dialect, root, before, fine)
    compared, changed = _outputs(requests, fine, stored)
    expected, is_same = _expected(ws, row, stored, fine)
    return Probe(
        n_requests=len(requests), n_failed=len(errors), first_error=errors[0] if errors else "",
        rate=rate.rate, low=rate.low, high=rate.high, unknown=rate.unknown, expected=expected,
        is_same_requests=is_same, n_compared=compared, n_changed=changed,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    rate: float | None = None
    low: float | None = None
    high: float | None = None
    unknown: str = ""


def _ask(root: str, dialect: Dialect, requests: tuple[Request, ...]) -> dict[int, Reply]:
    from pairgate.engines.server.client import StreamingClient
    from pairgate.engines.server.load import Job, closed_loop
    from pairgate.engines.server.wire import call_for

    model, salt = dialect.identity(root).model, f"pairgate-probe-{secrets.token_hex(8)}"
    jobs = [
        Job(
            number=i,
            call=call_for(request, model=model, seed=None, salt=salt),
            session=request.session,
            due_s=0.0,
        )
        for i, request in enumerate(requests)
    ]
    client = StreamingClient(root, watchdog_s=_WATCHDOG_S)
    return {job.number: reply for job, reply in closed_loop(client, jobs, _CONCURRENCY)}


def _rate(dialect: Dialect, root: str, before: Counters, fine: dict[int, Reply]) -> _Rate:
    counted = _counts_with_answers(dialect, fine)
    if counted is None:
        return _from_counters(dialect, root, before, len(fine))
    ratio = RunningRatio()
    ratio.add(np.asarray(counted.accepted, float), np.asarray(counted.proposed, float))
    interval = ratio.interval(_Z)
    if interval is None:
        return _Rate(unknown="fewer than two answers were drafted")
    return _Rate(rate=ratio.value, low=interval[0], high=interval[1])


def _counts_with_answers(dialect: Dialect, fine: dict[int, Reply]) -> _Counted | None:
    """None where the server does not count per request."""
    from pairgate.engines.server.dialect import StepCounts

    accepted, proposed = [], []
    for reply in fine.values():
        try:
            counts = dialect.step_counts(reply, version="")
        except InvalidEvaluation:
            return None
        if isinstance(counts, StepCounts):
            accepted.append(int(counts.accepted.sum()))
            proposed.append(int(counts.drafted.sum()))
    return _Counted(accepted=tuple(accepted), proposed=tuple(proposed))


def _from_counters(dialect: Dialect, root: str, before: Counters, n_answers: int) -> _Rate:
    time.sleep(_SETTLE_S)  # counters are written a moment after the last answer
    moved = dialect.counters(root).since(before)
    if moved.n_finished != n_answers or moved.n_in_flight:
        return _Rate(
            unknown="other traffic moved the counters meanwhile, and the server does not count per "
            "request: probe a replica that has no traffic"
        )
    if not moved.n_draft_tokens or moved.n_accepted is None:
        return _Rate(unknown="nothing was drafted")
    return _Rate(rate=moved.n_accepted / moved.n_draft_tokens)


def _stored(ws: Workspace, row: EvidenceRow) -> TraceBatch | None:
    """The acceptance pass of the evidence; None where its traces are not on this machine."""
    from pairgate.store.traces import ParquetTraces

    try:
        batches = ParquetTraces(ws.evaluation_folder(row.folder) / "traces").load_all()
    except PairgateError:
        return None
    mine = [b for b in batches if b.arm is Arm.SPEC and b.phase is Phase.ACCEPTANCE]
    return TraceBatch.concat(mine) if mine else None


def _expected(
    ws: Workspace, row: EvidenceRow, stored: TraceBatch | None, fine: dict[int, Reply]
) -> tuple[float | None, bool]:
    if stored is not None:
        rows = np.flatnonzero(np.isin(stored.index, list(fine)))
        kept = np.isin(stored.round_request, rows)
        proposed = int(stored.proposed[kept].sum())
        if proposed:
            return int(stored.accepted[kept].sum()) / proposed, True
    from pairgate.app.watch import acceptance_of

    return acceptance_of(ws, row)[0], False


def _outputs(
    requests: tuple[Request, ...], fine: dict[int, Reply], stored: TraceBatch | None
) -> tuple[int, int]:
    """(greedy answers that the evidence has too, those that differ)."""
    if stored is None:
        return 0, 0
    at = {int(index): row for row, index in enumerate(stored.index)}
    n_compared = n_changed = 0
    for i, reply in fine.items():
        row = at.get(i)
        if row is None or not requests[i].sampling.greedy or not reply.token_ids:
            continue
        begin, end = stored.tokens_offsets[row : row + 2]
        n_compared += 1
        n_changed += stored.tokens[begin:end].tolist() != list(reply.token_ids)
    return n_compared, n_changed
