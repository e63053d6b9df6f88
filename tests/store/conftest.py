from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from pairgate.store.sql import SqlRegistry
from pairgate.store.sqlengine import make_engine
from pairgate.store.sqlschema import upgrade


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of this test's own: a file, or one that is dropped again."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'registry.db'}"
        return
    server = make_engine(os.environ["PAIRGATE_TEST_POSTGRES_URL"]).url
    name = f"pairgate_{secrets.token_hex(6)}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    own = server.set(database=name)
    engine = make_engine(own.render_as_string(hide_password=False))
    upgrade(engine)
    engine.dispose()
    yield own.render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def registry(url: str) -> Iterator[SqlRegistry]:
    opened = SqlRegistry.open(url)
    yield opened
    opened.close()
