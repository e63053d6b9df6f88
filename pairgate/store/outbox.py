"""Messages for the outside world, written in the transaction of what they tell of."""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, RowMapping, insert, select, text, update

from pairgate.domain.records import Delivery, OutboxMessage
from pairgate.errors import NotFound, Unavailable
from pairgate.store import schema as s
from pairgate.store.sqlbase import SqlBase
from pairgate.store.sqlengine import is_sqlite, translated

_COLUMNS = ("target", "state", "n_tries", "last_error", "next_try_at")


class Outbox(SqlBase):
    """Delivered in order per line and target, at least once; what fails keeps its place."""

    def pending(self, line: str | None = None) -> list[OutboxMessage]:
        """What is not delivered to every target, oldest first."""
        with self._read() as connection:
            return read_pending(connection, line)

    def message(self, message_id: int) -> OutboxMessage:
        """One that is not delivered everywhere; raises `NotFound`."""
        with self._read() as connection:
            return read_message(connection, message_id)

    def mark(self, message_id: int, delivery: Delivery, at: str) -> None:
        """How it stands with one target from now on."""
        with self._write() as connection:
            write_delivery(connection, message_id, delivery, at)

    def mark_delivered(self, message_id: int, at: str) -> None:
        """Every target has it."""
        with self._write() as connection:
            connection.execute(
                update(s.outbox).where(s.outbox.c.id == message_id).values(delivered_at=at)
            )

    def targets_since(self, at: str) -> frozenset[str]:
        """Targets that somebody delivered to, or tried to, since `at`; one whose messages were
        dropped last is none any more."""
        c = s.delivery.c
        with self._read() as connection:
            rows = connection.execute(
                select(c.target, c.state).where(c.changed_at >= at).order_by(c.changed_at)
            )
            newest = {row.target: row.state for row in rows}
        return frozenset(target for target, state in newest.items() if state != "dropped")

    @contextmanager
    def delivering(self, target: str, *, wait_s: float) -> Iterator[None]:
        """One delivery at a time per registry and target; raises `Unavailable` after `wait_s`."""
        self._ensure()
        lock = self._file_lock if is_sqlite(self.engine) else self._advisory_lock
        with lock(target, wait_s):
            yield

    @contextmanager
    def _file_lock(self, target: str, wait_s: float) -> Iterator[None]:
        path = Path(f"{self.engine.url.database}.delivery-{target}")
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
    def _advisory_lock(self, target: str, wait_s: float) -> Iterator[None]:
        name = hashlib.sha256(f"pairgate delivery {target}".encode()).digest()
        key = {"key": int.from_bytes(name[:8], "big", signed=True)}
        with translated(self.engine), self.engine.connect() as plain:
            connection = plain.execution_options(isolation_level="AUTOCOMMIT")
            ask = text("SELECT pg_try_advisory_lock(:key)")
            _wait_for(lambda: bool(connection.scalar(ask, key)), wait_s)
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)


def read_pending(connection: Connection, line: str | None = None) -> list[OutboxMessage]:
    """What is not delivered to every target, oldest first."""
    waiting = s.outbox.c.delivered_at.is_(None)
    query = select(s.outbox).where(waiting).order_by(s.outbox.c.id)
    tried = (
        select(s.delivery)
        .join(s.outbox, s.outbox.c.id == s.delivery.c.message_id)
        .where(waiting)
        .order_by(s.delivery.c.target)
    )
    if line is not None:
        query = query.where(s.outbox.c.line == line)
    deliveries: dict[int, list[Delivery]] = {}
    for row in connection.execute(tried).mappings():
        found = Delivery(**{name: row[name] for name in _COLUMNS})
        deliveries.setdefault(row["message_id"], []).append(found)
    rows = connection.execute(query).mappings()
    return [_message(row, tuple(deliveries.get(row["id"], ()))) for row in rows]


def read_message(connection: Connection, message_id: int) -> OutboxMessage:
    """A message that is not delivered everywhere; raises `NotFound`."""
    for message in read_pending(connection):
        if message.id == message_id:
            return message
    raise NotFound(
        f"no message {message_id} waits in the outbox", hint="see them with: pairgate outbox list"
    )


def write_delivery(connection: Connection, message_id: int, delivery: Delivery, at: str) -> None:
    """How a message stands with one target, in the caller's transaction."""
    c = s.delivery.c
    values = {name: getattr(delivery, name) for name in _COLUMNS} | {"changed_at": at}
    mine = (c.message_id == message_id) & (c.target == delivery.target)
    changed = connection.execute(update(s.delivery).where(mine).values(values))
    if changed.rowcount == 0:
        connection.execute(insert(s.delivery).values(message_id=message_id, **values))


def _wait_for(locked: Callable[[], bool], wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not locked():
        if time.monotonic() > deadline:
            raise Unavailable("another process is delivering", hint="it delivers ours too")
        time.sleep(0.1)


def _message(row: RowMapping, deliveries: tuple[Delivery, ...]) -> OutboxMessage:
    return OutboxMessage(
        id=row["id"],
        line=row["line"],
        kind=row["kind"],
        payload=row["payload"],
        created_at=row["created_at"],
        deliveries=deliveries,
    )
