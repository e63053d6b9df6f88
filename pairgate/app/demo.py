"""The demo: the real commands, run one after another on the pair in `pipelines/demo_pair`.

Each step is a command line that the reader could type, with the exit code it must end with; a
step that ends otherwise stops the demo. Nothing here knows a measured number.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pairgate.errors import NotFound, PairgateError

LINE = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of the story. `says` is printed before it."""

    says: str
    args: tuple[str, ...]
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long one step of the story took."""

    command: str
    seconds: float


def demo_folder() -> Path:
    """`pipelines/demo_pair` of the checkout; raises `NotFound` from an installed wheel."""
    import pairgate

    folder = Path(pairgate.__file__).parent.parent / "pipelines" / "demo_pair"
    if not (folder / "models").is_dir():
        raise NotFound(
            "the demo pair is not here: it comes with the checkout, not with the wheel",
            hint="clone the repository and run `make demo` in it",
        )
    return folder


def story(folder: Path) -> Iterator[Step]:
    """v1 passes; the target is fine-tuned and the old draft no longer fits; v3 repairs it."""
    models = folder / "models"

    def register(target: str, draft: str) -> tuple[str, ...]:
        paths = ("--target", str(models / target), "--draft", str(models / draft))
        return ("register", LINE, *paths, "-k", "4")

    yield Step(
        says="A line, with the demo's policy and a held-out slice of traffic.",
        args=(
            "init",
            LINE,
            "--policy",
            str(folder / "policy.toml"),
            "--slice",
            str(folder / "slices" / "base.jsonl"),
        ),
    )
    yield Step(
        says="Version 1: the base target and the draft distilled from it.",
        args=register("target-base", "draft-base"),
    )
    yield Step(says="Does it pay on this traffic?", args=("gate", f"{LINE}@1"))
    yield Step(says="It passed, so it may go to production.", args=("promote", f"{LINE}@1"))
    yield Step(
        says="The target was fine-tuned for new domains; the traffic now has them too.",
        args=("slice", "create", "release", "--from", str(folder / "slices" / "release.jsonl")),
    )
    yield Step(
        says="From now on the line is judged on that slice.",
        args=("line", "set", LINE, "--slice", "release"),
    )
    yield Step(
        says="Version 2: the fine-tuned target with the OLD draft.",
        args=register("target-tuned", "draft-base"),
    )
    yield Step(says="Does the old draft still fit?", args=("gate", f"{LINE}@2"), exit_code=10)
    yield Step(
        says="It failed; nobody can promote it by accident.",
        args=("promote", f"{LINE}@2"),
        exit_code=12,
    )
    yield Step(
        says="Version 3: the same target with a draft distilled again.",
        args=register("target-tuned", "draft-tuned"),
    )
    yield Step(says="And this one?", args=("gate", f"{LINE}@3"))
    yield Step(says="Out it goes; version 1 stays pinned.", args=("promote", f"{LINE}@3"))
    yield Step(
        says="Three in the morning, something is wrong: back, in one command.",
        args=("rollback", LINE, "--reason", "demo: paged at 03:00"),
    )
    yield Step(
        says="A false alarm: version 3 returns, on evidence that is still valid.",
        args=("promote", f"{LINE}@3", "--reinstate", "demo: it was the network"),
    )
    yield Step(
        says="Mirror all of it to MLflow (embedded here), once, at the end.",
        args=("outbox", "deliver"),
    )
    yield Step(says="Where things stand, and how they came about.", args=("status", LINE))
    yield Step(says="", args=("history", LINE))


def run_story(home: Path, folder: Path, say: Callable[[str], None]) -> list[StepTime]:
    """Run every step as a process of its own; raises `PairgateError` at an unexpected exit code."""
    times: list[StepTime] = []
    # Delivered once, at the end: a mirror in the background would take cores from the next replay.
    environ = {**os.environ, "PAIRGATE_HOME": str(home), "PAIRGATE_DELIVERY": "off"}
    for step in story(folder):
        shown = "pairgate " + shlex.join(_short(a, folder) for a in step.args)
        say(f"\n{step.says}\n$ {shown}" if step.says else f"$ {shown}")
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "pairgate", *step.args], env=environ)
        times.append(StepTime(command=shown, seconds=time.monotonic() - started))
        if done.returncode != step.exit_code:
            raise PairgateError(
                f"the demo expected exit code {step.exit_code} and got {done.returncode}",
                hint=f"look at the output above; everything is in {home}",
            )
        if step.exit_code:
            say(f"(exit code {done.returncode}, as it should be)")
    return times


def _short(argument: str, folder: Path) -> str:
    """Paths as one would type them from the checkout."""
    path = Path(argument)
    checkout = folder.parent.parent
    return str(path.relative_to(checkout)) if path.is_relative_to(checkout) else argument
