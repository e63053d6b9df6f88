"""A registration that finds a blob which gc takes away a moment later, and one that takes days."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.commands import write_tiny_model
from pairgate.app.gc import collect
from pairgate.app.register import materialise, presence, register
from pairgate.app.workspace import Workspace
from pairgate.domain.garbage import GarbageKind
from pairgate.domain.pair import VersionRef
from pairgate.errors import IntegrityError, Unavailable
from tests.gc.conftest import NOW
from tests.gc.test_collect import names, stored
from tests.release.story import LINE


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for fill, name in enumerate(("target", "draft")):
        write_tiny_model(tmp_path / "models" / name, fill=fill)
    return tmp_path / "models"


def registered(ws: Workspace, models: Path) -> VersionRef:
    made = register(ws, LINE, target=str(models / "target"), draft=str(models / "draft"))
    assert presence(ws, made.pair) == ()
    return VersionRef.parse(str(made.version))


def before_claims(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch, *, n_times: int, pair_files: list[str]
) -> None:
    """gc is faster: a file of the pair goes after it was stored, before it is claimed."""
    begin, left = ws.registry.begin_flight, [n_times]

    def begin_late(kind: str, *args: object, **kwargs: object) -> str:
        if kind == "register" and left[0] > 0:
            left[0] -= 1
            for digest in pair_files:
                ws.blobs.delete_blob(digest)
        return begin(kind, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ws.registry, "begin_flight", begin_late)


def test_what_vanishes_before_the_claim_is_stored_again(
    ws: Workspace, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = registered(ws, models)
    pair = ws.registry.pair(ws.registry.version(ref).pair_digest)
    files = [entry.sha256 for model in pair.models for entry in model.files]
    before_claims(ws, monkeypatch, n_times=2, pair_files=files)
    assert registered(ws, models) == ref
    assert ws.registry.flights("2026-01-01") == ()


def test_a_store_that_keeps_losing_blobs_is_an_error(
    ws: Workspace, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = registered(ws, models)
    pair = ws.registry.pair(ws.registry.version(ref).pair_digest)
    before_claims(ws, monkeypatch, n_times=9, pair_files=[pair.target.files[0].sha256])
    with pytest.raises(IntegrityError, match="vanished while registering"):
        registered(ws, models)
    assert ws.registry.flights("2026-01-01") == ()


def test_a_registration_of_more_than_a_day_is_refused(
    ws: Workspace, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims have expired, so that gc may have been there."""
    begin = ws.registry.begin_flight

    def begin_yesterday(*args: object, **kwargs: object) -> str:
        return begin(*args, **kwargs | {"expires_at": "2026-01-01"})  # type: ignore[arg-type]

    monkeypatch.setattr(ws.registry, "begin_flight", begin_yesterday)
    with pytest.raises(Unavailable, match="longer than a day"):
        registered(ws, models)
    assert len(ws.registry.versions(LINE)) == 3
    monkeypatch.undo()
    assert registered(ws, models).selector == "4"


def test_the_files_of_a_run_stay_while_it_runs(ws: Workspace, models: Path) -> None:
    ref = registered(ws, models)
    pair = ws.registry.pair(ws.registry.version(ref).pair_digest)
    with materialise(ws, pair) as run:
        for _ in range(3):
            done = collect(ws, NOW)
            assert str(ref) not in names(done.deleted, GarbageKind.VERSION)
            assert names(done.deleted, GarbageKind.WORK) == set()
        assert (run.target_dir / "model.safetensors").read_bytes()
    collect(ws, NOW)
    assert str(ref) in names(collect(ws, NOW).deleted, GarbageKind.VERSION)
    assert pair.digest not in stored(ws)
