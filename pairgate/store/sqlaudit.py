"""What triggers cannot stop, because it changes the schema or the file itself, is found here."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from sqlalchemy import Connection, select, text

from pairgate.domain.canonical import sha256_digest
from pairgate.errors import PairgateError
from pairgate.store import schema as s
from pairgate.store.sqlbase import SqlBase
from pairgate.store.sqlengine import is_sqlite, make_engine, reading
from pairgate.store.sqlpairs import read_pair
from pairgate.store.sqlschema import migrations_folder, upgrade


class Audit(SqlBase):
    """Checks of the whole database; each returns sentences about what is wrong, or nothing."""

    def schema_problems(self) -> list[str]:
        """Tables, indexes and triggers that are missing or were changed by hand."""
        with self._read() as connection:
            if not is_sqlite(self.engine):
                return _missing_triggers(connection)
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


def _missing_triggers(connection: Connection) -> list[str]:
    """PostgreSQL: every guard of the migration is there and enabled."""
    from alembic.script import ScriptDirectory

    guards = ScriptDirectory(migrations_folder()).get_revision("0002").module
    statements = "\n".join(guards._postgresql_guards())
    expected = set(re.findall(r"CREATE TRIGGER (\w+)", statements))
    query = text("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'O'")
    found = set(connection.scalars(query))
    return [f"trigger {name} is missing or disabled" for name in sorted(expected - found)]
