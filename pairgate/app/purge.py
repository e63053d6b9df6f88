"""Delete the texts of a slice, and say so in the history of every line that uses or used it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairgate.app.actor import current_actor
from pairgate.app.situation import read_situation
from pairgate.domain.release import Decision
from pairgate.domain.situation import Ask
from pairgate.errors import NotFound
from pairgate.promote import purging
from pairgate.traffic.texts import SliceTexts

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.records import SliceRow
    from pairgate.domain.release import Actor
    from pairgate.store.sql import Transaction


def purge_texts(
    ws: Workspace, digest: str, *, at: str, reason: str = "", actor: Actor | None = None
) -> tuple[Decision, ...]:
    """The decisions first, then the deletion: one that was killed in between is completed by
    running it again. Returns the decisions that were written."""
    texts = SliceTexts(ws.slices_dir)
    made: tuple[Decision, ...] = ()
    try:
        row = ws.registry.slice_(digest)
    except NotFound:  # texts of an import that was killed before its row
        texts.delete(digest)
        return made
    record = texts.record(row.digest)
    since = record.created_at if record is not None else row.created_at
    by = actor or current_actor(ws)

    def record_it(transaction: Transaction) -> Decision | None:
        return _record(transaction, row, since, Ask(by=by, at=at, reason=reason))

    for head in ws.registry.lines():
        decision = ws.registry.decide(head.line, record_it)
        made += () if decision is None else (decision,)
    texts.purge(row.digest, at)
    return made


def _record(transaction: Transaction, row: SliceRow, since: str, ask: Ask) -> Decision | None:
    """One decision for each time that texts were stored; `since` is the last."""
    decisions = transaction.decisions()
    judged = (row.digest == evidence.slice_digest for evidence in transaction.evidence())
    if not (any(d.slice_digest == row.digest for d in decisions) or any(judged)):
        return None
    decision = purging(
        read_situation(transaction), ask, name=row.name, digest=row.digest, since=since
    )
    return None if decision is None else transaction.append(decision)
