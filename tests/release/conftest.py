from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairgate.app.workspace import Workspace
from tests.release.story import new_line, put_in_production


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is delivered by itself, and there is no mirror."""
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")


@pytest.fixture(scope="session")
def prepared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the line `code`, set up; copied by each test."""
    folder = tmp_path_factory.mktemp("prepared") / "home"
    opened = Workspace.open(home=str(folder), create=True)
    new_line(opened)
    opened.close()
    return folder


@pytest.fixture(scope="session")
def released_home(tmp_path_factory: pytest.TempPathFactory, prepared_home: Path) -> Path:
    """v1 and v2 were in production, v3 is: v1 -> v2 (another target) -> v3 (another draft)."""
    home = shutil.copytree(prepared_home, tmp_path_factory.mktemp("released") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRGATE_DELIVERY", "off")
        opened = Workspace.open(home=str(home))
        for target, draft in (
            (b"base", b"draft-1"),
            (b"tuned", b"draft-1"),
            (b"tuned", b"draft-2"),
        ):
            put_in_production(opened, target, draft)
        opened.close()
    return home


@pytest.fixture
def ws(tmp_path: Path, prepared_home: Path) -> Iterator[Workspace]:
    yield from _copy(prepared_home, tmp_path)


@pytest.fixture
def released(tmp_path: Path, released_home: Path) -> Iterator[Workspace]:
    yield from _copy(released_home, tmp_path)


def _copy(source: Path, folder: Path) -> Iterator[Workspace]:
    opened = Workspace.open(home=str(shutil.copytree(source, folder / "home")))
    yield opened
    opened.close()
