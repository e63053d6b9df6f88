"""The outbox: in order per line, at least once, idempotent, and never in the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pairgate.app import outbox, release, targets
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import VersionRef
from tests.release.story import ALICE, LINE, add, evidence, put_in_production


@pytest.fixture
def pointers(ws: Workspace, tmp_path: Path) -> Path:
    ws.environ[targets.POINTER_SETTING] = str(tmp_path / "pointers")
    return tmp_path / "pointers" / f"{LINE}.json"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_pointer_follows_production(ws: Workspace, pointers: Path) -> None:
    first = put_in_production(ws, b"base", b"draft-1")
    second = put_in_production(ws, b"base", b"draft-2")
    assert [m.kind for m in ws.registry.pending()] == ["evaluation", "head"] * 2
    assert outbox.deliver(ws).n_delivered == 4
    found = read(pointers)
    assert found["production"]["pair_digest"] == second.pair_digest
    assert found["previous"]["pair_digest"] == first.pair_digest
    assert found["hash"] == ws.registry.head(LINE).hash
    release.rollback(ws, LINE, actor=ALICE)
    outbox.deliver(ws)
    assert read(pointers)["production"]["version"] == 1
    assert read(pointers)["previous"] is None
    assert outbox.deliver(ws).n_delivered == 0
    assert [p.name for p in pointers.parent.iterdir()] == [f"{LINE}.json"]


def test_a_message_that_comes_again_does_not_turn_time_back(ws: Workspace, pointers: Path) -> None:
    put_in_production(ws, b"base", b"draft-1")
    old = ws.registry.pending()[-1]
    put_in_production(ws, b"base", b"draft-2")
    outbox.deliver(ws)
    targets.write_pointer(ws, targets.parcel(old, "pointer"))
    assert read(pointers)["production"]["version"] == 2


def test_the_command_gets_each_message_in_order(ws: Workspace, tmp_path: Path) -> None:
    script = tmp_path / "hook.py"
    script.write_text(
        "import sys, pathlib\n"
        f"log = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "log.open('a').write(sys.stdin.read() + '\\n')\n"
    )
    ws.environ[targets.COMMAND_SETTING] = f"{sys.executable} {script}"
    put_in_production(ws, b"base", b"draft-1")
    release.disable(ws, LINE, "slow", actor=ALICE)
    outbox.deliver(ws)
    said = [json.loads(row) for row in (tmp_path / "log").read_text().splitlines()]
    assert [(m["message"], m.get("kind")) for m in said] == [
        ("evaluation", None),
        ("head", "promote"),
        ("head", "disable"),
    ]
    assert said[2]["hash"] == ws.registry.head(LINE).hash


def test_a_target_that_fails_keeps_its_place_and_holds_up_only_itself(
    ws: Workspace, pointers: Path
) -> None:
    ws.environ[targets.COMMAND_SETTING] = f"{sys.executable} -c 'import sys; sys.exit(3)'"
    put_in_production(ws, b"base", b"draft-1")
    put_in_production(ws, b"base", b"draft-2")
    done = outbox.deliver(ws)
    assert done.n_delivered == 0
    assert [(f.line, f.target, f.error) for f in done.failures] == [
        (LINE, "command", "exit code 3:")
    ]
    assert read(pointers)["production"]["version"] == 2
    pending = ws.registry.pending()
    tries = [m.delivery("command").n_tries for m in pending]
    assert tries == [1, 0, 0, 0]  # the later ones wait their turn
    assert all(m.delivery("pointer").state == "done" for m in pending)
    ws.environ[targets.COMMAND_SETTING] = f"{sys.executable} -c pass"
    assert outbox.deliver(ws).n_delivered == 0  # too early
    assert outbox.retry(ws).n_delivered == 4


def test_promote_delivers_by_itself_when_it_is_waited_for(ws: Workspace, pointers: Path) -> None:
    """A real child process, started after the commit."""
    ws.environ[outbox.DELIVERY_SETTING] = "on"
    version = add(ws, b"base", b"draft")
    evidence(ws, version)
    ref = VersionRef.parse(str(version))
    release.promote(ws, ref, actor=ALICE, wait_delivery_s=60.0)
    assert read(pointers)["production"]["version"] == 1
    assert ws.registry.pending() == []


def test_a_delivery_that_cannot_start_does_not_matter(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.environ[outbox.DELIVERY_SETTING] = "on"
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    put_in_production(ws, b"base", b"draft-1")
    assert len(ws.registry.pending()) == 2
