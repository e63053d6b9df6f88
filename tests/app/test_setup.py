"""`init` makes what is missing and never changes what is set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairgate.app.lines import set_line
from pairgate.app.setup import init
from pairgate.app.workspace import Workspace
from pairgate.errors import InvalidInput, PairgateError
from pairgate.policyfile import preset


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return Workspace.open(home=str(tmp_path / "home"), create=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    bodies = [{"prompt": f"prompt {i}", "max_tokens": 4} for i in range(5)]
    path.write_text(
        "".join(json.dumps({"id": str(i), "body": b}) + "\n" for i, b in enumerate(bodies))
    )
    return path


def test_again_it_changes_nothing(ws: Workspace, log: Path) -> None:
    first = init(ws, "a", slice_source=log, concurrencies=(1, 4))
    again = init(ws, "a", slice_source=log, concurrencies=(1, 4))
    assert (first.created, again.created) == (True, False)
    assert first.head == again.head
    assert len(ws.registry.decisions("a")) == 1


def test_a_slice_can_come_later(ws: Workspace, log: Path) -> None:
    init(ws, "a", policy="strict")
    head = init(ws, "a", slice_source=log).head
    assert head is not None
    assert head.slice_digest is not None
    assert head.policy_digest == preset("strict").digest


def test_it_refuses_to_change_what_is_set(ws: Workspace, log: Path) -> None:
    init(ws, "a", slice_source=log)
    set_line(ws, "a", policy="strict")
    before = ws.registry.head("a")
    assert init(ws, "a", slice_source=log).head == before
    with pytest.raises(InvalidInput, match="another policy"):
        init(ws, "a", policy="default")
    with pytest.raises(InvalidInput, match="another profile"):
        init(ws, "a", concurrencies=(3,))
    assert ws.registry.head("a") == before


@pytest.mark.parametrize("policy", ["missing.toml"])
def test_a_bad_option_leaves_nothing_behind(ws: Workspace, policy: str) -> None:
    with pytest.raises(PairgateError):
        init(ws, "a", policy=policy)
    with pytest.raises(InvalidInput):
        init(ws, "a", concurrencies=(0,))
    with pytest.raises(InvalidInput):
        init(ws, "Not A Name")
    assert ws.registry.lines() == []
