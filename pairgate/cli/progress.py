"""Live progress: one bar per pass on a terminal, one plain line per finished pass when piped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import is_terminal

if TYPE_CHECKING:
    from pairgate.ports import Progress

# A piped log should show life, not every request.
_PLAIN_EVERY_S = 30.0


@contextmanager
def progress_display() -> Iterator[Progress]:
    """A `Progress` callback for the duration of a replay."""
    if is_terminal():
        with _bars() as callback:
            yield callback
    else:
        yield _plain_lines()


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<23}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, object] = {}

        def update(stage: str, done: int, total: int, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total, note="")
            bars.update(tasks[stage], completed=done, total=total, note=note)  # type: ignore[arg-type]

        yield update


def _plain_lines() -> Progress:
    started: dict[str, float] = {}
    spoken: dict[str, float] = {}

    def update(stage: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        started.setdefault(stage, now)
        spoken.setdefault(stage, now)
        if done >= total or now - spoken[stage] >= _PLAIN_EVERY_S:
            spoken[stage] = now
            took = f"{now - started[stage]:.0f} s"
            click.echo(f"  {stage}: {done}/{total} ({took}) {note}".rstrip(), err=True)

    return update


@contextmanager
def byte_display() -> Iterator[Progress | None]:
    """A bar of bytes on a terminal; nothing when piped."""
    if not is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.progress import TransferSpeedColumn as SpeedColumn

    text, left = TextColumn("{task.description}"), TimeRemainingColumn(compact=True)
    columns = (text, BarColumn(bar_width=20), DownloadColumn(), SpeedColumn(), left)
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("storing", total=None)

        def update(stage: str, done: int, total: int, note: str) -> None:
            bars.update(task, description=stage, completed=done, total=total)

        yield update
