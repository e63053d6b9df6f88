from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from pairgate.app.workspace import Workspace
from tests.release.story import new_line, put_in_production
from tests.store.databases import database, postgres_template

__all__ = ["postgres_template"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is delivered by itself, and there is no mirror."""
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A home and its database, copied by each test. `url` None is the home's own SQLite."""

    home: Path
    url: str | None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The rules of release hold on each database; what is typed and delivered is tested once."""
    if "backend" in metafunc.fixturenames and metafunc.module.__name__.endswith("test_release"):
        both = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
        metafunc.parametrize("backend", both, indirect=True, scope="session")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """The database under the registry."""
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture(scope="session")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, backend: str
) -> Iterator[Prepared]:
    """A home with the line `code`, set up."""
    template = request.getfixturevalue("postgres_template") if backend == "postgres" else None
    with database(template) if template else nullcontext(None) as url:
        made = Prepared(home=tmp_path_factory.mktemp("prepared") / "home", url=url)
        opened = Workspace.open(home=str(made.home), database_url=url, create=True)
        new_line(opened)
        opened.close()
        yield made


@pytest.fixture(scope="session")
def prepared_release(
    tmp_path_factory: pytest.TempPathFactory, prepared: Prepared
) -> Iterator[Prepared]:
    """v1 and v2 were in production, v3 is: v1 -> v2 (another target) -> v3 (another draft)."""
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRGATE_DELIVERY", "off")  # a workspace keeps the environment it began with
        with copied(prepared, folder) as opened:
            for target, draft in (
                (b"base", b"draft-1"),
                (b"tuned", b"draft-1"),
                (b"tuned", b"draft-2"),
            ):
                put_in_production(opened, target, draft)
            opened.close()
            patch.undo()
            url = opened.database_url if prepared.url else None
            yield Prepared(home=opened.home, url=url)


@pytest.fixture
def ws(tmp_path: Path, prepared: Prepared) -> Iterator[Workspace]:
    with copied(prepared, tmp_path) as opened:
        yield opened


@pytest.fixture
def released(tmp_path: Path, prepared_release: Prepared) -> Iterator[Workspace]:
    with copied(prepared_release, tmp_path) as opened:
        yield opened


@contextmanager
def copied(source: Prepared, folder: Path) -> Iterator[Workspace]:
    """A workspace of its own that is where `source` is; what it starts uses it too."""
    home = shutil.copytree(source.home, folder / "home")
    with database(source.url) if source.url else nullcontext(None) as url:
        opened = Workspace.open(home=str(home), database_url=url)
        yield opened
        opened.close()
