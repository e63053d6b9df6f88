"""What was decided cannot be changed by SQL, from any connection, with any pragmas."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pairgate.app.workspace import Workspace
from pairgate.domain.release import Kind
from pairgate.errors import Unavailable
from tests.release.story import add, evidence, new_line


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which v1 is production, v2 pinned, v3 evaluated and v4 free."""
    home = tmp_path_factory.mktemp("guards")
    ws = Workspace.open(home=str(home), create=True)
    new_line(ws)
    versions = [add(ws, b"target", b"draft-%d" % n) for n in range(4)]
    digest = evidence(ws, versions[0])
    evidence(ws, versions[2])
    with ws.registry.lock("code") as transaction:
        last = transaction.decisions()[-1]
        promote = replace(
            last,
            sequence=2,
            kind=Kind.PROMOTE,
            production=1,
            version=1,
            evaluation_digest=digest,
            request_id="r1",
        )
        transaction.append(promote)
        transaction.append(replace(promote, sequence=3, kind=Kind.PIN, version=2, request_id=None))
    ws.close()
    return home / "pairgate.db"


@pytest.fixture(params=["guarded", "bare"])
def raw(request: pytest.FixtureRequest, history: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection, with the pragmas that protect or with all of them off. Every change is
    rolled back at the end."""
    connection = sqlite3.connect(history, isolation_level=None)
    on = "ON" if request.param == "guarded" else "OFF"
    connection.execute(f"PRAGMA foreign_keys = {on}")
    connection.execute(f"PRAGMA recursive_triggers = {on}")
    connection.execute("BEGIN")
    yield connection
    connection.execute("ROLLBACK")
    connection.close()


COLUMNS = "line, number, pair_digest, target_digest, method, state, created_at, created_by"
ATTACKS = {
    "edit a decision": "UPDATE decision SET reason = 'x' WHERE sequence = 1",
    "delete a decision": "DELETE FROM decision WHERE sequence = 3",
    "delete all decisions": "DELETE FROM decision",
    "replace a decision": "INSERT OR REPLACE INTO decision SELECT * FROM decision "
    "WHERE sequence = 2",
    "replace by request id": "INSERT OR REPLACE INTO decision (line, sequence, kind, at, actor, "
    "identity_source, reason, override, reinstate, request_id, warnings, previous_hash, hash) "
    "SELECT name, 4, 'set', '', '', '', '', 0, 0, 'r1', '[]', head_hash, 'h' FROM line",
    "replace by rowid": "INSERT OR REPLACE INTO decision (rowid, line, sequence, kind, at, actor, "
    "identity_source, reason, override, reinstate, warnings, previous_hash, hash) "
    "SELECT 1, name, 4, 'set', '', '', '', '', 0, 0, '[]', head_hash, 'h' FROM line",
    "skip a sequence": "INSERT INTO decision (line, sequence, kind, at, actor, identity_source, "
    "reason, override, reinstate, warnings, previous_hash, hash) "
    "SELECT name, 9, 'set', '', '', '', '', 0, 0, '[]', head_hash, 'h' FROM line",
    "fork the chain": "INSERT INTO decision (line, sequence, kind, at, actor, identity_source, "
    "reason, override, reinstate, warnings, previous_hash, hash) "
    "SELECT name, 4, 'set', '', '', '', '', 0, 0, '[]', 'another', 'h' FROM line",
    "move the head": "UPDATE line SET production_version = 2",
    "clear the head": "UPDATE line SET production_version = NULL, previous_version = NULL",
    "set the head back": "UPDATE line SET revision = 1, head_hash = "
    "(SELECT hash FROM decision WHERE sequence = 1), production_version = NULL",
    "rename the line": "UPDATE line SET name = 'other'",
    "delete the line": "DELETE FROM line",
    "replace the line": "INSERT OR REPLACE INTO line (name, created_at) VALUES ('code', '')",
    "a line with a head": "INSERT INTO line (name, revision, created_at) VALUES ('x', 5, '')",
    "delete production": "DELETE FROM version WHERE number = 1",
    "delete a pinned version": "DELETE FROM version WHERE number = 2",
    "delete an evaluated version": "DELETE FROM version WHERE number = 3",
    "point production elsewhere": "UPDATE version SET pair_digest = "
    "(SELECT pair_digest FROM version WHERE number = 4) WHERE number = 1",
    "update or replace": "UPDATE OR REPLACE version SET number = 1 WHERE number = 4",
    "update a rowid": "UPDATE OR REPLACE version SET rowid = 1 WHERE number = 4",
    "a second production": "UPDATE version SET state = 'production' WHERE number = 4",
    "replace production by state": "UPDATE OR REPLACE version SET state = 'production' "
    "WHERE number = 4",
    "replace production by insert": f"INSERT OR REPLACE INTO version ({COLUMNS}) SELECT line, 9, "
    "'sha256:x', target_digest, method, 'production', '', '' FROM version WHERE number = 1",
    "replace a version": f"INSERT OR REPLACE INTO version ({COLUMNS}) SELECT line, 1, 'sha256:x', "
    "target_digest, method, 'ready', '', '' FROM version WHERE number = 1",
    "replace a version by its pair": f"INSERT OR REPLACE INTO version ({COLUMNS}) SELECT line, 9, "
    "pair_digest, target_digest, method, 'ready', '', '' FROM version WHERE number = 1",
    "upsert a version": f"INSERT INTO version ({COLUMNS}) SELECT line, 1, 'sha256:x', "
    "target_digest, method, 'ready', '', '' FROM version WHERE number = 1 "
    "ON CONFLICT (line, number) DO UPDATE SET pair_digest = 'sha256:x'",
    "delete a pair": "DELETE FROM pair",
    "edit a pair": "UPDATE pair SET document = '{}'",
    "replace a pair": "INSERT OR REPLACE INTO pair SELECT * FROM pair LIMIT 1",
    "turn a FAIL into a PASS": "UPDATE evaluation SET outcome = 'PASS'",
    "delete evidence": "DELETE FROM evaluation",
    "replace evidence": "INSERT OR REPLACE INTO evaluation SELECT * FROM evaluation LIMIT 1",
    "edit a check": "UPDATE \"check\" SET outcome = 'PASS'",
    "delete checks": 'DELETE FROM "check"',
    "forget attempts": "DELETE FROM attempt",
    "renumber attempts": "UPDATE attempt SET number = 0",
    "delete a policy": "DELETE FROM policy",
    "edit a profile": "UPDATE profile SET document = '{}'",
    "delete a slice": "DELETE FROM slice",
    "forget production's state": "UPDATE version SET state = 'ready' WHERE number = 1",
    "forget that it was production": "UPDATE version SET been_production = 0 WHERE number = 1",
    "claim that it was production": "UPDATE version SET been_production = 1 WHERE number = 4",
    "withdraw without a decision": "UPDATE version SET withdrawn = 1 WHERE number = 3",
    "disable without a decision": "UPDATE line SET disabled_version = 4",
    "a version that begins in production": f"INSERT INTO version ({COLUMNS}) SELECT line, 9, "
    "pair_digest || 'x', target_digest, method, 'previous', '', '' FROM version WHERE number = 4",
    "collect production": "UPDATE version SET collected_at = 'now' WHERE number = 1",
    "collect a pinned version": "UPDATE version SET collected_at = 'now' WHERE number = 2",
    "upsert production away": f"INSERT INTO version ({COLUMNS}) SELECT line, 1, pair_digest, "
    "target_digest, method, 'ready', '', '' FROM version WHERE number = 1 "
    "ON CONFLICT (line, number) DO UPDATE SET state = 'ready'",
    "take a pin away": "DELETE FROM pin",
    "move a pin": "UPDATE pin SET version = 4",
    "replace a pin": "INSERT OR REPLACE INTO pin SELECT * FROM pin",
    "upsert a pin": "INSERT INTO pin SELECT * FROM pin WHERE 1 "
    "ON CONFLICT (line, version) DO UPDATE SET version = 4",
    "pin without a decision": "INSERT INTO pin SELECT line, 4, 'x', 'x', 'x' FROM pin",
    "give a pair another digest": "UPDATE pair SET digest = 'sha256:x' WHERE digest = "
    "(SELECT pair_digest FROM version WHERE number = 1)",
    "another way in a pair": "UPDATE pair SET target_digest = 'x'",
    "replace a pair's row": "UPDATE OR REPLACE pair SET digest = "
    "(SELECT pair_digest FROM version WHERE number = 1) WHERE digest = "
    "(SELECT pair_digest FROM version WHERE number = 4)",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_raw_sql_is_refused(raw: sqlite3.Connection, attack: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute(ATTACKS[attack])


def test_only_the_guards_stop_them(history: Path, tmp_path: Path) -> None:
    """Each attack is a real one: without triggers it changes something, but for two that the
    unique keys stop as well."""
    connection = sqlite3.connect(shutil.copy(history, tmp_path), isolation_level=None)
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in names:
        connection.execute(f"DROP TRIGGER {name}")
    stopped = set()
    for name, attack in ATTACKS.items():
        connection.execute("BEGIN")
        try:
            assert connection.execute(attack).rowcount > 0, name
        except sqlite3.IntegrityError:
            stopped.add(name)
        connection.execute("ROLLBACK")
    connection.close()
    assert stopped == {"point production elsewhere", "a second production"}


def test_what_nobody_needs_can_go(raw: sqlite3.Connection) -> None:
    """The guards protect what is in use, not everything for ever."""
    raw.execute("DELETE FROM version WHERE number = 4")
    assert raw.execute("SELECT count(*) FROM version").fetchone() == (3,)


def test_a_new_connection_has_the_pragmas(history: Path) -> None:
    from pairgate.store.sqlengine import make_engine, reading

    engine = make_engine(f"sqlite:///{history}")
    with reading(engine) as connection:
        names = ("journal_mode", "foreign_keys", "recursive_triggers", "synchronous")
        values = [connection.exec_driver_sql(f"PRAGMA {n}").scalar() for n in names]
    engine.dispose()
    assert values == ["wal", 1, 1, 2]


def test_sqlite_on_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pairgate.store import sqlengine

    mounts = "/dev/vda / ext4 rw 0 0\nserver:/x /mnt/team\\040share nfs4 rw 0 0\n"
    assert sqlengine.file_system_of(Path("/mnt/team share/db"), mounts) == "nfs4"
    assert sqlengine.file_system_of(Path("/mnt/teams"), mounts) == "ext4"
    monkeypatch.setattr(sqlengine, "file_system_of", lambda path: "nfs4")
    with pytest.raises(Unavailable, match="network file system") as caught:
        sqlengine.make_engine("sqlite:////mnt/x.db")
    assert "PostgreSQL" in (caught.value.hint or "")
