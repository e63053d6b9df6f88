"""Error rates of the gate on simulated traffic, from the gate's own code.

    python -m benchmarks.gate_error_rates --short        a minute, few simulations
    python -m benchmarks.gate_error_rates                the figures of docs/verdict.md
    python -m benchmarks.gate_error_rates --part whole --minutes 20 --write docs/verdict.md

Three parts, each with tables of its own: `acceptance` (the rule with its looks, at a floor under,
at and over the truth), `rules` (two kinds, the share under a floor, speedup under drift, fallback)
and `whole` (policies through looks, measure and judge). `--write` puts the tables between the
part's markers in a page. Cells have generators of their own, so a seed gives the same figures with
any number of processes.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.gate_acceptance import (
    DISTANCES,
    SIZES,
    Decided,
    FalsePass,
    acceptance_cells,
)
from benchmarks.gate_parts import (
    DRIFTS,
    KINDS,
    Fired,
    Speed,
    fallback_fired,
    flagged,
    share_cleared,
    speed_cleared,
)
from benchmarks.gate_scenarios import SCENARIOS, Whole, whole_cell
from benchmarks.gate_traffic import SHAPES, Shape

ALPHA = 0.05
RATIOS = (0.95, 1.0, 1.05, 1.1)
KIND_SIZES = (200, 500)
FIRED_AT = (0.30, 0.45, 0.55, 0.65, 0.70, 0.80, 0.88)
ROUNDS = (25, 100)
SHARE_N = 300
BETTER = 0.08
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Simulations per cell; of whole evaluations `rounds` of `boundary` at the boundary and one on
    each side, as many rounds as begin within `minutes`."""

    acceptance: int = 1000
    kinds: int = 60
    share: int = 40
    speed: int = 2000
    fallback: int = 5000
    boundary: int = 8
    rounds: int = 12
    minutes: float = 9.0


SHORT = Effort(acceptance=40, kinds=5, share=5, speed=100, fallback=200, boundary=2, rounds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.header, *self.rows)]
        lines.insert(1, "|" + " --- |" * len(self.header))
        return "\n".join((f"**{self.title}**", "", *lines))


class Pool:
    """Cells over processes, in the order in which they were asked for."""

    def __init__(self, executor: ProcessPoolExecutor | None) -> None:
        self._executor = executor

    def map(self, cells: Iterable[Callable[[], T]]) -> list[T]:
        if self._executor is None:
            return [cell() for cell in cells]
        return [future.result() for future in [self._executor.submit(cell) for cell in cells]]


def acceptance_tables(effort: Effort, seed: int, pool: Pool) -> tuple[Table, ...]:
    n_sim = effort.acceptance
    found = pool.map(partial(_shape_cells, s.name, n_sim, seed) for s in SHAPES)
    decided = [cell for cells, _ in found for cell in cells]
    false = [cell for _, cells in found for cell in cells]
    at = [f"{d:+.2f}" if d else "at the floor" for d in DISTANCES]
    header = ("traffic", "planned n", *at)

    def by_distance(text: Callable[[Decided], str]) -> list[list[str]]:
        return [
            [s.name, str(n), *(text(c) for c in decided if (c.shape, c.n) == (s.name, n))]
            for s in SHAPES
            for n in SIZES
        ]

    return (
        Table(
            title="PASS of the acceptance rule, by how far the truth lies from the floor",
            header=header,
            rows=by_distance(lambda c: _share(c.passed)),
        ),
        Table(title="FAIL", header=header, rows=by_distance(lambda c: _share(c.failed))),
        Table(
            title="Mean number of requests used",
            header=header,
            rows=by_distance(lambda c: f"{c.n_used:.0f}"),
        ),
        Table(
            title="False pass of each bound by itself, at a floor that is its own truth",
            header=("traffic", "n", "request mean", "pooled", "binomial over tokens"),
            rows=[_false_pass_row(f) for f in false],
        ),
    )


def _shape_cells(
    name: str, n_sim: int, seed: int
) -> tuple[tuple[Decided, ...], tuple[FalsePass, ...]]:
    return acceptance_cells(_shape(name), n_sim=n_sim, alpha=ALPHA, seed=seed)


def _false_pass_row(found: FalsePass) -> list[str]:
    pooled = "needs 100" if math.isnan(found.pooled) else _share(found.pooled)
    return [found.shape, str(found.n), _share(found.mean), pooled, _share(found.naive)]


def rules_tables(effort: Effort, seed: int, pool: Pool) -> tuple[Table, ...]:
    kinds = pool.map(
        partial(_kind_cell, i, n, effort.kinds, seed) for i in range(len(KINDS)) for n in KIND_SIZES
    )
    shares = pool.map(
        partial(_share_cell, s.name, effort.share, seed) for s in (SHAPES[0], SHAPES[2])
    )
    speeds = pool.map(
        partial(_speed_cell, i, ratio, effort.speed, seed)
        for i in range(len(DRIFTS))
        for ratio in RATIOS
    )
    fired = [
        fallback_fired(a, n, n_requests=effort.fallback, seed=seed)
        for a in FIRED_AT
        for n in ROUNDS
    ]
    return (
        _kinds_table(kinds),
        Table(
            title=f"PASS of a cap that is exactly the share under the floor (n = {SHARE_N})",
            header=("traffic", "PASS"),
            rows=[[s.name, _share(x)] for s, x in zip((SHAPES[0], SHAPES[2]), shares, strict=True)],
        ),
        _speed_table(speeds),
        _fired_table(fired),
    )


def _kinds_table(found: Sequence[float]) -> Table:
    width = len(KIND_SIZES)
    rows = [
        [kind.name, "two" if kind.two else "one", *map(_share, found[i * width : (i + 1) * width])]
        for i, kind in enumerate(KINDS)
    ]
    return Table(
        title="Requests called two kinds",
        header=("acceptance of a request", "truth", *(f"n = {n}" for n in KIND_SIZES)),
        rows=rows,
    )


def _speed_table(found: Sequence[Speed]) -> Table:
    rows = []
    for i, drift in enumerate(DRIFTS):
        for j, ratio in enumerate(RATIOS):
            cell = found[i * len(RATIOS) + j]
            rows.append(
                [
                    drift.name,
                    f"{ratio:.2f}",
                    _share(cell.abba),
                    f"{cell.blocks:.1f}",
                    _share(cell.one_after_the_other),
                ]
            )
    return Table(
        title="Said to be faster than the target alone (noise of one run 2 %; looks after 3, 6, 9)",
        header=("machine", "true speedup", "ABBA blocks", "blocks used", "one arm after the other"),
        rows=rows,
    )


def _fired_table(found: Sequence[Fired]) -> Table:
    rows = [[f"{f.acceptance:.2f}", str(f.n_rounds), _share(f.rule), _share(f.literal)]
            for f in found]  # fmt: skip
    return Table(
        title="Requests that leave speculation (floor 0.6, K = 5)",
        header=(
            "token acceptance",
            "rounds",
            "the rule",
            "accepted / proposed of the last 20 proposals under 0.6",
        ),
        rows=rows,
    )


def whole_tables(effort: Effort, seed: int, pool: Pool) -> tuple[Table, ...]:
    """Rounds of every scenario, until the effort's minutes are over."""
    began, found = time.monotonic(), list[Whole]()
    for part in range(effort.rounds):
        fresh = pool.map(
            partial(whole_cell, s.name, distance, n_sim=n_sim, seed=seed, part=part)
            for s in SCENARIOS
            for distance, n_sim in ((0.0, effort.boundary), (BETTER, 1), (-BETTER, 1))
        )
        found = [a + b for a, b in zip(found, fresh, strict=True)] if found else fresh
        if time.monotonic() - began > 60.0 * effort.minutes:
            break
    n, n_clear = found[0].n_sim, found[1].n_sim
    at = found[::3]
    rows = [_whole_row(*found[i : i + 3]) for i in range(0, len(found), 3)]
    rows.append(["all of them", _of(sum(c.n_passed for c in at), n * len(at)), *[""] * 6])
    return (
        Table(
            title=f"Whole policies ({n} evaluations at the boundary, {n_clear} each {BETTER} above "
            "and below)",
            header=(
                "what lies at its boundary",
                "PASS",
                "FAIL",
                f"PASS {BETTER} above",
                f"FAIL {BETTER} below",
                "requests planned",
                "used above",
                "used below",
            ),
            rows=rows,
        ),
    )


def _whole_row(at: Whole, above: Whole, below: Whole) -> list[str]:
    return [
        at.name,
        _of(at.n_passed, at.n_sim),
        _of(at.n_failed, at.n_sim),
        _of(above.n_passed, above.n_sim),
        _of(below.n_failed, below.n_sim),
        str(at.n_planned),
        f"{above.n_used / above.n_sim:.0f}",
        f"{below.n_used / below.n_sim:.0f}",
    ]


def _of(events: int, n: int) -> str:
    return f"{events / n:.2f} ({events})"


def _kind_cell(index: int, n: int, n_sim: int, seed: int) -> float:
    return flagged(KINDS[index], n, n_sim=n_sim, seed=seed)


def _share_cell(name: str, n_sim: int, seed: int) -> float:
    return share_cleared(_shape(name), SHARE_N, n_sim=n_sim, alpha=ALPHA, seed=seed)


def _speed_cell(index: int, ratio: float, n_sim: int, seed: int) -> Speed:
    return speed_cleared(DRIFTS[index], ratio, n_sim=n_sim, alpha=ALPHA, seed=seed)


def _shape(name: str) -> Shape:
    return next(s for s in SHAPES if s.name == name)


def _share(value: float) -> str:
    return f"{value:.3f}" if value < 0.2 else f"{value:.2f}"


PARTS: dict[str, Callable[[Effort, int, Pool], tuple[Table, ...]]] = {
    "acceptance": acceptance_tables,
    "rules": rules_tables,
    "whole": whole_tables,
}


def written(page: str, part: str, text: str) -> str:
    """The page with the text between the part's markers. Raises `ValueError` without markers."""
    begin, end = f"<!-- error rates: {part} -->", f"<!-- error rates: {part} end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no markers {begin} … {end}")
    return pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page)


def _origin(part: str, effort: Effort, seed: int, processes: int, minutes: float) -> str:
    if part == "acceptance":
        sims = f"{effort.acceptance} simulations per cell"
    elif part == "rules":
        sims = (
            f"{effort.kinds}, {effort.share}, {effort.speed} and {effort.fallback} simulations per "
            "cell of the four tables"
        )
    else:
        sims = f"rounds of {effort.boundary} evaluations at the boundary and one on each side"
    return (
        f"`python -m benchmarks.gate_error_rates --part {part} --seed {seed}`: alpha {ALPHA}, "
        f"{sims}; {minutes:.1f} minutes with {processes} processes on {os.cpu_count()} cores "
        f"({platform.machine()})."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--short", action="store_true", help="few simulations, for a first look")
    parser.add_argument("--minutes", type=float, help="begin no round of whole evaluations later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path, help="a page with the part's markers")
    options = parser.parse_args(arguments)
    effort = SHORT if options.short else Effort()
    if options.minutes is not None:
        effort = replace(effort, minutes=options.minutes, rounds=1000)
    parts = tuple(PARTS) if options.part == "all" else (options.part,)
    with ProcessPoolExecutor(options.processes) as executor:
        pool = Pool(executor if options.processes > 1 else None)
        for part in parts:
            _publish(part, effort, options, pool)


def _publish(part: str, effort: Effort, options: argparse.Namespace, pool: Pool) -> None:
    """Print a part's tables, and write them into a page if there is one."""
    began = time.monotonic()
    tables = PARTS[part](effort, options.seed, pool)
    minutes = (time.monotonic() - began) / 60.0
    origin = _origin(part, effort, options.seed, options.processes, minutes)
    text = "\n\n".join((*(table.markdown for table in tables), origin))
    print(text, flush=True)
    if options.write is not None:
        page = options.write.read_text("utf-8")
        options.write.write_text(written(page, part, text), "utf-8")


if __name__ == "__main__":
    main()
