"""Delete the texts of a slice, and say so in the history of every line that uses or used it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pairgate.app.actor import current_actor
from pairgate.app.situation import read_situation
from pairgate.domain.release import Decision
from pairgate.domain.situation import Ask
from pairgate.errors import NotFound
from pairgate.promote import purging
from pairgate.traffic.texts import SliceTexts

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from pairgate.app.workspace import Workspace
    from pairgate.domain.records import SliceRow
    from pairgate.domain.release import Actor
    from pairgate.store.sql import Transaction


def purge_texts(
    ws: Workspace,
    digest: str,
    *,
    at: str,
    reason: str = "",
    actor: Actor | None = None,
    unless: Callable[[Connection], bool] = lambda _: False,
) -> bool:
    """The decisions first, of all lines at one moment, then the deletion: one that was killed in
    between is completed by running it again.

    `unless` is asked while no line can move; if it says yes, nothing is done and false returned.
    """
    from pairgate.store.sqlengine import again

    texts = SliceTexts(ws.slices_dir)
    try:
        row = ws.registry.slice_(digest)
    except NotFound:  # texts of an import that was killed before its row
        with ws.registry.all_lines_held() as connection:
            if unless(connection):
                return False
        texts.delete(digest)
        return True
    record = texts.record(row.digest)
    since = record.created_at if record is not None else row.created_at
    ask = Ask(by=actor or current_actor(ws), at=at, reason=reason)

    def record_it() -> bool:
        with ws.registry.all_lines_held() as connection:
            if unless(connection):
                return False
            _record_on_lines(connection, row, since, ask)
            return True

    if not again(record_it):
        return False
    texts.purge(row.digest, at)
    return True


def _record_on_lines(connection: Connection, row: SliceRow, since: str, ask: Ask) -> None:
    from pairgate.store.sql import Transaction
    from pairgate.store.sqllines import read_heads

    for head in read_heads(connection):
        _record(Transaction(connection, head), row, since, ask)


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
