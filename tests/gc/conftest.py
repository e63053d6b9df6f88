"""A home on each database, with a line of three versions: v1 previous, v2 production, v3 free."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pairgate.app.gc import GcOptions
from pairgate.app.workspace import Workspace
from tests.release.story import add, new_line, put_in_production
from tests.store.databases import postgres_template, postgres_url

__all__ = ["postgres_template", "postgres_url"]

NOW = GcOptions(grace=timedelta(0), retention=timedelta(0))
"""Nothing is kept for its age, and what was condemned before is deleted at once."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is delivered by itself, and there is no mirror."""
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'home' / 'pairgate.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """Each database that the registry runs on."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def story(home: Path, url: str | None = None) -> Workspace:
    opened = Workspace.open(home=str(home), database_url=url, create=True)
    new_line(opened)
    put_in_production(opened, b"base", b"draft-1")
    put_in_production(opened, b"tuned", b"draft-2")
    add(opened, b"tuned", b"draft-3")
    return opened


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story on SQLite; copied by each test."""
    home = tmp_path_factory.mktemp("prepared") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRGATE_DELIVERY", "off")
        story(home).close()
    return home


@pytest.fixture
def ws(tmp_path: Path, prepared: Path) -> Iterator[Workspace]:
    opened = Workspace.open(home=str(shutil.copytree(prepared, tmp_path / "home")))
    yield opened
    opened.close()


@pytest.fixture
def team(tmp_path: Path, postgres_url: str) -> Iterator[Workspace]:
    """The same on PostgreSQL."""
    opened = story(tmp_path / "home", postgres_url)
    yield opened
    opened.close()
