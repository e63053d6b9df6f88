"""Evidence folders, texts of slices, left-overs of killed processes, and what was done by hand."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pairgate.app import audit, lines, purge, release
from pairgate.app.gc import collect
from pairgate.app.slices import SliceOptions, import_slice, load_slice, purge_slice
from pairgate.app.workspace import Workspace
from pairgate.domain.garbage import GarbageKind
from pairgate.domain.pair import VersionRef
from pairgate.domain.release import Actor, Kind, fold
from pairgate.errors import IntegrityError, Refused
from tests.gc.conftest import NOW
from tests.gc.test_collect import V3, names
from tests.release.story import ALICE, LINE, evidence


def folder_of(ws: Workspace, name: str, *, finished: bool = True) -> Path:
    folder = ws.evaluations_dir / name
    (folder / "traces").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"attempt": 1, "finished": finished}))
    (folder / "traces" / "acceptance.parquet").write_bytes(b"x" * 1000)
    return folder


def age(folder: Path) -> None:
    """As if nobody had touched it for a year."""
    then = time.time() - 365 * 86400
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (then, then), follow_symlinks=False)


def evaluated(ws: Workspace, ref: VersionRef, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Evidence of the version whose folder is `name`."""
    save = ws.registry.save_evaluation
    monkeypatch.setattr(
        ws.registry, "save_evaluation", lambda e, v, at, _: save(e, v, at, name), raising=True
    )
    try:
        return evidence(ws, ws.registry.version(ref))
    finally:
        monkeypatch.undo()


def test_evidence_of_decisions_outlives_its_version(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(ws, V3, "passed", monkeypatch)
    release.promote(ws, V3, actor=ALICE)
    release.promote(ws, replace(V3, selector="2"), override="back", actor=ALICE)
    release.promote(ws, replace(V3, selector="1"), override="back", actor=ALICE)  # v3 is free
    evaluated(ws, V3, "unused", monkeypatch)
    for name in ("passed", "unused"):
        folder_of(ws, name)
    judged = folder_of(ws, "judged")
    shutil.rmtree(judged / "traces")
    (judged / "traces").symlink_to("../passed/traces")
    collect(ws, NOW)
    done = collect(ws, NOW)
    assert "code@3" in names(done.deleted, GarbageKind.VERSION)
    assert names(done.deleted, GarbageKind.EVALUATION) == {"unused", "judged"}
    assert sum(t.n_bytes for t in done.deleted if t.name == "unused") > 1000
    assert sorted(p.name for p in ws.evaluations_dir.iterdir()) == ["passed"]
    short = replace(NOW, audit_retention=timedelta(0))
    collect(ws, short)
    assert names(collect(ws, short).deleted, GarbageKind.EVALUATION) == {"passed"}
    assert len(ws.registry.evaluations(LINE, 3)) == 2  # the verdicts stay


def test_traces_that_a_kept_verdict_links_to_are_kept(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(ws, replace(V3, selector="2"), "judged", monkeypatch)
    folder_of(ws, "source")
    judged = folder_of(ws, "judged")
    shutil.rmtree(judged / "traces")
    (judged / "traces").symlink_to("../source/traces")
    collect(ws, NOW)
    assert names(collect(ws, NOW).deleted, GarbageKind.EVALUATION) == set()
    assert (judged / "traces" / "acceptance.parquet").is_file()


def test_a_run_in_progress_is_left_alone(ws: Workspace) -> None:
    folder = folder_of(ws, "code@3-0123456789ab-1", finished=False)
    age(folder)
    lock = ws.evaluations_dir / "code@3-0123456789ab.lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        collect(ws, NOW)
        assert names(collect(ws, NOW).deleted, GarbageKind.EVALUATION) == set()
    assert folder.is_dir()
    collect(ws, NOW)
    assert names(collect(ws, NOW).deleted, GarbageKind.EVALUATION) == {folder.name}
    assert not folder.exists()


def test_an_unfinished_run_can_be_resumed_within_the_retention(ws: Workspace) -> None:
    folder = folder_of(ws, "code@3-0123456789ab-1", finished=False)
    month = replace(NOW, retention=timedelta(days=30))
    assert collect(ws, month).condemned == ()
    age(folder)
    assert names(collect(ws, month).condemned, GarbageKind.EVALUATION) == {folder.name}


def test_what_a_killed_gc_had_renamed_goes(ws: Workspace) -> None:
    folder_of(ws, ".gc-old")
    done = collect(ws, NOW)
    assert names(done.deleted, GarbageKind.WORK) == {"evaluations/.gc-old"}
    assert list(ws.evaluations_dir.iterdir()) == []


def test_left_overs_of_killed_processes_go(ws: Workspace) -> None:
    links = ws.work_dir / "pairs" / "x-1"
    (links / "target").mkdir(parents=True)
    (links / "target" / "model.safetensors").symlink_to(ws.home)
    half = ws.slices_dir / ".x.jsonl.abc.tmp"
    half.parent.mkdir(exist_ok=True)
    half.write_text("user data")
    staged = ws.home / "store" / "staging" / "0123"
    staged.parent.mkdir(exist_ok=True)
    staged.write_bytes(b"half a blob")
    assert names(collect(ws, NOW).deleted, GarbageKind.WORK) == {"store/staging/0123"}
    for path in (links, half):
        age(path)
    for folder in (links / "target", links):
        folder.chmod(0o555)
    held = os.open(links, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    assert names(collect(ws, NOW).deleted, GarbageKind.WORK) == {"slices/.x.jsonl.abc.tmp"}
    os.close(held)
    assert names(collect(ws, NOW).deleted, GarbageKind.WORK) == {"work/pairs/x-1"}
    assert not links.exists() and not half.exists() and ws.home.is_dir()


def a_log(tmp_path: Path, word: str) -> Path:
    log = tmp_path / f"{word}.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"{word} {n}"}], "max_tokens": 8}
        for n in range(5)
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return log


def test_texts_of_slices_that_no_line_uses_are_purged(ws: Workspace, tmp_path: Path) -> None:
    unused = import_slice(ws, "unused", [a_log(tmp_path, "unused")]).row
    once = import_slice(ws, "once", [a_log(tmp_path, "once")]).row
    now = import_slice(ws, "now", [a_log(tmp_path, "now")]).row
    lines.set_line(ws, LINE, slice_name="once", actor=ALICE)
    lines.set_line(ws, LINE, slice_name="now", actor=ALICE)
    for path in ws.slices_dir.iterdir():
        os.utime(path, (0, 0))
    orphan = ws.slices_dir / f"{'0' * 64}.jsonl"
    orphan.write_text("{}\n")
    month = replace(NOW, retention=timedelta(days=30))
    assert names(collect(ws, month).condemned, GarbageKind.SLICE) == set()
    collect(ws, NOW)
    done = collect(ws, NOW)
    assert names(done.deleted, GarbageKind.SLICE) == {unused.digest, f"sha256:{'0' * 64}"}
    assert not orphan.exists()
    with pytest.raises(Refused, match="texts of slice unused were purged"):
        load_slice(ws, "unused")
    short = replace(NOW, audit_retention=timedelta(0))
    collect(ws, short)
    assert names(collect(ws, short).deleted, GarbageKind.SLICE) == {once.digest}
    assert len(load_slice(ws, now.digest).requests) == 5
    last = ws.registry.decisions(LINE)[-1]
    assert (last.kind, last.slice_digest) == (Kind.PURGE, now.digest)
    assert last.reason.startswith(f"texts of slice once ({once.digest}) purged: gc")


@pytest.mark.parametrize("by", ["line set", "import"])
def test_a_slice_that_is_needed_again_at_the_last_moment_keeps_its_texts(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    log = a_log(tmp_path, "unused")
    unused = import_slice(ws, "unused", [log]).row
    for path in ws.slices_dir.iterdir():
        os.utime(path, (0, 0))

    def meanwhile(_: Workspace) -> Actor:  # gc asks who it is right before it purges
        if by == "import":
            import_slice(ws, "unused", [log])
        else:
            lines.set_line(ws, LINE, slice_name="unused", actor=ALICE)
        return ALICE

    monkeypatch.setattr(purge, "current_actor", meanwhile)
    collect(ws, NOW)
    done = collect(ws, NOW)
    assert names(done.spared, GarbageKind.SLICE) == {unused.digest}
    assert len(load_slice(ws, "unused").requests) == 5
    assert Kind.PURGE not in {d.kind for d in ws.registry.decisions(LINE)}


def test_a_purge_is_a_decision_of_every_line_that_used_the_slice(
    ws: Workspace, tmp_path: Path
) -> None:
    log = a_log(tmp_path, "chat")
    row = import_slice(ws, "chat", [log]).row
    lines.create(ws, "other")
    lines.create(ws, "never")
    lines.set_line(ws, "other", slice_name="chat", actor=ALICE)
    lines.set_line(ws, LINE, slice_name="chat", actor=ALICE)
    lines.set_line(ws, LINE, slice_name="held-out", actor=ALICE)  # used it once
    before = ws.registry.head(LINE)
    purge_slice(ws, "chat", reason="a customer asked")
    said = f"texts of slice chat ({row.digest}) purged: a customer asked"
    for line in (LINE, "other"):
        decisions = ws.registry.decisions(line)
        assert (decisions[-1].kind, decisions[-1].reason) == (Kind.PURGE, said)
        assert fold(line, decisions) == ws.registry.head(line)
    assert ws.registry.decisions("never") == []
    after = ws.registry.head(LINE)
    same = ("production", "previous", "slice_digest", "policy_digest", "pinned")
    assert [getattr(before, n) for n in same] == [getattr(after, n) for n in same]
    assert audit.verify(ws).problems == ()
    purge_slice(ws, "chat")  # nothing is left to delete, nothing to say again
    assert ws.registry.head(LINE) == after
    import_slice(ws, "chat", [log], SliceOptions())  # stored again, purged again
    purge_slice(ws, "chat")
    assert ws.registry.head(LINE).revision == after.revision + 1


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM pin", "the stored head is not what its decisions say"),
        ("UPDATE line SET previous_version = NULL", "the stored head is not what"),
        ("UPDATE pair SET document = '{}'", "does not have the fields of Pair"),
        ("UPDATE decision SET reason = 'x' WHERE sequence = 2", "decision 2 was altered"),
        ("UPDATE version SET collected_at = 'x' WHERE number = 1", "protected, but was collected"),
    ],
)
def test_a_registry_that_was_changed_by_hand_stops_everything(
    ws: Workspace, statement: str, says: str
) -> None:
    """Without its triggers anything can be done to the rows; then gc does nothing."""
    release.pin(ws, V3, reason="audit", actor=ALICE)
    ws.registry.close()
    raw = sqlite3.connect(ws.home / "pairgate.db", isolation_level=None)
    found = raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in found:
        raw.execute(f"DROP TRIGGER {name}")
    raw.execute(statement)
    raw.close()
    for options in (NOW, NOW, replace(NOW, dry_run=True)):
        with pytest.raises(IntegrityError, match=says) as caught:
            collect(ws, options)
        assert "nothing is deleted" in caught.value.message
