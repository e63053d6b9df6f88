"""The registry on SQLite or PostgreSQL: one class, its parts in a module each.

sqllines     lines, decisions, the lock       sqlpairs     pairs, versions, profiles, slices
sqlevidence  attempts, evaluations, approvals outbox       messages for the outside
sqlengine    connections and errors           sqlschema    revisions and migration
sqlgc        flights, what is condemned       sqlaudit     what was changed by hand
"""

from __future__ import annotations

from pairgate.domain.records import EvidenceRow, OutboxMessage, ProfileRow, SliceRow
from pairgate.store.outbox import Outbox
from pairgate.store.sqlaudit import Audit
from pairgate.store.sqlengine import make_engine
from pairgate.store.sqlevidence import Evidence, StoredEvaluation
from pairgate.store.sqlgc import Garbages
from pairgate.store.sqllines import Lines
from pairgate.store.sqlpairs import Pairs
from pairgate.store.sqlreferences import References
from pairgate.store.sqltransaction import Transaction, Transactions

__all__ = [
    "EvidenceRow",
    "OutboxMessage",
    "ProfileRow",
    "SliceRow",
    "SqlRegistry",
    "StoredEvaluation",
    "Transaction",
]


class SqlRegistry(Transactions, Lines, Pairs, References, Evidence, Garbages, Outbox, Audit):
    """Everything that is known, under transactions.

    Nothing is opened before the first use. A new SQLite file gets its schema then; any other
    revision than this release's raises `Unavailable` with what to do.
    """

    @classmethod
    def open(cls, url: str) -> SqlRegistry:
        return cls(make_engine(url))
