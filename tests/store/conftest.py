from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pairgate.store.sql import SqlRegistry
from tests.store.databases import empty_postgres_url, postgres_template, postgres_url

__all__ = ["empty_postgres_url", "postgres_template", "postgres_url"]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """Each database that the registry runs on."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def registry(url: str) -> Iterator[SqlRegistry]:
    opened = SqlRegistry.open(url)
    yield opened
    opened.close()
