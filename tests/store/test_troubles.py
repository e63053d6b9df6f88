"""A database that cannot be used says so in a sentence, with the exit code and what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event

from pairgate.errors import IntegrityError, InvalidInput, MissingExtra, PairgateError, Unavailable
from pairgate.store.sql import SqlRegistry
from pairgate.store.sqlengine import make_engine, writing

AT = "2026-12-01T12:00:00Z"


def refused(url: str, kind: type[PairgateError]) -> PairgateError:
    registry = SqlRegistry.open(url)
    with pytest.raises(kind) as caught:
        registry.create_line("code", AT)
    registry.close()
    return caught.value


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "registry.db"
    registry = SqlRegistry.open(f"sqlite:///{path}")
    registry.create_line("other", AT)
    registry.close()
    return path


def test_no_database_at_all(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"this is a text, and long enough to be read as one" * 100)
    assert "damaged" in refused(f"sqlite:///{path}", IntegrityError).message


def test_a_torn_database(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[4096 : len(content)] = bytes(len(content) - 4096)
    database.write_bytes(content)
    assert "damaged" in refused(f"sqlite:///{database}", IntegrityError).message


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    error = refused(f"sqlite:///{tmp_path / 'no' / 'registry.db'}", Unavailable)
    assert "unable to open" in error.message


def test_a_read_only_database(database: Path) -> None:
    error = refused(f"sqlite:///file:{database}?mode=ro&uri=true", Unavailable)
    assert "cannot be written" in error.message


def test_a_full_disk(database: Path) -> None:
    registry = SqlRegistry.open(f"sqlite:///{database}")

    @event.listens_for(registry.engine, "connect")
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")

    with pytest.raises(Unavailable, match="no space is left"):
        for n in range(500):
            registry.create_line(f"line-{n}", AT)
    registry.close()


def test_a_held_lock_ends(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pairgate.store import sqlengine

    monkeypatch.setattr(sqlengine, "BUSY_TIMEOUT_S", 0.1)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    error = refused(f"sqlite:///{database}", Unavailable)
    assert "another process holds" in error.message
    other.close()


@pytest.mark.parametrize(
    ("revision", "says"), [("0001", "pairgate db upgrade"), ("9999", "upgrade pairgate")]
)
def test_another_revision_is_refused(database: Path, revision: str, says: str) -> None:
    engine = make_engine(f"sqlite:///{database}")
    with writing(engine) as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    engine.dispose()
    assert says in (refused(f"sqlite:///{database}", Unavailable).hint or "")


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:", "nonsense"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        SqlRegistry.open(url)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra) as caught:
        SqlRegistry.open("postgresql://nobody@localhost/none")
    assert "pairgate[postgres]" in (caught.value.hint or "")


def test_a_password_is_never_shown() -> None:
    from sqlalchemy import create_engine

    from pairgate.store.sqlerrors import shown

    engine = create_engine("sqlite:////x.db")
    engine.url = engine.url.set(username="ci", password="hunter2", host="db")
    assert "hunter2" not in shown(engine)
