"""What is killed at every step: a table, one row per operation.

`prepare` makes the state before it, `run` is done in a child and must be possible to repeat.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from benchmarks.commands import write_tiny_model
from pairgate.app import approvals, lines, release
from pairgate.app.evaluate import evaluate
from pairgate.app.gc import GcOptions, collect
from pairgate.app.register import register
from pairgate.app.setup import init
from pairgate.app.slices import import_slice
from pairgate.app.transfer import pull
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import VersionRef
from pairgate.domain.profile import ServingProfile
from pairgate.engines.scripted import Script, ScriptedEngine
from pairgate.policyfile import preset
from tests.release.story import ALICE, LINE, add, evidence, new_line, put_in_production

Act = Callable[[Workspace], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`postgres`: its transactions are worth killing there too. `slow`: it has many steps."""

    prepare: Act
    run: Act
    postgres: bool = False
    slow: bool = False


SCRIPTED = ServingProfile(
    name="scripted",
    engine="scripted",
    engine_version="1.0.0",
    hardware_class="scripted",
    concurrencies=(2,),
)


def _models(ws: Workspace) -> Path:
    """Beside the home, so that it is neither copied nor watched."""
    return ws.home.parent / "models"


def _nothing(ws: Workspace) -> None:
    """An empty home."""


def _with_log(ws: Workspace) -> None:
    new_line(ws)
    _log(ws)


def _two_versions(ws: Workspace) -> None:
    """v1 in production, v2 with a PASS."""
    new_line(ws)
    put_in_production(ws, b"base", b"draft-1")
    evidence(ws, add(ws, b"tuned", b"draft-1"))


def _released(ws: Workspace) -> None:
    """v2 in production, v1 before it."""
    new_line(ws)
    put_in_production(ws, b"base", b"draft-1")
    put_in_production(ws, b"tuned", b"draft-2")


def _disabled(ws: Workspace) -> None:
    _released(ws)
    release.disable(ws, LINE, "slow", actor=ALICE)


def _with_traffic(ws: Workspace) -> None:
    """A line whose slice has texts, and whose engine is scripted."""
    lines.create(ws, LINE)
    import_slice(ws, "held-out", [_log(ws)])
    policy = preset("default")
    quick = replace(policy.replay, min_blocks=1, max_blocks=1, requests_per_block=2)
    profile = lines.save_profile(ws, LINE, SCRIPTED)
    lines.set_line(
        ws,
        LINE,
        policy=replace(policy, replay=replace(quick, early_stopping=False)),
        slice_name="held-out",
        profile=profile,
        actor=ALICE,
    )
    add(ws, b"base", b"draft-1")


def _log(ws: Workspace) -> Path:
    path = ws.home.parent / "log.jsonl"
    if path.exists():
        return path
    rows = [
        {"id": f"r{n}", "body": {"prompt": f"request {n} of the day", "max_tokens": 8}}
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _register(ws: Workspace) -> None:
    models = _models(ws)
    register(ws, LINE, target=str(models / "target"), draft=str(models / "draft"), actor=ALICE)


def _with_models(ws: Workspace) -> None:
    new_line(ws)
    write_tiny_model(_models(ws) / "target", fill=0.5)
    write_tiny_model(_models(ws) / "draft", fill=1.0)


def _init(ws: Workspace) -> None:
    init(ws, "chat", slice_source=_log(ws))


def _evaluate(ws: Workspace) -> None:
    evaluate(ws, _at(1), engine_factory=lambda _: ScriptedEngine(Script(hardware_class="scripted")))


def _at(number: int) -> VersionRef:
    return VersionRef(line=LINE, selector=str(number))


def _with_garbage(ws: Workspace) -> None:
    """Two versions that nobody uses, and blobs of no version, condemned by a first run."""
    _released(ws)
    add(ws, b"base", b"draft-3")
    add(ws, b"another", None)
    ws.blobs.add_bytes(b"left by nobody")
    _gc(ws)


def _gc(ws: Workspace) -> None:
    now = timedelta(0)
    collect(ws, GcOptions(grace=now, retention=now, audit_retention=timedelta(days=1)))


OPERATIONS = {
    "init": Operation(prepare=_nothing, run=_init),
    "register": Operation(prepare=_with_models, run=_register, postgres=True, slow=True),
    "evaluate": Operation(prepare=_with_traffic, run=_evaluate, slow=True),
    "promote": Operation(
        prepare=_two_versions,
        run=lambda ws: void(release.promote(ws, _at(2), actor=ALICE)),
        postgres=True,
    ),
    "rollback": Operation(
        prepare=_released,
        run=lambda ws: void(release.rollback(ws, LINE, request_id="incident-1", actor=ALICE)),
        postgres=True,
    ),
    "disable": Operation(
        prepare=_released, run=lambda ws: void(release.disable(ws, LINE, "slow", actor=ALICE))
    ),
    "enable": Operation(
        prepare=_disabled, run=lambda ws: void(release.enable(ws, LINE, actor=ALICE))
    ),
    "pin": Operation(prepare=_released, run=lambda ws: void(release.pin(ws, _at(1), actor=ALICE))),
    "approve": Operation(
        prepare=_two_versions,
        run=lambda ws: void(approvals.approve(ws, _at(2), "safety", actor=ALICE)),
    ),
    "slice": Operation(
        prepare=_with_log, run=lambda ws: void(import_slice(ws, "another", [_log(ws)]))
    ),
    "pull": Operation(prepare=_released, run=lambda ws: void(pull(ws, _at(1), ws.home / "served"))),
    "gc": Operation(prepare=_with_garbage, run=_gc, slow=True),
}


def void(_: object) -> None:
    """An operation is judged by what it leaves, not by what it returns."""
