"""kill -9 at every step of every operation: the state is the old one or the new one, and running
the operation again ends where an undisturbed run ends.

The steps are not chosen: a run that is left alone counts them, and each of them is then died at.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from pairgate.app.audit import verify
from pairgate.app.workspace import Workspace
from tests.faults.conftest import Children
from tests.faults.operations import OPERATIONS
from tests.faults.state import State, problems, read_state
from tests.store.databases import database

DATABASE_STEP = re.compile(r"[A-Z]|commit")
CASES = [
    pytest.param(
        backend,
        name,
        marks=[
            *([pytest.mark.postgres] if backend == "postgres" else []),
            *([pytest.mark.slow] if operation.slow else []),
        ],
        id=f"{name}-{backend}",
    )
    for backend in ("sqlite", "postgres")
    for name, operation in OPERATIONS.items()
    if backend == "sqlite" or operation.postgres
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A home, and a database that is not in it."""

    home: Path
    url: str | None

    @contextmanager
    def opened(self) -> Iterator[Workspace]:
        ws = Workspace.open(home=str(self.home), database_url=self.url, create=True)
        try:
            yield ws
        finally:
            ws.close()

    def look(self) -> State:
        with self.opened() as ws:
            return read_state(ws)

    def problems(self) -> list[str]:
        with self.opened() as ws:
            return problems(ws)


@pytest.fixture
def before(request: pytest.FixtureRequest, tmp_path: Path, backend: str) -> Iterator[Place]:
    """Where the operation begins."""
    template = request.getfixturevalue("postgres_template") if backend == "postgres" else None
    with database(template) if template else nullcontext(None) as url:
        yield Place(home=tmp_path / "before", url=url)


@contextmanager
def copied(place: Place, home: Path) -> Iterator[Place]:
    """The same state once more, gone at the end."""
    shutil.copytree(place.home, home, symlinks=True)
    with database(place.url) if place.url else nullcontext(None) as url:
        yield Place(home=home, url=url)
    shutil.rmtree(home)


@pytest.mark.parametrize(("backend", "operation"), CASES)
def test_killed_at_every_step(
    operation: str, backend: str, before: Place, tmp_path: Path, children: Children
) -> None:
    with before.opened() as ws:
        OPERATIONS[operation].prepare(ws)
    old = before.look()
    with copied(before, tmp_path / "clean") as clean:
        done = children.run(operation, clean.home, clean.url)
        assert not done.error, done.error
        new = clean.look()
        with clean.opened() as ws:
            assert verify(ws).problems == ()
    assert done.steps and new != old, "nothing happened"
    found: list[str] = []
    for i, step in enumerate(done.steps):
        if backend == "postgres" and not DATABASE_STEP.match(step):
            continue  # a file's step is the same there
        with copied(before, tmp_path / "home") as killed:
            wrong = _die_and_repeat(operation, killed, i, old, new, children)
        found += [f"{backend} step {i} ({step}): {problem}" for problem in wrong]
    assert not found, "\n".join(found)


def _die_and_repeat(
    operation: str, place: Place, step: int, old: State, new: State, children: Children
) -> list[str]:
    """What is wrong after the kill, and after running the operation again."""
    died = children.run(operation, place.home, place.url, kill_at=step)
    if died.signal != signal.SIGKILL:
        return [f"did not die: {died}"]
    left = place.look()
    found = place.problems()
    if left.visible not in (old.visible, new.visible):
        found.append(f"neither old nor new: {left.without(old)} and {old.without(left)}")
    again = children.run(operation, place.home, place.url)
    if again.error:
        return [*found, f"cannot be run again: {again.error}"]
    found += [f"run again: {problem}" for problem in place.problems()]
    end = place.look()
    if end != new:
        found.append(f"run again, another end: {end.without(new)}, not {new.without(end)}")
    return found
