"""Alembic's entry: runs on the connection that pairgate hands over, or on a URL of its own.

`pairgate db upgrade` passes a connection inside a transaction that nobody else can be in (BEGIN
IMMEDIATE, or an advisory lock). `alembic …` in a checkout reads PAIRGATE_DATABASE_URL.
"""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection

from pairgate.errors import InvalidInput
from pairgate.store.schema import with_postgresql_predicates
from pairgate.store.sqlengine import make_engine, writing


def run(connection: Connection) -> None:
    """Bring the database of this connection to the revision that Alembic asked for."""
    # Batch mode stays off: it would rebuild tables on SQLite and lose their triggers.
    context.configure(
        connection=connection,
        target_metadata=with_postgresql_predicates(),
        transactional_ddl=True,
        render_as_batch=False,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Run on the connection that was handed over, or on PAIRGATE_DATABASE_URL."""
    given = context.config.attributes.get("connection")
    if given is not None:
        return run(given)
    url = os.environ.get("PAIRGATE_DATABASE_URL")
    if not url:
        raise InvalidInput(
            "no database is named", hint="set PAIRGATE_DATABASE_URL, or use `pairgate db upgrade`"
        )
    engine = make_engine(url)
    try:
        with writing(engine) as connection:
            run(connection)
    finally:
        engine.dispose()


main()
