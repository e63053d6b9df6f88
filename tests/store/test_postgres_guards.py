"""The same guards on PostgreSQL, and TRUNCATE."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from pairgate.domain.release import Kind
from pairgate.store.sql import SqlRegistry
from tests.store.test_registry import AT, LINE, add, append, decision

pytestmark = pytest.mark.postgres

ATTACKS = (
    "UPDATE decision SET reason = 'x'",
    "DELETE FROM decision",
    "TRUNCATE decision",
    "TRUNCATE line CASCADE",
    "INSERT INTO decision SELECT line, sequence + 5, kind, production, previous, version, at, "
    "actor, identity_source, reason, evaluation_digest, incumbent_digest, policy_digest, "
    "slice_digest, profile_digest, override, reinstate, NULL, warnings, previous_hash, hash "
    "FROM decision",
    "UPDATE line SET production_version = NULL",
    "DELETE FROM version WHERE number = 1",
    "UPDATE version SET pair_digest = 'x' WHERE number = 1",
    "UPDATE version SET state = 'production' WHERE number = 2",
    "DELETE FROM pair",
    "UPDATE pair SET document = '{}'",
    "TRUNCATE evaluation CASCADE",
)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url"))


def test_raw_sql_is_refused(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    add(registry)
    add(registry, b"draft-2")
    append(registry, decision(registry, Kind.PROMOTE, production=1, version=1))
    with registry.engine.connect() as connection:
        for attack in ATTACKS:
            with pytest.raises(DBAPIError), connection.begin():
                connection.execute(text(attack))
    assert registry.head(LINE).production == 1


def test_the_audit_finds_a_disabled_trigger(registry: SqlRegistry) -> None:
    registry.create_line(LINE, AT)
    assert registry.schema_problems() == []
    assert registry.database_role()
    with registry.engine.begin() as connection:
        connection.execute(text("ALTER TABLE decision DISABLE TRIGGER guard_decision_update"))
    assert registry.schema_problems() == ["trigger guard_decision_update is missing or disabled"]
