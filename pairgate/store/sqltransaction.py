"""One line in one transaction: what the rules read and what they write, at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from pairgate.domain.pair import Pair, PairVersion
from pairgate.domain.profile import ServingProfile
from pairgate.domain.records import Approval, EvidenceRow
from pairgate.domain.release import Decision, Head
from pairgate.errors import Conflict
from pairgate.store import schema as s
from pairgate.store.sqlbase import SqlBase
from pairgate.store.sqlengine import again
from pairgate.store.sqlevidence import read_approvals, read_evaluations
from pairgate.store.sqllines import append_decision, enqueue, read_decisions, read_head
from pairgate.store.sqlpairs import (
    ensure_pair,
    ensure_version,
    read_policy_document,
    read_profiles,
    read_versions,
)

T = TypeVar("T")


class Transaction:
    """One moment of a line. Under `lock` the line is ours until the block ends, and nothing that
    is written is visible to others before that."""

    def __init__(self, connection: Connection, head: Head) -> None:
        self.connection = connection
        self.head = head
        self._decisions: list[Decision] | None = None

    def append(self, decision: Decision) -> Decision:
        """Seal the decision, write it, move the stored head. Returns it with its hash.

        Raises `Conflict` when it was made for another revision of the line.
        """
        if decision.line != self.head.line or decision.sequence != self.head.revision + 1:
            raise Conflict(
                f"decision {decision.sequence} was made for another revision of {self.head.line} "
                f"than {self.head.revision}",
                hint="read the line again and repeat the command",
            )
        sealed = decision.sealed(self.head.hash)
        self.head = append_decision(self.connection, self.head, sealed)
        self._decisions = None
        return sealed

    def enqueue(self, kind: str, payload: dict[str, Any]) -> None:
        """A message for the outside, delivered after the commit or never."""
        enqueue(self.connection, self.head.line, kind, payload, str(payload["at"]))

    def decisions(self) -> list[Decision]:
        """The whole log; read once, for it may be long and others wait for the line."""
        if self._decisions is None:
            self._decisions = read_decisions(self.connection, self.head.line)
        return list(self._decisions)

    def versions(self) -> list[PairVersion]:
        return read_versions(self.connection, self.head.line)

    def ensure_version(self, pair: Pair, *, at: str, by: str) -> PairVersion:
        """The line's version of this pair, made with the pair if it is new."""
        digest = ensure_pair(self.connection, pair, "{}", at)
        method = pair.decoding.method
        return ensure_version(
            self.connection, self.head.line, digest, pair.target_digest, method, at, by
        )

    def profiles(self) -> list[ServingProfile]:
        """Every profile the line ever had, by name and number."""
        return read_profiles(self.connection, self.head.line)

    def policy_document(self, digest: str) -> str:
        return read_policy_document(self.connection, digest)

    def evidence(self) -> list[EvidenceRow]:
        return read_evaluations(self.connection, self.head.line)

    def approvals(self) -> list[Approval]:
        return read_approvals(self.connection, line=self.head.line)


class Transactions(SqlBase):
    """Ways to hold a line."""

    @contextmanager
    def lock(self, line: str) -> Iterator[Transaction]:
        """Hold the line for one transaction; commits unless the body raises."""
        with self._write() as connection:
            # SQLAlchemy leaves FOR UPDATE out on SQLite, where BEGIN IMMEDIATE did it already.
            connection.execute(select(s.line.c.name).where(s.line.c.name == line).with_for_update())
            yield Transaction(connection, read_head(connection, line))

    @contextmanager
    def snapshot(self, line: str) -> Iterator[Transaction]:
        """The line at one moment, without the lock; write nothing here."""
        with self._read() as connection:
            yield Transaction(connection, read_head(connection, line))

    def decide(self, line: str, body: Callable[[Transaction], T]) -> T:
        """Run `body` under the line's lock; again, some times, when PostgreSQL asks for that."""

        def attempt() -> T:
            with self.lock(line) as transaction:
                return body(transaction)

        return again(attempt)
