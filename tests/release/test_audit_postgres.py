"""What the owner of a PostgreSQL schema can change is found by the audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from pairgate.app.workspace import Workspace
from tests.release.story import new_line
from tests.store.databases import postgres_template, postgres_url

__all__ = ["postgres_template", "postgres_url"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def team(tmp_path: Path, postgres_url: str) -> Iterator[Workspace]:
    opened = Workspace.open(home=str(tmp_path / "home"), database_url=postgres_url, create=True)
    new_line(opened)
    yield opened
    opened.close()


def test_a_changed_schema_is_found(team: Workspace) -> None:
    changes = {
        "ALTER TABLE decision DISABLE TRIGGER guard_decision_update": "guard_decision_update",
        "DROP TRIGGER guard_pin_delete ON pin": "trigger guard_pin_delete is missing",
        "ALTER TABLE pair DISABLE TRIGGER ALL": "trigger",
        "CREATE OR REPLACE FUNCTION pairgate_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NEW; END $$": "function pairgate_refuse is not as",
        "ALTER TABLE version DROP CONSTRAINT ck_version_state_known": "ck_version_state_known is",
        "DROP INDEX uq_version_one_production": "index uq_version_one_production is missing",
        "CREATE TABLE stray (x int)": "table stray is not of pairgate",
        "CREATE RULE nothing AS ON DELETE TO pin DO INSTEAD NOTHING": "rule nothing on pin is not",
        "ALTER TABLE approval ALTER actor DROP NOT NULL": "column approval.actor is not as",
        "ALTER TABLE decision SET UNLOGGED": "table decision is not as",
    }
    with team.registry.engine.connect() as connection:
        for change, says in changes.items():
            transaction = connection.begin()
            connection.execute(text(change))
            transaction.commit()
            problems = team.registry.schema_problems()
            assert any(says in p for p in problems), (change, problems)
    assert len(team.registry.schema_problems()) >= len(changes)
