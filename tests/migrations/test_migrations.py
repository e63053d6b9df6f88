"""The migrations make the schema that the code believes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect

from pairgate.store.schema import HEAD_REVISION, metadata
from pairgate.store.sqlengine import make_engine, reading, writing
from pairgate.store.sqlschema import current_revision, migrations_folder, upgrade

ROOT = Path(__file__).parents[2]


@pytest.fixture
def migrated(tmp_path: Path) -> Engine:
    engine = make_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    assert upgrade(engine) == HEAD_REVISION
    return engine


def test_the_head_is_the_one_that_the_code_names() -> None:
    scripts = ScriptDirectory(str(migrations_folder()))
    assert scripts.get_heads() == [HEAD_REVISION]
    ini = Config(str(ROOT / "alembic.ini"))
    assert ScriptDirectory.from_config(ini).get_heads() == [HEAD_REVISION]


def test_upgrading_twice_changes_nothing(migrated: Engine) -> None:
    before = catalogue(migrated)
    assert upgrade(migrated) == HEAD_REVISION
    assert catalogue(migrated) == before
    assert current_revision(migrated) == HEAD_REVISION


def test_the_tables_are_those_of_the_schema(migrated: Engine, tmp_path: Path) -> None:
    """Columns, keys, checks and indexes, as the catalogue tells them."""
    made = create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    metadata.create_all(made)
    expected, found = catalogue(made), catalogue(migrated)
    found.pop("alembic_version")
    assert found == expected
    made.dispose()


def test_every_table_that_holds_history_is_guarded(migrated: Engine) -> None:
    with reading(migrated) as connection:
        query = "SELECT tbl_name FROM sqlite_master WHERE type = 'trigger'"
        guarded = set(connection.exec_driver_sql(query).scalars())
    # A delivered message is only a message, and the notes of gc are notes.
    assert set(metadata.tables) - guarded == {"outbox", "delivery", "condemned", "flight"}


def test_alembic_ini_works_from_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import command

    url = f"sqlite:///{tmp_path / 'cli.db'}"
    monkeypatch.setenv("PAIRGATE_DATABASE_URL", url)
    command.upgrade(Config(str(ROOT / "alembic.ini")), "head")
    engine = make_engine(url)
    assert current_revision(engine) == HEAD_REVISION
    engine.dispose()


def test_the_audit_finds_a_changed_schema(migrated: Engine) -> None:
    from pairgate.store.sql import SqlRegistry

    registry = SqlRegistry(migrated)
    assert registry.schema_problems() == []
    with writing(migrated) as connection:
        connection.exec_driver_sql("DROP TRIGGER guard_decision_update")
        connection.exec_driver_sql("DROP TRIGGER guard_line_head")
        connection.exec_driver_sql(
            "CREATE TRIGGER guard_line_head BEFORE UPDATE ON line BEGIN SELECT 1; END"
        )
        connection.exec_driver_sql("CREATE TABLE stray (x)")
    problems = registry.schema_problems()
    registry.close()
    assert len(problems) == 3
    assert any("guard_decision_update is missing" in p for p in problems)
    assert any("guard_line_head is not as" in p for p in problems)
    assert any("stray is not of pairgate" in p for p in problems)


def catalogue(engine: Engine) -> dict[str, Any]:
    inspector = inspect(engine)
    found = {
        table: {
            # A later revision adds its columns at the end.
            "columns": sorted(
                (c["name"], str(c["type"]), c["nullable"], str(c["default"]))
                for c in inspector.get_columns(table)
            ),
            "primary": inspector.get_pk_constraint(table),
            "foreign": sorted(map(str, inspector.get_foreign_keys(table))),
            "unique": sorted(map(str, inspector.get_unique_constraints(table))),
            "checks": sorted(map(str, inspector.get_check_constraints(table))),
            "indexes": sorted(
                (
                    str(i["name"]),
                    str(i["column_names"]),
                    i["unique"],
                    str({k: str(v) for k, v in i["dialect_options"].items()}),
                )
                for i in inspector.get_indexes(table)
            ),
        }
        for table in inspector.get_table_names()
    }
    engine.dispose()
    return found
