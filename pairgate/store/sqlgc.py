"""What garbage collection reads and writes: flights, what is condemned, collected versions.

Deleting a blob and claiming it exclude each other (SQLite's write lock, an advisory lock of
PostgreSQL): a claim comes before a deletion, which then spares the blob, or after it, and then
whoever claims sees that it is missing and stores it again.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, delete, insert, select, text, update

from pairgate.domain.garbage import Flight, Garbage, GarbageKind, LineRecord
from pairgate.domain.release import Head
from pairgate.errors import Unavailable
from pairgate.store import schema as s
from pairgate.store.blobs import pair_blobs
from pairgate.store.sqlbase import SqlBase, repeatable
from pairgate.store.sqlengine import is_sqlite
from pairgate.store.sqlevidence import read_evaluations
from pairgate.store.sqllines import read_decisions, read_head
from pairgate.store.sqlpairs import read_pair, read_versions

# Any number that no other program on the same server uses for an advisory lock.
_GC_LOCK = 0x7061_6972_6763_0001
_PARAMETERS = 500  # of one statement


class Sweep:
    """A moment in which no blob is claimed: what may be deleted now is decided here."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def needed(self, at: str) -> frozenset[str]:
        """Digests of every blob that a flight claims or a version with files consists of.

        Raises `IntegrityError` for a pair that cannot be decoded.
        """
        # Flights first: one that lands in between has its version by then.
        flights = read_flights(self._connection, at)
        claimed = frozenset(digest for flight in flights for digest in flight.claims)
        c = s.version.c
        query = select(c.pair_digest).where(c.collected_at.is_(None)).distinct()
        pairs = [read_pair(self._connection, d) for d in self._connection.scalars(query).all()]
        return claimed | {digest for pair in pairs for digest in pair_blobs(pair)}

    def forget(self, things: Iterable[Garbage]) -> None:
        """They are gone, or were pardoned."""
        _forget(self._connection, ((t.kind, t.name) for t in things))


class Garbages(SqlBase):
    """The database's part of garbage collection."""

    @repeatable
    def begin_flight(
        self, kind: str, subject: str, *, at: str, expires_at: str, claims: Iterable[str] = ()
    ) -> str:
        """Announce a registration or a run; what it claims is not deleted until it ends."""
        flight_id, digests = secrets.token_hex(16), sorted(claims)
        with self._sweeping() as connection:
            connection.execute(
                insert(s.flight).values(
                    id=flight_id,
                    kind=kind,
                    subject=subject,
                    claims=json.dumps(digests),
                    started_at=at,
                    expires_at=expires_at,
                )
            )
            _pardon_blobs(connection, digests)
        return flight_id

    @repeatable
    def claim(self, flight_id: str, digests: Iterable[str]) -> None:
        """From here on until the flight ends, none of these is deleted; look afterwards whether
        they are all there."""
        claims = sorted(digests)
        with self._sweeping() as connection:
            mine = s.flight.c.id == flight_id
            connection.execute(update(s.flight).where(mine).values(claims=json.dumps(claims)))
            _pardon_blobs(connection, claims)

    @repeatable
    def end_flight(self, flight_id: str) -> None:
        with self._write() as connection:
            connection.execute(delete(s.flight).where(s.flight.c.id == flight_id))

    def flights(self, at: str) -> tuple[Flight, ...]:
        """Those that have not expired, oldest first."""
        with self._read() as connection:
            return read_flights(connection, at)

    def condemned(self) -> dict[tuple[GarbageKind, str], str]:
        """When each thing was condemned."""
        with self._read() as connection:
            rows = connection.execute(select(s.condemned)).all()
        return {(GarbageKind(row.kind), row.name): row.condemned_at for row in rows}

    @repeatable
    def condemn(self, things: Iterable[Garbage], at: str) -> None:
        """Note what no root reached; what is noted already keeps its time."""
        with self._sweeping() as connection:
            known = {(row.kind, row.name) for row in connection.execute(select(s.condemned))}
            rows = [
                {"kind": t.kind.value, "name": t.name, "n_bytes": t.n_bytes, "condemned_at": at}
                for t in things
                if (t.kind.value, t.name) not in known
            ]
            if rows:
                connection.execute(insert(s.condemned), rows)

    @repeatable
    def pardon(self, keys: Iterable[tuple[GarbageKind, str]]) -> None:
        """They are needed again, or gone already."""
        with self._sweeping() as connection:
            _forget(connection, keys)

    def line_record(self, line: str) -> LineRecord:
        """All that decides about the roots of a line."""
        with self._read() as connection:
            return read_line_record(connection, read_head(connection, line))

    @contextmanager
    def sweep(self) -> Iterator[Sweep]:
        """While this lasts nobody claims a blob, and nobody else deletes one."""
        with self._sweeping() as connection:
            yield Sweep(connection)

    @contextmanager
    def all_lines_held(self) -> Iterator[Connection]:
        """No line moves while this lasts."""
        with self._write() as connection:
            names = select(s.line.c.name).order_by(s.line.c.name).with_for_update()
            connection.execute(names).all()
            yield connection

    @contextmanager
    def _sweeping(self) -> Iterator[Connection]:
        with self._write() as connection:
            if not is_sqlite(self.engine):
                key = {"key": _GC_LOCK}
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), key)
            yield connection


def read_line_record(connection: Connection, head: Head) -> LineRecord:
    """In the caller's transaction."""
    c = s.attempt.c
    attempted = connection.execute(select(c.version, c.started_at).where(c.line == head.line))
    return LineRecord(
        head=head,
        decisions=tuple(read_decisions(connection, head.line)),
        versions=tuple(read_versions(connection, head.line)),
        evidence=tuple(read_evaluations(connection, head.line)),
        attempted=tuple((row.version, row.started_at) for row in attempted),
    )


def mark_collected(connection: Connection, line: str, number: int, at: str) -> None:
    """From here on the version has no files of its own. Inside a transaction that holds the line;
    triggers refuse it for a protected version."""
    c = s.version.c
    mine = (c.line == line) & (c.number == number)
    connection.execute(update(s.version).where(mine).values(collected_at=at))
    _forget(connection, [(GarbageKind.VERSION, f"{line}@{number}")])


def land(connection: Connection, flight_id: str, at: str) -> None:
    """End a flight in the transaction that makes its blobs reachable.

    Raises `Unavailable` when it took so long that its claims had expired.
    """
    mine = (s.flight.c.id == flight_id) & (s.flight.c.expires_at > at)
    if connection.execute(delete(s.flight).where(mine)).rowcount != 1:
        raise Unavailable(
            "this registration took longer than a day, and gc may have removed what it stored",
            hint="run it again: what is stored already is not copied again",
        )


def read_flights(connection: Connection, at: str) -> tuple[Flight, ...]:
    """Those that have not expired, in the caller's transaction."""
    c = s.flight.c
    query = select(s.flight).where(c.expires_at > at).order_by(c.started_at, c.id)
    return tuple(
        Flight(
            id=row.id,
            kind=row.kind,
            subject=row.subject,
            claims=frozenset(json.loads(row.claims)),
            started_at=row.started_at,
            expires_at=row.expires_at,
        )
        for row in connection.execute(query)
    )


def _pardon_blobs(connection: Connection, digests: Iterable[str]) -> None:
    named = tuple(digests)
    kinds = (GarbageKind.BLOB, GarbageKind.INDEX)
    _forget(connection, [(kind, digest) for kind in kinds for digest in named])


def _forget(connection: Connection, keys: Iterable[tuple[GarbageKind, str]]) -> None:
    c, names = s.condemned.c, defaultdict(list)
    for kind, name in keys:
        names[kind].append(name)
    for kind, all_names in names.items():
        for start in range(0, len(all_names), _PARAMETERS):
            some = all_names[start : start + _PARAMETERS]
            mine = (c.kind == kind.value) & c.name.in_(some)
            connection.execute(delete(s.condemned).where(mine))
