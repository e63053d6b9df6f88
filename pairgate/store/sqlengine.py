"""Connections to the registry's database: pragmas and transactions."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from pairgate.errors import InvalidInput, MissingExtra, PairgateError, Unavailable
from pairgate.store.sqlerrors import in_our_words, is_transient, lost_at_commit

T = TypeVar("T")
BUSY_TIMEOUT_S = 30.0
LOCK_TIMEOUT_S = 30
_RETRIES = 8
_TURN_MS = 30
# WAL keeps an index in memory that processes share; over a network that memory is not shared.
_NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs",
    "glusterfs", "ocfs2", "gfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs",
    "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.goofys", "fuse.mount-s3",
}  # fmt: skip


def make_engine(url: str) -> Engine:
    """A lazy engine for SQLite or PostgreSQL; nothing is opened yet.

    Raises `InvalidInput` for another database, `MissingExtra` without the PostgreSQL driver,
    `Unavailable` for SQLite on a network file system.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        check_local(Path(parsed.database or ""))
        engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        return engine
    try:
        engine = create_engine(parsed, pool_pre_ping=True, connect_args={"connect_timeout": 10})
    except ModuleNotFoundError as error:
        raise MissingExtra("psycopg", "postgres") from error
    event.listen(engine, "begin", _on_postgresql_begin)
    return engine


def is_sqlite(engine: Engine) -> bool:
    """Whether the engine speaks to SQLite."""
    return engine.dialect.name == "sqlite"


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection in a read transaction: everything that it reads is of one moment."""
    with translated(engine), engine.connect() as connection:
        yield connection.execution_options(pairgate_read=True)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A write transaction; on SQLite the write lock is taken first (BEGIN IMMEDIATE), so that it
    never has to be upgraded, which fails at once under load. Commits unless the body raises."""
    with translated(engine), engine.connect() as connection:
        connection = connection.execution_options(pairgate_write=True)
        with connection.begin() as transaction:
            yield connection
            try:
                transaction.commit()
            except DBAPIError as error:
                raise lost_at_commit(error, engine) from error


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except DBAPIError as error:
        raise in_our_words(error, engine) from error


def again(attempt: Callable[[], T]) -> T:
    """Run one whole transaction; some times more where PostgreSQL asks for it (`is_transient`)."""
    for left in reversed(range(_RETRIES)):
        try:
            return attempt()
        except PairgateError as error:
            if left == 0 or not is_transient(error):
                raise
            time.sleep(random.uniform(0.01, 0.1))
    raise AssertionError("unreachable")


def check_local(path: Path) -> None:
    """Refuse SQLite on a network file system; raises `Unavailable`."""
    kind = file_system_of(path)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise Unavailable(
            f"{path} lies on a network file system ({kind}), where SQLite loses data",
            hint="put the home on a local disk, or share a PostgreSQL database "
            "(PAIRGATE_DATABASE_URL=postgresql://…)",
        )


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds `path` by /proc/mounts (or its text); '' if unknown."""
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text()
        except OSError:
            return ""
    real, best, kind = os.path.realpath(path), "", ""
    for row in mounts.splitlines():
        fields = row.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidInput(
            "the database URL cannot be read",
            hint="write sqlite:////absolute/path.db or postgresql://user@host/name",
        ) from error
    backend = parsed.drivername.partition("+")[0]
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise InvalidInput(
            f"{backend} databases are not supported", hint="use SQLite or PostgreSQL"
        )
    if not parsed.database or parsed.database == ":memory:":
        raise InvalidInput("the registry needs a file: sqlite:////absolute/path.db")
    return parsed


def _on_sqlite_connect(dbapi_connection: Any, _record: Any) -> None:
    # The driver's own BEGIN is deferred; ours is emitted in _on_sqlite_begin.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA recursive_triggers = ON")
        cursor.execute("PRAGMA synchronous = FULL")
        _use_wal(cursor)
    finally:
        cursor.close()


def _use_wal(cursor: Any) -> None:
    """Two processes that switch an empty file at once: one is told "locked" without waiting."""
    import sqlite3

    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _on_sqlite_begin(connection: Connection) -> None:
    if connection.get_execution_options().get("pairgate_write"):
        _begin_immediate(connection)
    else:
        connection.exec_driver_sql("BEGIN")


def _begin_immediate(connection: Connection) -> None:
    """Take the write lock. SQLite's own waiting asks ever more rarely, so that newcomers overtake
    whoever waits longest, for ever under load: here everybody asks as often."""
    import sqlite3

    raw: Any = connection.connection.dbapi_connection
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    raw.execute(f"PRAGMA busy_timeout = {_TURN_MS}")
    try:
        while time.monotonic() < deadline:
            try:
                raw.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    break
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # raises what SQLAlchemy makes of it
    finally:
        raw.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")


def _on_postgresql_begin(connection: Connection) -> None:
    # By default each statement sees another moment; one snapshot is what SQLite gives.
    if connection.get_execution_options().get("pairgate_read"):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # A lock that somebody holds shall fail clearly in CI instead of hanging the job.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
