"""Counters as they are: sums per arm, pass and concurrency, and whether they add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import OVERALL, Counts, Estimate, Metric, Missing
from pairgate.domain.trace import Arm, Finish, RoundState, TraceBatch
from pairgate.measure.totals import verified_rounds
from pairgate.stats.proportion import clopper_pearson

Mask = NDArray[np.bool_]


def consistent(batch: TraceBatch) -> Mask:
    """[n] whether a request's counters obey the counting rules (replay.md).

    0 ≤ accepted ≤ proposed, 0 ≤ emitted ≤ accepted + 1 in draft rounds, at most one token in
    others, and the first token plus all emitted ones are the completion.
    """
    drafted = batch.round_state == RoundState.DRAFTED
    accepted, proposed, emitted = (
        column.astype(np.int64) for column in (batch.accepted, batch.proposed, batch.emitted)
    )
    room = np.where(drafted, accepted + 1, 1)
    fine = (accepted >= 0) & (accepted <= proposed) & (emitted >= 0) & (emitted <= room)
    broken = np.bincount(batch.round_request, weights=~fine, minlength=len(batch)) > 0
    sums = np.concatenate(([0], np.cumsum(emitted)))
    total = sums[batch.round_offsets[1:]] - sums[batch.round_offsets[:-1]]
    first = batch.completion_tokens > 0
    result: Mask = ~broken & (total + first == batch.completion_tokens)
    return result


def usable(batch: TraceBatch) -> TraceBatch:
    """The requests that neither failed nor were excluded, with counters that add up."""
    keep = batch.ok & consistent(batch)
    return batch if keep.all() else batch.where(keep)


def inconsistent_share(batches: Sequence[TraceBatch], *, alpha: float) -> Metric:
    """Share of finished requests whose counters contradict each other; any at all is an error."""
    n = sum(int(b.ok.sum()) for b in batches)
    bad = sum(int((b.ok & ~consistent(b)).sum()) for b in batches)
    value: Estimate | Missing = Missing(reason="no request finished")
    if n:
        low, high = clopper_pearson(bad, n, alpha=alpha)
        value = Estimate(
            value=bad / n,
            low=low,
            high=high,
            n=n,
            unit="requests",
            alpha=alpha,
            method="Clopper-Pearson",
        )
    return Metric(name="inconsistent_requests", arm=Arm.SPEC, scope=OVERALL, value=value)


def counts_of(batches: Sequence[TraceBatch]) -> tuple[Counts, ...]:
    """One row per arm, phase and concurrency, in order of appearance."""
    groups: dict[tuple[Arm, str, int], list[TraceBatch]] = {}
    for batch in batches:
        groups.setdefault((batch.arm, str(batch.phase), batch.concurrency), []).append(batch)
    return tuple(_counts(blocks) for blocks in groups.values())


def _counts(blocks: Sequence[TraceBatch]) -> Counts:
    first = blocks[0]
    # Failed and excluded requests are counted as such and add nothing to the sums.
    batches = [b if b.ok.all() else b.where(b.ok) for b in blocks]
    rounds = [verified_rounds(b) for b in batches]
    plain = [
        (b.round_state == RoundState.FALLEN_BACK) | (b.round_state == RoundState.SKIPPED)
        for b in batches
    ]
    committed = sum(int(r.committed.sum()) for r in rounds)
    return Counts(
        arm=first.arm,
        phase=str(first.phase),
        concurrency=first.concurrency,
        n_requests=sum(len(b) for b in blocks),
        n_failed=sum(int((b.finish == Finish.ERROR).sum()) for b in blocks),
        n_excluded=sum(int((b.finish == Finish.EXCLUDED).sum()) for b in blocks),
        n_rounds=sum(len(r.proposed) for r in rounds),
        n_skipped_rounds=sum(int((b.round_state == RoundState.SKIPPED).sum()) for b in batches),
        n_proposed=sum(int(r.proposed.sum()) for r in rounds),
        n_accepted=sum(int(r.accepted.sum()) for r in rounds),
        n_tested_committed=committed + sum(int(r.rejected.sum()) for r in rounds),
        n_accepted_committed=committed,
        n_emitted=sum(int(b.emitted.sum()) for b in batches),
        n_completion_tokens=sum(int(b.completion_tokens.sum()) for b in batches),
        n_plain_tokens=sum(int(b.emitted[p].sum()) for b, p in zip(batches, plain, strict=True)),
        n_fallen_back=sum(int((b.fell_back_at >= 0).sum()) for b in batches),
        wall_s=float(sum(b.wall_s for b in blocks)),
    )
