"""Messages for the outside world, written in the transaction of what they tell of."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import RowMapping, select, text, update

from pairgate.domain.records import OutboxMessage
from pairgate.errors import Unavailable
from pairgate.store import schema as s
from pairgate.store.sqlbase import SqlBase
from pairgate.store.sqlengine import is_sqlite, translated

_DELIVERY_LOCK = 0x7061_6972_6F75_7462


class Outbox(SqlBase):
    """Delivered in order per line, at least once; a target that fails keeps its place."""

    def pending(self, line: str | None = None) -> list[OutboxMessage]:
        """What is not delivered to every target, oldest first."""
        query = select(s.outbox).where(s.outbox.c.delivered_at.is_(None)).order_by(s.outbox.c.id)
        if line is not None:
            query = query.where(s.outbox.c.line == line)
        with self._read() as connection:
            return [_message(row) for row in connection.execute(query).mappings()]

    def mark_done(self, message: OutboxMessage, target: str) -> OutboxMessage:
        """One target has it. Returns the message as it is now."""
        done = message.done | {target}
        self._change(message.id, done=" ".join(sorted(done)))
        return replace(message, done=done)

    def mark_delivered(self, message_id: int, at: str) -> None:
        """Every target has it."""
        self._change(message_id, delivered_at=at, last_error="")

    def mark_failed(self, message_id: int, error: str) -> None:
        """Kept for the next delivery, with the reason."""
        self._change(message_id, n_tries=s.outbox.c.n_tries + 1, last_error=error[:500])

    def _change(self, message_id: int, **values: object) -> None:
        with self._write() as connection:
            connection.execute(update(s.outbox).where(s.outbox.c.id == message_id).values(**values))

    @contextmanager
    def delivering(self, *, wait_s: float) -> Iterator[None]:
        """One delivery at a time per registry; raises `Unavailable` after `wait_s` seconds."""
        self._ensure()
        lock = self._file_lock if is_sqlite(self.engine) else self._advisory_lock
        with lock(wait_s):
            yield

    @contextmanager
    def _file_lock(self, wait_s: float) -> Iterator[None]:
        path = Path(f"{self.engine.url.database}.delivery")
        with path.open("w") as handle:

            def locked() -> bool:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            _wait_for(locked, wait_s)
            yield

    @contextmanager
    def _advisory_lock(self, wait_s: float) -> Iterator[None]:
        key = {"key": _DELIVERY_LOCK}
        with translated(self.engine), self.engine.connect() as plain:
            connection = plain.execution_options(isolation_level="AUTOCOMMIT")
            ask = text("SELECT pg_try_advisory_lock(:key)")
            _wait_for(lambda: bool(connection.scalar(ask, key)), wait_s)
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)


def _wait_for(locked: Callable[[], bool], wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not locked():
        if time.monotonic() > deadline:
            raise Unavailable("another process is delivering", hint="it delivers ours too")
        time.sleep(0.1)


def _message(row: RowMapping) -> OutboxMessage:
    return OutboxMessage(
        id=row["id"],
        line=row["line"],
        kind=row["kind"],
        payload=row["payload"],
        created_at=row["created_at"],
        done=frozenset(row["done"].split()),
        n_tries=row["n_tries"],
        last_error=row["last_error"],
    )
