from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pairgate.app.workspace import Workspace
from tests.release.story import new_line


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace with the line `code`, set up; nothing is delivered by itself."""
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")
    opened = Workspace.open(home=str(tmp_path / "home"), create=True)
    new_line(opened)
    yield opened
    opened.close()
