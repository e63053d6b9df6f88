"""What triggers cannot stop, because it changes the schema or the file itself, is found here."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sqlalchemy import Connection, RowMapping, exists, func, select, text

from pairgate.domain.canonical import sha256_digest
from pairgate.errors import PairgateError
from pairgate.store import schema as s
from pairgate.store.codec import load_json
from pairgate.store.pgcatalogue import catalogue_differences
from pairgate.store.sqlbase import SqlBase
from pairgate.store.sqlengine import is_sqlite, make_engine, reading
from pairgate.store.sqlevidence import check_values, evaluation_values
from pairgate.store.sqllines import read_heads, state_of
from pairgate.store.sqlpairs import read_pair
from pairgate.store.sqlschema import upgrade


class Audit(SqlBase):
    """Checks of the whole database; each returns sentences about what is wrong, or nothing."""

    def schema_problems(self) -> list[str]:
        """Tables, indexes and triggers that are missing or were changed by hand."""
        if not is_sqlite(self.engine):
            self._ensure()
            return catalogue_differences(self.engine)
        with self._read() as connection:
            found = _sqlite_catalogue(connection)
        expected = _fresh_catalogue()
        names = sorted(expected.keys() | found.keys())
        return [
            f"{name} is {'missing' if name not in found else 'not as the migrations made it'}"
            for name in names
            if name in expected and expected[name] != found.get(name)
        ] + [f"{name} is not of pairgate" for name in names if name not in expected]

    def document_problems(self) -> list[str]:
        """Stored documents whose bytes no longer have the digest that names them."""
        problems = []
        with self._read() as connection:
            for table in (s.evaluation, s.profile):
                rows = connection.execute(select(table.c.digest, table.c.document))
                problems += [
                    f"{table.name} {row.digest} was altered"
                    for row in rows
                    if sha256_digest(row.document.encode()) != row.digest
                ]
            for digest in connection.scalars(select(s.pair.c.digest)).all():
                try:
                    intact = read_pair(connection, digest).digest == digest
                except PairgateError:
                    intact = False
                if not intact:
                    problems.append(f"pair {digest} was altered")
        return problems

    def reference_problems(self) -> list[str]:
        """Rows that refer to what is no longer there, as foreign keys would say."""
        problems = []
        with self._read() as connection:
            for table in s.metadata.sorted_tables:
                for key in table.foreign_key_constraints:
                    referred = key.referred_table.alias()
                    pairs = [(e.parent, referred.c[e.column.name]) for e in key.elements]
                    dangling = (
                        select(func.count())
                        .select_from(table)
                        .where(*(own.is_not(None) for own, _ in pairs))
                        .where(~exists().where(*(own == theirs for own, theirs in pairs)))
                    )
                    n = connection.scalar(dangling)
                    if n:
                        problems.append(
                            f"{n} rows of {table.name} refer to a {key.referred_table.name} "
                            "that is gone"
                        )
        return problems

    def version_problems(self) -> list[str]:
        """Versions whose state is not the one that the head of their line gives them."""
        problems = []
        with self._read() as connection:
            for head in read_heads(connection):
                c = s.version.c
                query = select(c.number, c.state, c.collected_at).where(c.line == head.line)
                for number, state, collected_at in connection.execute(query):
                    name, expected = f"{head.line}@{number}", state_of(head, number)
                    if state != expected:
                        problems.append(f"{name} is stored as {state}, and is {expected}")
                    if collected_at is not None and number in head.protected:
                        problems.append(f"{name} is protected, but was collected")
        return problems

    def evidence_problems(self) -> list[str]:
        """Evaluations whose columns, checks or attempt are not what their documents say."""
        problems = []
        with self._read() as connection:
            for row in connection.execute(select(s.evaluation)).mappings():
                problems += [
                    f"evaluation {row['digest']}: {what}"
                    for what in _evidence_problems(connection, row)
                ]
        return problems


def _evidence_problems(connection: Connection, row: RowMapping) -> list[str]:
    from pairgate.domain.evidence import Evaluation
    from pairgate.domain.verdict import Verdict

    try:
        evaluation = load_json(Evaluation, row["document"])
        verdict = load_json(Verdict, row["verdict"])
    except PairgateError as error:
        return [f"it cannot be read: {error.message}"]
    stored = evaluation_values(evaluation, verdict, row["created_at"], row["folder"])
    problems = [
        f"{name} is stored as {row[name]}, and is {value}"
        for name, value in stored.items()
        # The stored bytes have the digest (document_problems): a release that knows more fields
        # would write other bytes of the same evidence.
        if name not in ("document", "verdict", "digest") and row[name] != value
    ]
    c = s.check.c
    mine = select(s.check).where(c.evaluation_digest == row["digest"]).order_by(c.position)
    found = [dict(check) for check in connection.execute(mine).mappings()]
    if found != [check_values(row["digest"], i, ch) for i, ch in enumerate(verdict.checks)]:
        problems.append("its checks are not those of its verdict")
    a = s.attempt.c
    counted = select(func.count()).where(
        a.pair_digest == row["pair_digest"],
        a.policy_digest == row["policy_digest"],
        a.slice_digest == row["slice_digest"],
        a.number == row["attempt"],
        a.released.is_(False),
    )
    if row["outcome"] != "ERROR" and not connection.scalar(counted):
        problems.append(f"its attempt {row['attempt']} does not count any more")
    return problems


def _sqlite_catalogue(connection: Connection) -> dict[str, str]:
    query = text("SELECT type || ' ' || name AS name, sql FROM sqlite_master WHERE sql NOT NULL")
    return {row.name: " ".join(row.sql.split()) for row in connection.execute(query)}


def _fresh_catalogue() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(f"sqlite:///{Path(folder) / 'fresh.db'}")
        try:
            upgrade(engine)
            with reading(engine) as connection:
                return _sqlite_catalogue(connection)
        finally:
            engine.dispose()
