"""Which schema a database has, and bringing it to the one that this release knows.

Alembic is imported only when there is something to migrate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from pairgate.errors import Unavailable
from pairgate.store.schema import HEAD_REVISION
from pairgate.store.sqlengine import is_sqlite, reading, translated, writing
from pairgate.store.sqlerrors import shown

# Any number that no other program on the same server uses for an advisory lock.
_UPGRADE_LOCK = 0x7061_6972_6761_7465


def current_revision(engine: Engine) -> str | None:
    """The database's Alembic revision; None for a database without our tables."""
    with reading(engine) as connection:
        return _revision(connection)


def ensure_current(engine: Engine) -> None:
    """Make the schema of a new SQLite file; raises `Unavailable` for any other revision."""
    found = current_revision(engine)
    if found == HEAD_REVISION:
        return
    if found is None and is_sqlite(engine):
        upgrade(engine)
        return
    if found is None:
        raise Unavailable(
            f"the database {shown(engine)} has no pairgate schema yet",
            hint="make it with: pairgate db upgrade",
        )
    if found > HEAD_REVISION:
        raise Unavailable(
            f"the registry has schema {found}, newer than the {HEAD_REVISION} of this pairgate",
            hint="upgrade pairgate on this machine",
        )
    raise Unavailable(
        f"the registry has schema {found}; this pairgate needs {HEAD_REVISION}",
        hint="back the database up, then run: pairgate db upgrade",
    )


def upgrade(engine: Engine, revision: str = HEAD_REVISION) -> str:
    """Migrate to this release's revision, or as far as to an older one. Two upgrades at once take
    turns, and one that fails leaves nothing. Returns the revision."""
    with _alone(engine) as connection:
        found = _revision(connection)
        if found is not None and found > revision:
            raise Unavailable(
                f"the registry has schema {found}, newer than {revision}",
                hint="upgrade pairgate on this machine: a schema never goes back",
            )
        if found != revision:
            migrate(connection, revision)
    return revision


def migrations_folder() -> Path:
    """Where the migrations lie: the installed `pairgate_migrations`, or the checkout's folder."""
    from importlib.util import find_spec

    import pairgate

    spec = find_spec("pairgate_migrations")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    beside = Path(pairgate.__file__).parent.parent / "migrations"
    if not (beside / "env.py").is_file():
        raise Unavailable(
            "the migrations are not installed beside pairgate", hint="install pairgate again"
        )
    return beside


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """A write transaction that no other upgrade can be in at the same time."""
    with writing(engine) as connection:
        if not is_sqlite(engine):
            # Waits without a limit: the other upgrade may be a long one.
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
        yield connection


def migrate(connection: Connection, revision: str = HEAD_REVISION) -> None:
    """Run the migrations in the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _revision(connection: Connection) -> str | None:
    with translated(connection.engine):
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
