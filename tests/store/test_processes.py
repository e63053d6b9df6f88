"""Several processes at once, and one that is killed: nothing is lost, nothing is half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.contest import Contest, run
from pairgate.domain.release import fold
from pairgate.store.sql import SqlRegistry
from tests.release.story import make_pair

ROOT = Path(__file__).parents[2]
AT = "2026-12-01T12:00:00.000000Z"

COMMON = """
import sys
from pairgate import promote as rules
from pairgate.domain.release import Actor
from pairgate.domain.situation import Ask, Situation
from pairgate.errors import Conflict
from pairgate.store.sql import SqlRegistry

registry = SqlRegistry.open(sys.argv[1])
me, n_wanted = int(sys.argv[2]), int(sys.argv[3])
ask = Ask(by=Actor(name=str(me), source="os-user"), at="2026-12-01T12:00:00.000000Z")

def promotion(transaction, number, expected):
    situation = Situation(
        head=transaction.head,
        decisions=tuple(transaction.decisions()),
        versions=tuple(transaction.versions()),
    )
    version = situation.version(number)
    made = rules.promotion(
        situation, version, ask, override="contest", reinstate="contest", expect_current=expected
    )
    if made is None:
        raise Conflict("somebody else promoted the same version")
    return transaction.append(made)
"""

CONTESTANT = (
    COMMON
    + """
n_done = n_conflicts = 0
while n_done < n_wanted:
    seen = registry.head("code").production
    wanted = (seen or 0) % 5 + 1
    try:
        registry.decide("code", lambda t: promotion(t, wanted, str(seen or "none")))
        n_done += 1
    except Conflict:
        n_conflicts += 1
print(n_done, n_conflicts)
"""
)

VICTIM = (
    COMMON
    + """
with registry.lock("code") as transaction:
    promotion(transaction, 2, "1")
    print("inside", flush=True)
    sys.stdin.read()
"""
)

FIRST_USER = """
import sys
from pairgate.store.sql import SqlRegistry
SqlRegistry.open(sys.argv[1]).create_line(f"line-{sys.argv[2]}", "2026-12-01T12:00:00Z")
"""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(code, url, *numbers) runs Python code as a process; none outlives the test."""
    running: list[subprocess.Popen[str]] = []
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    def run(code: str, url: str, *arguments: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, url, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def with_versions(registry: SqlRegistry, n: int) -> None:
    registry.create_line("code", AT)
    for i in range(n):
        pair = make_pair(b"target", b"draft-%d" % i)
        registry.add_pair(pair, "{}", AT)
        method = pair.decoding.method
        registry.add_version("code", pair.digest, pair.target_digest, method, AT, "alice")


def test_a_contest_for_one_line(registry: SqlRegistry, url: str, start: Start) -> None:
    """Every promotion compares and swaps: all of them commit, and each replaced the one that
    it expected."""
    with_versions(registry, 5)
    contestants = [start(CONTESTANT, url, me, 25) for me in range(4)]
    for contestant in contestants:
        said, errors = contestant.communicate(timeout=120)
        assert contestant.returncode == 0, errors
        assert said.split()[0] == "25"
    decisions = registry.decisions("code")
    assert len(decisions) == 100
    assert fold("code", decisions) == registry.head("code")
    for before, after in pairwise(decisions):
        assert after.previous == before.production
        assert after.production == before.production % 5 + 1  # type: ignore[operator]
    states = [v.state for v in registry.versions("code")]
    assert states.count("production") == 1


@pytest.mark.parametrize("n_lines", [1, 3])
def test_a_contest_of_promotions_and_rollbacks(url: str, tmp_path: Path, n_lines: int) -> None:
    """Through the use cases, each process with a home of its own: every move commits, whoever was
    overtaken hears of a conflict. `benchmarks/contest.py` is the long one."""
    contest = Contest(processes=4, moves=10, lines=n_lines, folder=tmp_path, url=url)
    result = run(contest)
    assert result.problems == ()
    assert result.n_committed == 40
    assert result.n_rollbacks > 0
    if n_lines == 1:
        assert result.n_conflicts > 0


def test_a_killed_transaction_leaves_the_old_head(
    registry: SqlRegistry, url: str, start: Start
) -> None:
    with_versions(registry, 2)
    first = start(CONTESTANT, url, 0, 1)
    first.communicate(timeout=60)
    before = registry.head("code")
    victim = start(VICTIM, url, 1, 0)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "inside\n"
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate(timeout=60)
    assert registry.head("code") == before
    after = start(CONTESTANT, url, 2, 1)
    _, errors = after.communicate(timeout=60)
    assert after.returncode == 0, errors
    head = registry.head("code")
    assert head.revision == before.revision + 1
    assert fold("code", registry.decisions("code")) == head


def test_two_first_users_make_one_schema(tmp_path: Path, start: Start) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    users = [start(FIRST_USER, url, n) for n in range(3)]
    for user in users:
        _, errors = user.communicate(timeout=60)
        assert user.returncode == 0, errors
    registry = SqlRegistry.open(url)
    assert [h.line for h in registry.lines()] == ["line-0", "line-1", "line-2"]
    assert registry.schema_problems() == []
    registry.close()
