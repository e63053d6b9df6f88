"""From every revision to the newest, with rows in the tables, on both databases."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, func, inspect, select, text

from pairgate.app import release
from pairgate.app.audit import verify
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import VersionRef
from pairgate.errors import PairgateError, Unavailable
from pairgate.store import schema as s
from pairgate.store.sqlengine import is_sqlite, make_engine, reading, writing
from pairgate.store.sqlschema import current_revision, migrations_folder, upgrade
from tests.migrations.history import ROWS, at_revision, revisions
from tests.release.story import ALICE, LINE, store_pair

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = make_engine(url)
    yield made
    made.dispose()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")


@pytest.mark.parametrize("revision", revisions())
def test_an_old_registry_goes_on(engine: Engine, url: str, revision: str, tmp_path: Path) -> None:
    """No row is lost, the history adds up, and the line can be moved again."""
    at_revision(engine, revision)
    if revision != s.HEAD_REVISION:
        ws = Workspace.open(home=str(tmp_path), database_url=url)
        with pytest.raises(Unavailable, match=revision) as caught:
            ws.registry.head(LINE)
        assert "pairgate db upgrade" in (caught.value.hint or "")
        ws.close()
    assert upgrade(engine) == s.HEAD_REVISION == current_revision(engine)
    with reading(engine) as connection:
        for name, rows in ROWS.items():
            table = s.metadata.tables[name]
            assert connection.scalar(select(func.count()).select_from(table)) == len(rows), name
    ws = Workspace.open(home=str(tmp_path), database_url=url)
    _bring_files(ws)
    assert verify(ws).problems == ()
    head = ws.registry.head(LINE)
    assert (head.production, head.previous, head.revision) == (5, 4, 8)
    assert (head.withdrawn, head.pinned) == ({3}, {1})
    assert head.hash == ROWS["line"][0]["head_hash"]
    _move_on(ws)
    ws.close()


def _bring_files(ws: Workspace) -> None:
    """The store is not the database's: what the rows name is put there again."""
    for content in (b"base", b"tuned", b"draft-1", b"draft-2", b"draft-3"):
        ws.blobs.add_bytes(content)
    for version in ws.registry.versions(LINE):
        store_pair(ws, ws.registry.pair(version.pair_digest))


def _move_on(ws: Workspace) -> None:
    """Old documents are readable, and decisions go on in the old chain."""
    assert len(ws.registry.evaluations(LINE)) == len(ROWS["evaluation"])
    for row in ws.registry.evaluations(LINE):
        assert ws.registry.evaluation(row.digest).row == row
    n_waiting = sum(row["delivered_at"] is None for row in ROWS["outbox"])
    assert len(ws.registry.pending(LINE)) == n_waiting
    release.rollback(ws, LINE, reason="after the upgrade", actor=ALICE)
    release.promote(ws, VersionRef(line=LINE, selector="1"), override="back", actor=ALICE)
    assert ws.registry.head(LINE).production == 1
    assert len(ws.registry.pending(LINE)) == n_waiting + 2
    assert verify(ws).problems == ()


def test_two_upgrades_at_once(url: str) -> None:
    """Each waits for the other, and both end at the newest revision."""
    engine = make_engine(url)
    at_revision(engine, revisions()[0])
    engine.dispose()
    failures: list[BaseException] = []
    together = threading.Barrier(3)

    def work() -> None:
        mine = make_engine(url)
        try:
            together.wait(timeout=30)
            assert upgrade(mine) == s.HEAD_REVISION
        except BaseException as error:
            failures.append(error)
        finally:
            mine.dispose()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert current_revision(engine) == s.HEAD_REVISION
    engine.dispose()


def test_a_failed_upgrade_leaves_the_old_schema(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step fails after all others were made: nothing of any of them stays."""
    at_revision(engine, revisions()[0])
    before = tables_and_triggers(engine)
    steps: list[str] = []

    def fail_at_the_last(*, step: object, **_: object) -> None:
        steps.append(str(step))
        if len(steps) == len(revisions()) - 1:
            raise RuntimeError("the machine is switched off")

    monkeypatch.setattr(MigrationContext, "configure", _watched(fail_at_the_last))
    with pytest.raises(RuntimeError, match="switched off"):
        upgrade(engine)
    monkeypatch.undo()
    assert tables_and_triggers(engine) == before
    assert current_revision(engine) == revisions()[0]


def test_a_schema_never_goes_back(
    engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history would lose its guards: restore a backup in place of a downgrade."""
    upgrade(engine)
    with pytest.raises(Unavailable, match="newer than"):
        upgrade(engine, revisions()[0])
    monkeypatch.setenv("PAIRGATE_DATABASE_URL", url)
    for revision in reversed(revisions()):
        script = ScriptDirectory(str(migrations_folder())).get_revision(revision)
        assert script is not None
        with pytest.raises(NotImplementedError):
            script.module.downgrade()
    with pytest.raises(NotImplementedError):
        command.downgrade(Config(str(ROOT / "alembic.ini")), "-1")
    assert current_revision(engine) == s.HEAD_REVISION


def test_alembic_check_is_clean(engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(engine)
    monkeypatch.setenv("PAIRGATE_DATABASE_URL", url)
    command.check(Config(str(ROOT / "alembic.ini")))


def test_the_catalogue_at_head(engine: Engine) -> None:
    """What autogenerate does not see: predicates of partial indexes, triggers, and what a foreign
    key does on deletion."""
    upgrade(engine)
    inspector = inspect(engine)
    for table in s.metadata.tables.values():
        foreign = inspector.get_foreign_keys(table.name)
        assert len(foreign) == len(table.foreign_key_constraints), table.name
        assert all(key["options"].get("ondelete") == "RESTRICT" for key in foreign), table.name
    assert _predicates(engine) == {
        "uq_version_one_production": "state = 'production'",
        "ix_outbox_pending": "delivered_at IS NULL",
    }
    found = {name for _, name in _triggers(engine)}
    assert found == _expected_triggers(engine)
    guarded = {table for table, _ in _triggers(engine)}
    assert guarded >= {"decision", "evaluation", "check", "approval", "version", "pair", "line"}


def test_the_second_production_is_stopped_by_the_index_alone(engine: Engine) -> None:
    """Without any trigger, the partial unique index still stops it."""
    upgrade(engine)
    with writing(engine) as connection:
        for table, name in _triggers(engine):
            on = "" if is_sqlite(engine) else f' ON "{table}"'
            connection.execute(text(f"DROP TRIGGER {name}{on}"))
    with writing(engine) as connection:
        connection.execute(text("INSERT INTO line (name, created_at) VALUES ('a', '')"))
        connection.execute(
            text(
                "INSERT INTO pair (digest, target_digest, method, document, provenance, created_at,"
                " verified_at) VALUES ('p', '', '', '', '', '', ''), ('q', '', '', '', '', '', '')"
            )
        )
    new = (
        "INSERT INTO version (line, number, pair_digest, target_digest, method, state, created_at,"
        " created_by) VALUES ('a', {n}, '{p}', '', '', 'production', '', '')"
    )
    with writing(engine) as connection:
        connection.execute(text(new.format(n=1, p="p")))
    with pytest.raises(PairgateError), writing(engine) as connection:
        connection.execute(text(new.format(n=2, p="q")))


def _watched(callback: Callable[..., None]) -> classmethod[Any, ..., MigrationContext]:
    """Alembic's own hook, called after each migration (on_version_apply)."""
    plain = MigrationContext.configure.__func__

    def configure(cls: type[MigrationContext], *args: Any, opts: Any, **k: Any) -> MigrationContext:
        return plain(cls, *args, opts={**opts, "on_version_apply": (callback,)}, **k)

    return classmethod(configure)


def tables_and_triggers(engine: Engine) -> tuple[Any, ...]:
    names = inspect(engine).get_table_names()
    return (
        sorted(names),
        [(n, [c["name"] for c in inspect(engine).get_columns(n)]) for n in sorted(names)],
        _triggers(engine),
    )


def _predicates(engine: Engine) -> dict[str, str]:
    query = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
        if is_sqlite(engine)
        else "SELECT indexname AS name, indexdef AS sql FROM pg_indexes"
        " WHERE schemaname = current_schema() AND indexdef LIKE '% WHERE %'"
    )
    with reading(engine) as connection:
        rows = connection.execute(text(query)).all()
    plain = {row.name: row.sql.partition(" WHERE ")[2] for row in rows}
    return {name: re.sub(r"::\w+|[()]", "", sql).replace("text", "") for name, sql in plain.items()}


def _triggers(engine: Engine) -> list[tuple[str, str]]:
    query = (
        "SELECT tbl_name, name FROM sqlite_master WHERE type = 'trigger'"
        if is_sqlite(engine)
        else "SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " WHERE NOT t.tgisinternal AND t.tgenabled = 'O'"
    )
    with reading(engine) as connection:
        return sorted((str(a), str(b)) for a, b in connection.execute(text(query)))


def _expected_triggers(engine: Engine) -> set[str]:
    """Those that the revisions make, less those that later ones drop, by their own text."""
    found: set[str] = set()
    scripts = ScriptDirectory(str(migrations_folder()))
    for revision in revisions():
        script = scripts.get_revision(revision)
        assert script is not None
        name = "_sqlite_guards" if is_sqlite(engine) else "_postgresql_guards"
        guards = getattr(script.module, name, None)
        statements = "\n".join(guards()) if guards else ""
        found -= set(re.findall(r"DROP TRIGGER (\w+)", statements))
        found |= set(re.findall(r"CREATE TRIGGER (\w+)", statements))
    return found
