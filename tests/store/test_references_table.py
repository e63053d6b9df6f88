"""Where referenced content lies: rows that move but are never lost, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from pairgate.domain.canonical import sha256_digest
from pairgate.domain.records import Reference
from pairgate.errors import IntegrityError
from pairgate.store.sql import SqlRegistry

ONE = Reference(
    digest=sha256_digest(b"one"),
    uri="s3://bucket/one",
    size=3,
    version_id="v1",
    hashed_by="read once",
    recorded_at="2026-01-01T00:00:00Z",
)


@pytest.fixture
def registry(url: str):
    opened = SqlRegistry.open(url)
    yield opened
    opened.close()


def test_a_row_follows_its_content_to_the_newest_place(registry: SqlRegistry) -> None:
    two = replace(ONE, digest=sha256_digest(b"two"), uri="s3://bucket/two")
    registry.save_references([ONE, two])
    moved = replace(ONE, uri="s3://elsewhere/one", version_id="v2")
    registry.save_references([moved])
    absent = sha256_digest(b"absent")
    assert registry.references([ONE.digest, absent]) == {ONE.digest: moved}
    assert registry.references([two.digest]) == {two.digest: two}
    with pytest.raises(IntegrityError, match="its stated hash is wrong"):
        registry.save_references([replace(ONE, size=4)])
    assert registry.references([ONE.digest]) == {ONE.digest: moved}


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM reference",
        "UPDATE reference SET digest = 'x'",
        "UPDATE reference SET size = 4",
    ],
)
def test_no_statement_loses_a_row(registry: SqlRegistry, statement: str) -> None:
    registry.save_references([ONE])
    with pytest.raises(DBAPIError), registry.engine.begin() as connection:
        connection.execute(text(statement))
    assert registry.references([ONE.digest]) == {ONE.digest: ONE}


def test_neither_replace_nor_truncate_gets_round_the_guards(registry: SqlRegistry) -> None:
    registry.save_references([ONE])
    values = f"('{ONE.digest}', 'x', 3, '', '', '')"
    on_sqlite = registry.engine.dialect.name == "sqlite"
    statement = f"INSERT OR REPLACE INTO reference VALUES {values}"
    with pytest.raises(DBAPIError), registry.engine.begin() as connection:
        connection.execute(text(statement if on_sqlite else "TRUNCATE reference CASCADE"))
    assert registry.references([ONE.digest]) == {ONE.digest: ONE}
