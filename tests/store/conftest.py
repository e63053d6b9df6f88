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


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A database of this test's own, dropped again."""
    server = make_engine(os.environ["PAIRGATE_TEST_POSTGRES_URL"]).url
    name = f"pairgate_{secrets.token_hex(6)}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    own = server.set(database=name).render_as_string(hide_password=False)
    engine = make_engine(own)
    upgrade(engine)
    engine.dispose()
    yield own
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """Each database that the registry runs on."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def registry(url: str) -> Iterator[SqlRegistry]:
    opened = SqlRegistry.open(url)
    yield opened
    opened.close()
