"""The same guards on PostgreSQL: TRUNCATE, COPY, and roles that are not the owner's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pairgate.domain.release import Kind
from pairgate.store.sql import SqlRegistry
from tests.store.test_registry import AT, LINE, add, append, decision

pytestmark = pytest.mark.postgres

NEW_VERSION = "INSERT INTO version (line, number, pair_digest, target_digest, method, state, "
NEW_VERSION += "created_at, created_by) SELECT line, {number}, {pair}, target_digest, method, "
NEW_VERSION += "'{state}', '', '' FROM version WHERE number = 1"
ATTACKS = (
    "UPDATE decision SET reason = 'x'",
    "DELETE FROM decision",
    "TRUNCATE decision",
    "TRUNCATE line CASCADE",
    "TRUNCATE pair CASCADE",
    "TRUNCATE version CASCADE",
    "TRUNCATE pin",
    "TRUNCATE evaluation CASCADE",
    "INSERT INTO decision (line, sequence, kind, at, actor, identity_source, reason, override, "
    "reinstate, warnings, previous_hash, hash) SELECT name, revision + 5, 'set', '', '', '', '', "
    "false, false, '[]', head_hash, 'h' FROM line",
    "INSERT INTO decision (line, sequence, kind, at, actor, identity_source, reason, override, "
    "reinstate, warnings, previous_hash, hash) SELECT name, revision + 1, 'set', '', '', '', '', "
    "false, false, '[]', 'another', 'h' FROM line",
    "UPDATE line SET production_version = NULL",
    "UPDATE line SET disabled_version = 2",
    "UPDATE line SET name = 'other'",
    "UPDATE line SET revision = 1, production_version = NULL, "
    "head_hash = (SELECT hash FROM decision WHERE sequence = 1)",
    "DELETE FROM version WHERE number = 1",
    "DELETE FROM version WHERE number = 2",
    "UPDATE version SET number = 9 WHERE number = 1",
    "UPDATE version SET pair_digest = 'x' WHERE number = 1",
    "UPDATE version SET state = 'ready' WHERE number = 1",
    "UPDATE version SET state = 'production' WHERE number = 3",
    "UPDATE version SET been_production = false WHERE number = 1",
    "UPDATE version SET withdrawn = true WHERE number = 2",
    "UPDATE version SET collected_at = 'now' WHERE number = 1",
    "UPDATE version SET collected_at = 'now' WHERE number = 2",
    NEW_VERSION.format(number=9, pair="(SELECT digest FROM pair LIMIT 1)", state="previous"),
    NEW_VERSION.format(number=1, pair="pair_digest", state="ready")
    + " ON CONFLICT (line, number) DO UPDATE SET state = 'ready'",
    "DELETE FROM pin",
    "UPDATE pin SET version = 3",
    "INSERT INTO pin SELECT line, 3, 'x', 'x', 'x' FROM pin",
    "INSERT INTO pin SELECT * FROM pin ON CONFLICT (line, version) DO UPDATE SET version = 3",
    "DELETE FROM pair",
    "UPDATE pair SET document = '{}'",
    "UPDATE pair SET digest = 'x' WHERE digest = "
    "(SELECT pair_digest FROM version WHERE number = 1)",
    "DELETE FROM line",
)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def history(registry: SqlRegistry) -> SqlRegistry:
    """v1 is production, v2 pinned, v3 free."""
    registry.create_line(LINE, AT)
    for content in (b"draft", b"draft-2", b"draft-3"):
        add(registry, content)
    append(registry, decision(registry, Kind.SET))
    append(registry, decision(registry, Kind.PROMOTE, production=1, version=1))
    append(registry, decision(registry, Kind.PIN, production=1, version=2))
    return registry


@pytest.fixture
def stranger(history: SqlRegistry) -> Iterator[str]:
    """A role that may do everything with the rows, and owns nothing."""
    name = f"stranger_{secrets.token_hex(4)}"
    with history.engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name}"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA public TO {name}"))
        connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}"))
    yield name
    with history.engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))


def refused(connection: Connection, attack: str, role: str | None = None) -> None:
    with pytest.raises(DBAPIError) as caught, connection.begin():
        if role is not None:
            connection.execute(text(f"SET LOCAL ROLE {role}"))
        connection.execute(text(attack))
    assert getattr(caught.value.orig, "sqlstate", None) in ("23001", "23503"), attack


def test_raw_sql_is_refused(history: SqlRegistry, stranger: str) -> None:
    """By triggers and foreign keys, whoever sends it."""
    with history.engine.connect() as connection:
        for attack in ATTACKS:
            refused(connection, attack)
            refused(connection, attack, stranger)
    head = history.head(LINE)
    assert (head.production, head.pinned) == (1, frozenset({2}))


def test_only_the_guards_stop_them(history: SqlRegistry) -> None:
    """A superuser can switch triggers off; then each attack changes something. Others cannot."""
    stopped = []
    with history.engine.connect() as connection:
        for attack in ATTACKS:
            transaction = connection.begin()
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            try:
                done = connection.execute(text(attack))
                assert attack.startswith("TRUNCATE") or done.rowcount > 0, attack
            except DBAPIError:
                stopped.append(attack)
            transaction.rollback()
    # The unique index of production, and that of (line, pair).
    assert len(stopped) == 2, stopped


def test_a_stranger_cannot_switch_the_guards_off(history: SqlRegistry, stranger: str) -> None:
    attempts = (
        "SET LOCAL session_replication_role = replica",
        "ALTER TABLE decision DISABLE TRIGGER ALL",
        "DROP TRIGGER guard_decision_update ON decision",
        "CREATE OR REPLACE FUNCTION pairgate_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NEW; END $$",
        "DROP TABLE pin",
    )
    with history.engine.connect() as connection:
        for attempt in attempts:
            with pytest.raises(DBAPIError) as caught, connection.begin():
                connection.execute(text(f"SET LOCAL ROLE {stranger}"))
                connection.execute(text(attempt))
            assert getattr(caught.value.orig, "sqlstate", None) == "42501", attempt


def test_copy_meets_the_guards(history: SqlRegistry) -> None:
    with history.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        columns = "line, sequence, kind, at, actor, identity_source, reason, override, reinstate"
        command = f"COPY decision ({columns}, warnings, previous_hash, hash) FROM STDIN"
        row = "\t".join([LINE, "4", "set", AT, "x", "x", "x", "f", "f", "[]", "forged", "h"])
        with (
            pytest.raises(psycopg.Error, match="not the next decision"),
            raw.cursor() as cursor,
            cursor.copy(command) as copy,
        ):
            copy.write(row + "\n")
        raw.rollback()
    assert len(history.decisions(LINE)) == 3


def test_the_audit_finds_a_disabled_trigger(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    assert registry.schema_problems() == []
    assert registry.database_role()
    with registry.engine.begin() as connection:
        connection.execute(text("ALTER TABLE decision DISABLE TRIGGER guard_decision_update"))
    problems = registry.schema_problems()
    assert len(problems) == 1 and "guard_decision_update" in problems[0]
