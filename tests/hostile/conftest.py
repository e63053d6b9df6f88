from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairgate.app.workspace import Workspace, now
from tests.registration.conftest import make_model, tokenizer_json

__all__ = ["make_model", "tokenizer_json"]


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """One home for all that is refused: each must leave it as it was."""
    opened = Workspace.open(home=str(tmp_path_factory.mktemp("hostile") / "home"), create=True)
    opened.registry.create_line("chat", now())
    yield opened
    opened.close()
