"""Several processes move the same lines at once: does the history keep, and how long does one wait?

    python benchmarks/contest.py [--processes 8] [--moves 100] [--lines 1 10] [--url URL …]

Each process makes `--moves` promotions and rollbacks, in turn, through the use cases of
`pairgate.app.release` (files checked, evidence judged, message for the outbox written), with
`expect_current`: whoever was overtaken is told so by a Conflict (exit code 13), reads again and
goes on. Every process has a home of its own, as two machines would; the store's files are the same.
Checked after each contest, before anything is reported: every move committed, each decision
replaced what it expected, the stored head is what the log says, one production version per line.
Without --url: SQLite in a temporary folder. Exit code 1: a check failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path

from pairgate.app import release
from pairgate.app.workspace import Workspace, now
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.pair import (
    Architecture,
    DecodingConfig,
    FileEntry,
    Method,
    ModelRef,
    Pair,
    VersionRef,
)
from pairgate.domain.release import Actor, Kind, fold
from pairgate.errors import Conflict, Refused

N_VERSIONS = 4
MOVES = (Kind.PROMOTE, Kind.ROLLBACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """`moves` per process. `url` None is SQLite in `folder`."""

    processes: int
    moves: int
    lines: int
    folder: Path
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """One process: seconds of each committed move, how often it was told of a conflict, and how
    often that it was so already."""

    seconds: tuple[float, ...]
    n_conflicts: int
    n_already: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`problems` are broken promises; there must be none."""

    database: str
    processes: int
    lines: int
    n_wanted: int
    n_committed: int
    n_conflicts: int
    n_already: int
    n_rollbacks: int
    n_breaks: int
    p50_ms: float
    p99_ms: float
    wall_s: float
    problems: tuple[str, ...]


def run(contest: Contest) -> Result:
    """Prepare the lines, let the processes loose, check what is left."""
    os.environ |= {"PAIRGATE_DELIVERY": "off", "PAIRGATE_MLFLOW": "off"}
    shared = contest.folder / "home"
    ws = Workspace.open(home=str(shared), database_url=contest.url, create=True)
    for line in _lines(contest):
        _prepare(ws, line)
    url = ws.database_url
    ws.close()
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(contest.processes)
    answers = context.Queue()
    began = time.monotonic()
    workers = [
        context.Process(target=_compete, args=(contest, url, me, together, answers))
        for me in range(contest.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    died = [worker.exitcode for worker in workers if worker.exitcode]
    if died:
        raise SystemExit(f"{len(died)} of {contest.processes} processes ended with an error")
    worked = [answers.get(timeout=60) for _ in workers]
    wall_s = time.monotonic() - began
    opened = Workspace.open(home=str(shared), database_url=url)
    result = _judge(opened, contest, worked, wall_s)
    opened.close()
    return result


def _lines(contest: Contest) -> list[str]:
    return [f"line-{n}" for n in range(contest.lines)]


def _prepare(ws: Workspace, line: str) -> None:
    """A line with versions whose files are in the store, the first of them in production."""
    ws.registry.create_line(line, now())
    for number in range(N_VERSIONS):
        contents = (b"target", b"draft-%d" % number)
        pair = _pair(*contents)
        for content in (*contents, pair.config_blob()):
            ws.blobs.add_bytes(content)
        ws.blobs.add_manifest(pair.manifest())
        ws.registry.add_pair(pair, "{}", now())
        method = pair.decoding.method
        ws.registry.add_version(line, pair.digest, pair.target_digest, method, now(), "contest")
    by = Actor(name="contest", source="os-user")
    release.promote(ws, VersionRef(line=line, selector="1"), override="contest", actor=by)


def _pair(target: bytes, draft: bytes) -> Pair:
    def model(role: str, content: bytes) -> ModelRef:
        entry = FileEntry(
            path="model.safetensors", size=len(content), sha256=sha256_digest(content)
        )
        architecture = Architecture(
            model_type="llama",
            class_name="LlamaForCausalLM",
            n_parameters=1,
            vocab_size=4,
            max_position_embeddings=64,
            hidden_size=2,
            n_layers=1,
            n_heads=1,
            n_kv_heads=1,
            head_dim=2,
            dtype="float32",
        )
        return ModelRef(role=role, files=(entry,), architecture=architecture)

    decoding = DecodingConfig(method=Method.DRAFT_MODEL, num_speculative_tokens=4)
    return Pair(target=model("target", target), draft=model("draft", draft), decoding=decoding)


def _compete(
    contest: Contest, url: str, me: int, together: Barrier, answers: multiprocessing.Queue[Worked]
) -> None:
    """One process with a home of its own; the files of the store are the same."""
    home = contest.folder / f"home-{me}"
    home.mkdir()
    (home / "store").symlink_to(contest.folder / "home" / "store")
    ws = Workspace.open(home=str(home), database_url=url)
    by = Actor(name=f"process-{me}", source="os-user")
    lines, n_conflicts, n_already = _lines(contest), 0, 0
    seconds: list[float] = []
    together.wait(timeout=600)
    while len(seconds) < contest.moves:
        line = lines[(me + len(seconds)) % len(lines)]
        head = ws.registry.head(line)
        expected = str(head.production)
        began = time.monotonic()
        try:
            if len(seconds) % 2 and head.previous is not None:
                moved = release.rollback(
                    ws, line, expect_current=expected, reason="contest", actor=by
                )
            else:
                wanted = (head.production or 0) % N_VERSIONS + 1
                moved = release.promote(
                    ws,
                    VersionRef(line=line, selector=str(wanted)),
                    expect_current=expected,
                    override="contest",
                    reinstate="contest",
                    actor=by,
                )
        except Conflict:
            n_conflicts += 1
        except Refused as error:
            # Nothing to go back to: somebody else rolled back between our look and our move.
            if "previous" not in error.message:
                raise
            n_conflicts += 1
        else:
            if moved.already:  # somebody else made the same promotion: nothing was written
                n_already += 1
            else:
                seconds.append(time.monotonic() - began)
    ws.close()
    answers.put(Worked(seconds=tuple(seconds), n_conflicts=n_conflicts, n_already=n_already))


def _judge(ws: Workspace, contest: Contest, worked: Sequence[Worked], wall_s: float) -> Result:
    problems: list[str] = []
    n_committed = n_breaks = n_rollbacks = 0
    for line in _lines(contest):
        decisions = ws.registry.decisions(line)
        moves = decisions[1:]  # the first was ours
        n_committed += len(moves)
        n_rollbacks += sum(d.kind is Kind.ROLLBACK for d in moves)
        for before, after in pairwise(decisions):
            wanted = before.production if after.kind is Kind.PROMOTE else None
            n_breaks += after.previous != wanted
            if after.kind is Kind.ROLLBACK and after.production != before.previous:
                n_breaks += 1
        if fold(line, decisions) != ws.registry.head(line):
            problems.append(f"{line}: the stored head is not what the log says")
        states = [v.state for v in ws.registry.versions(line)]
        if states.count("production") != 1:
            problems.append(f"{line}: {states.count('production')} production versions")
    n_wanted = contest.processes * contest.moves
    if n_committed != n_wanted:
        problems.append(f"{n_committed} moves committed, {n_wanted} were reported as done")
    if n_breaks:
        problems.append(f"{n_breaks} decisions did not replace what they expected")
    times = sorted(t * 1e3 for w in worked for t in w.seconds)
    return Result(
        database=ws.database_url.partition(":")[0].partition("+")[0],
        processes=contest.processes,
        lines=contest.lines,
        n_wanted=n_wanted,
        n_committed=n_committed,
        n_conflicts=sum(w.n_conflicts for w in worked),
        n_already=sum(w.n_already for w in worked),
        n_rollbacks=n_rollbacks,
        n_breaks=n_breaks,
        p50_ms=statistics.median(times),
        p99_ms=times[int(0.99 * (len(times) - 1))],
        wall_s=wall_s,
        problems=tuple(problems),
    )


def machine() -> str:
    """CPU, cores and interpreter."""
    cpu = "unknown CPU"
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            cpu = row.partition(":")[2].strip()
            break
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--lines", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--url", nargs="*", default=[], help="PostgreSQL databases, one a contest")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    urls: list[str | None] = [*options.url] if options.url else [None] * len(options.lines)
    if len(urls) != len(options.lines):
        parser.error("name one empty database for each number of --lines")
    print(machine())
    print(f"{'database':12} lines  committed  rollbacks  conflicts  breaks  p50 ms  p99 ms  wall s")
    results = []
    for n_lines, url in zip(options.lines, urls, strict=True):
        folder = Path(tempfile.mkdtemp(prefix="pairgate-contest-"))
        result = run(
            Contest(
                processes=options.processes,
                moves=options.moves,
                lines=n_lines,
                folder=folder,
                url=url,
            )
        )
        shutil.rmtree(folder)
        results.append(result)
        committed = f"{result.n_committed}/{result.n_wanted}"
        print(
            f"{result.database:12} {result.lines:5}  {committed:>9}  {result.n_rollbacks:9}  "
            f"{result.n_conflicts:9}  {result.n_breaks:6}  {result.p50_ms:6.1f}  "
            f"{result.p99_ms:6.1f}  {result.wall_s:6.1f}",
            flush=True,
        )
        for problem in result.problems:
            print(f"  {problem}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n")
    return 1 if any(r.problems for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
