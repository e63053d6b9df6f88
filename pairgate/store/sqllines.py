"""Lines: the append-only log of decisions, and the stored head that is its fold."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, text, update

from pairgate.domain.pair import check_line_name
from pairgate.domain.release import Decision, Head, Kind, advance
from pairgate.errors import Conflict, NotFound
from pairgate.store import schema as s
from pairgate.store.sqlbase import SqlBase, repeatable
from pairgate.store.sqlengine import is_sqlite


class Lines(SqlBase):
    """Lines, heads and decisions."""

    @repeatable
    def create_line(self, name: str, at: str) -> Head:
        """A line without decisions; raises `Conflict` when it exists."""
        check_line_name(name)
        with self._write() as connection:
            if _line_row(connection, name) is not None:
                raise Conflict(f"line {name} exists already")
            connection.execute(insert(s.line).values(name=name, created_at=at))
            return Head(line=name)

    def lines(self) -> list[Head]:
        """Every line, by name."""
        with self._read() as connection:
            return read_heads(connection)

    def head(self, line: str) -> Head:
        """The stored head; raises `NotFound`."""
        with self._read() as connection:
            return read_head(connection, line)

    def decisions(
        self, line: str, since: str | None = None, until: str | None = None
    ) -> list[Decision]:
        """The log in order, or the part of it between two times (ISO 8601, both inclusive)."""
        with self._read() as connection:
            return read_decisions(connection, line, since, until)

    def database_role(self) -> str | None:
        """The role that PostgreSQL let in; None on SQLite, which knows no users."""
        if is_sqlite(self.engine):
            return None
        with self._read() as connection:
            return connection.scalar(text("SELECT current_user"))


def read_heads(connection: Connection) -> list[Head]:
    """Of every line, by name."""
    names = connection.scalars(select(s.line.c.name).order_by(s.line.c.name)).all()
    return [read_head(connection, name) for name in names]


def read_head(connection: Connection, line: str) -> Head:
    """The stored head; raises `NotFound` naming the lines that exist."""
    row = _line_row(connection, line)
    if row is None:
        known = connection.scalars(select(s.line.c.name).order_by(s.line.c.name).limit(20)).all()
        listed = f"known lines: {', '.join(known)}" if known else "make one: pairgate init LINE"
        raise NotFound(f"there is no line {line!r}", hint=listed)
    flags = connection.execute(
        select(s.version.c.number, s.version.c.withdrawn, s.version.c.been_production).where(
            s.version.c.line == line, s.version.c.withdrawn | s.version.c.been_production
        )
    ).all()
    pins = connection.scalars(select(s.pin.c.version).where(s.pin.c.line == line))
    profiles = connection.scalar(
        select(s.decision.c.profiles).where(
            s.decision.c.line == line, s.decision.c.sequence == row["revision"]
        )
    )
    return Head(
        line=line,
        revision=row["revision"],
        production=row["production_version"],
        previous=row["previous_version"],
        disabled=row["disabled_version"],
        policy_digest=row["policy_digest"],
        slice_digest=row["slice_digest"],
        profile_digest=row["profile_digest"],
        profiles=tuple(json.loads(profiles or "[]")),
        withdrawn=frozenset(f.number for f in flags if f.withdrawn),
        pinned=frozenset(pins),
        been_production=frozenset(f.number for f in flags if f.been_production),
        hash=row["head_hash"],
    )


def read_decisions(
    connection: Connection, line: str, since: str | None = None, until: str | None = None
) -> list[Decision]:
    """The log of a line in order; `since` and `until` are inclusive ISO 8601 times."""
    query = select(s.decision).where(s.decision.c.line == line).order_by(s.decision.c.sequence)
    if since is not None:
        query = query.where(s.decision.c.at >= since)
    if until is not None:
        query = query.where(s.decision.c.at <= until)
    return [_decision(row) for row in connection.execute(query).mappings()]


def append_decision(connection: Connection, head: Head, sealed: Decision) -> Head:
    """Write a sealed decision and move the stored head; returns the head after it."""
    connection.execute(insert(s.decision).values(_decision_values(sealed)))
    after = advance(head, sealed)
    _store_head(connection, head, after)
    _store_pin(connection, sealed)
    return after


def enqueue(connection: Connection, line: str, kind: str, payload: dict[str, Any], at: str) -> None:
    """Leave a message for the outside, in the caller's transaction."""
    # Numbers are given before the commit: the line's lock makes their order that of the commits.
    connection.execute(select(s.line.c.name).where(s.line.c.name == line).with_for_update())
    text = json.dumps(payload, sort_keys=True, ensure_ascii=False)
    connection.execute(insert(s.outbox).values(line=line, kind=kind, payload=text, created_at=at))


def _line_row(connection: Connection, line: str) -> RowMapping | None:
    return connection.execute(select(s.line).where(s.line.c.name == line)).mappings().first()


def _decision_values(decision: Decision) -> dict[str, Any]:
    return asdict(decision) | {
        "kind": decision.kind.value,
        "profiles": json.dumps(decision.profiles),
        "warnings": json.dumps(decision.warnings, ensure_ascii=False),
    }


def _decision(row: RowMapping) -> Decision:
    values = dict(row)
    values["kind"] = Kind(values["kind"])
    for name in ("profiles", "warnings"):  # mostly empty, and a log is long
        values[name] = () if values[name] == "[]" else tuple(json.loads(values[name]))
    return Decision(**values)


def _store_head(connection: Connection, before: Head, after: Head) -> None:
    connection.execute(
        update(s.line)
        .where(s.line.c.name == after.line, s.line.c.revision == before.revision)
        .values(
            revision=after.revision,
            production_version=after.production,
            previous_version=after.previous,
            disabled_version=after.disabled,
            policy_digest=after.policy_digest,
            slice_digest=after.slice_digest,
            profile_digest=after.profile_digest,
            head_hash=after.hash,
        )
    )
    touched = {
        v
        for head in (before, after)
        for v in (head.production, head.previous, head.disabled)
        if v is not None
    } | (before.withdrawn ^ after.withdrawn)
    # Production last: the unique index never sees two, not even for a moment.
    for number in sorted(touched, key=lambda v: v == after.production):
        connection.execute(
            update(s.version)
            .where(s.version.c.line == after.line, s.version.c.number == number)
            .values(
                state=state_of(after, number),
                withdrawn=number in after.withdrawn,
                been_production=number in after.been_production,
            )
        )


def state_of(head: Head, number: int) -> str:
    """What the row of a version says of it."""
    if number == head.production:
        return "production"
    if number == head.disabled:
        return "disabled"
    if number == head.previous:
        return "previous"
    return "withdrawn" if number in head.withdrawn else "ready"


def _store_pin(connection: Connection, decision: Decision) -> None:
    if decision.kind not in (Kind.PIN, Kind.UNPIN):
        return
    mine = (s.pin.c.line == decision.line) & (s.pin.c.version == decision.version)
    connection.execute(delete(s.pin).where(mine))
    if decision.kind is Kind.PIN:
        connection.execute(
            insert(s.pin).values(
                line=decision.line,
                version=decision.version,
                reason=decision.reason,
                actor=decision.actor,
                created_at=decision.at,
            )
        )
