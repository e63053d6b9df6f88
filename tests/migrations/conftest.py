from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.databases import empty_postgres_url

__all__ = ["empty_postgres_url"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))
