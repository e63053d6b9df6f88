"""gc against registrations, promotions, rollbacks and disabling: real processes, no sleeping.

At every moment a version that is not collected has all its files, and what a line names is never
collected. The moment is one in which no blob can be deleted, so that the check itself is exact.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pairgate.app import audit
from pairgate.app.register import presence
from pairgate.app.workspace import Workspace
from tests.release.story import LINE, new_line

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0  # a busy machine; an idle one is done in a few seconds

COLLECTOR = """
import os, sys
from datetime import timedelta
from pairgate.app.gc import GcOptions, collect
from pairgate.app.workspace import Workspace

ws = Workspace.open(home=sys.argv[1], database_url=sys.argv[2])
options = GcOptions(grace=timedelta(0), retention=timedelta(0))
n_versions = n_blobs = 0
while not os.path.exists(sys.argv[3]):
    done = collect(ws, options)
    n_versions += sum(t.kind == "version" for t in done.deleted)
    n_blobs += sum(t.kind == "blob" for t in done.deleted)
print(n_versions, n_blobs)
"""

WORKER = """
import os, random, sys
from pathlib import Path
from pairgate.app import release
from pairgate.app.register import register
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import VersionRef
from pairgate.errors import Conflict, IntegrityError, Refused

ws = Workspace.open(home=sys.argv[1], database_url=sys.argv[2])
models, seed = Path(sys.argv[4]), int(sys.argv[5])
choose = random.Random(seed)
n = {"registered": 0, "restored": 0, "moved": 0, "refused": 0}
while not os.path.exists(sys.argv[3]):
    draft = choose.choice(["draft-1", "draft-2", "draft-3"])
    before = {v.number: v.collected_at for v in ws.registry.versions("code")}
    made = register(ws, "code", target=str(models / "target"), draft=str(models / draft))
    n["registered"] += 1
    n["restored"] += before.get(made.version.number) is not None
    ref = VersionRef(line="code", selector=str(choose.randint(1, made.version.number)))
    try:
        move = choose.choice(["promote", "promote", "rollback", "disable"])
        if move == "promote":
            moved = release.promote(ws, ref, override="contest", reinstate="contest")
        elif move == "rollback":
            moved = release.rollback(ws, "code", to=ref)
        else:
            moved = release.disable(ws, "code", "contest")
        n["moved"] += not moved.already
    except (Conflict, Refused) as error:
        n["refused"] += 1
    except IntegrityError as error:
        # Between the look at the files and the lock: gone, and nothing was promoted.
        assert "missing" in error.message or "collected" in error.message, error
        n["refused"] += 1
print(*n.values())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    ws: Workspace
    models: Path
    stop: Path

    def start(self, script: str, *arguments: object) -> subprocess.Popen[str]:
        quiet = {"PAIRGATE_DELIVERY": "off", "PAIRGATE_MLFLOW": "off"}
        path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
        where = [str(self.ws.home), self.ws.database_url, str(self.stop)]
        return subprocess.Popen(
            [sys.executable, "-c", script, *where, *map(str, arguments)],
            env={**os.environ, **quiet, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def look(self) -> frozenset[int]:
        """One exact look; returns the versions that are collected at this moment."""
        registry = self.ws.registry
        with registry.sweep():
            versions = registry.versions(LINE)
            for version in (v for v in versions if v.collected_at is None):
                assert presence(self.ws, registry.pair(version.pair_digest)) == (), version
                assert version.pair_digest in self.ws.blobs.list_index(), version
        record = registry.line_record(LINE)
        gone = {v.number for v in record.versions if v.collected_at is not None}
        assert not gone & record.head.protected
        return frozenset(v.number for v in versions if v.collected_at is not None)


@pytest.fixture
def contest(tmp_path: Path, url: str) -> Iterator[Contest]:
    from benchmarks.commands import write_tiny_model

    ws = Workspace.open(home=str(tmp_path / "home"), database_url=url, create=True)
    new_line(ws)
    for fill, name in enumerate(("target", "draft-1", "draft-2", "draft-3")):
        write_tiny_model(tmp_path / "models" / name, fill=fill)
    yield Contest(ws=ws, models=tmp_path / "models", stop=tmp_path / "stop")
    ws.close()


@pytest.mark.slow
def test_whoever_comes_first_wins_and_nobody_is_left_with_half(contest: Contest) -> None:
    processes = [contest.start(COLLECTOR)]
    processes += [contest.start(WORKER, contest.models, seed) for seed in (1, 2)]
    n_restored, gone, until = 0, frozenset[int](), time.monotonic() + LIMIT_S
    while n_restored < 3 and time.monotonic() < until:
        assert all(p.poll() is None for p in processes), [p.communicate() for p in processes]
        found = contest.look()
        n_restored += len(gone - found)
        gone = found
        time.sleep(0.02)  # the processes are what is tested, not this one
    contest.stop.touch()
    said = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        said.append([int(word) for word in out.split()])
    (n_versions, n_blobs), *workers = said
    n_registered, _, n_moved, _ = map(sum, zip(*workers, strict=True))
    assert n_restored >= 3 and min(n_versions, n_blobs, n_registered, n_moved) > 0, said
    contest.look()
    assert audit.verify(contest.ws).problems == ()
    for version in contest.ws.registry.versions(LINE):
        if version.collected_at is None:
            pair = contest.ws.registry.pair(version.pair_digest)
            for entry in (e for model in pair.models for e in model.files):
                contest.ws.blobs.verify(entry.sha256)
