"""Speed, latency, memory and fallback: what the draft buys and what it costs."""

from __future__ import annotations

from itertools import pairwise

from pairgate.domain.evidence import Estimate, MemoryUse, Missing, Scope
from pairgate.domain.policy import FallbackSettings
from pairgate.domain.trace import Arm, Phase
from pairgate.review import plots
from pairgate.review.story import Block, Figure, Paragraph, ReviewInput, Section, Table
from pairgate.review.wording import (
    ARM_NAMES,
    Cells,
    interval,
    joined,
    megabytes,
    natural,
    percent,
    quantity,
    ratio,
    share,
)

_MEMORY_PARTS = ("target weights", "draft weights", "target KV", "draft KV", "workspace", "rest")


def speed_section(inputs: ReviewInput, draw: bool) -> Section:
    """Speedup by concurrency with intervals, the crossover, and throughput of both arms."""
    found = inputs.evaluation.measurements
    scopes = sorted(found.scopes("speedup", "concurrency"), key=natural)
    title = "Speedup by concurrency"
    if not scopes:
        text = f"Speedup: {interval(found.find('speedup'), ratio)}."
        return Section(key="speed", title=title, blocks=(Paragraph(text=text),), brief=True)
    cells, break_even = Cells(), dict(found.break_even)
    rows = tuple(
        (
            s.key,
            cells(found.find("speedup", s), ratio),
            _predicted(found.find("predicted_speedup", s)),
            cells.point(found.find("tokens_per_s", s), quantity),
            cells.point(found.find("tokens_per_s", s, Arm.TARGET), quantity),
            share(break_even[int(s.key)]) if int(s.key) in break_even else "",
        )
        for s in scopes
    )
    heads = ("conc.", "speedup", "predicted", "tok/s with", "tok/s without", "break-even")
    values = [found.find("speedup", s) for s in scopes]
    blocks: list[Block] = [
        Paragraph(text=crossover([s.key for s in scopes], values)),
        Table(headers=heads, rows=rows, notes=cells.notes),
    ]
    if draw:
        blocks.insert(1, _speedup_figure(inputs, scopes))
    return Section(key="speed", title=title, blocks=tuple(blocks), brief=True)


def crossover(places: list[str], values: list[Estimate | Missing]) -> str:
    """Where the draft starts to cost more than it brings, as a sentence."""
    known = [(p, v) for p, v in zip(places, values, strict=True) if isinstance(v, Estimate)]
    faster = [p for p, v in known if v.low > 1.0]
    slower = [p for p, v in known if v.high < 1.0]
    unclear = [p for p, v in known if v.low <= 1.0 <= v.high]
    parts = [
        f"{word} at concurrency {joined(found)}"
        for word, found in (("faster", faster), ("slower", slower), ("undecided", unclear))
        if found
    ]
    text = f"With the draft: {'; '.join(parts)}." if parts else "No speedup was measured."
    for (a, left), (b, right) in pairwise(known):
        if left.value > 1.0 >= right.value:
            return f"{text} The crossover lies between {a} and {b}."
    if known and all(v.value > 1.0 for _, v in known):
        return f"{text} No crossover up to {known[-1][0]}, the highest that was tested."
    return text


def latency_section(inputs: ReviewInput, draw: bool) -> Section:
    """Time to first token and time per output token, with and without draft."""
    blocks: list[Block] = []
    for name, title in (("ttft_ms", "Time to first token"), ("tpot_ms", "Time per output token")):
        blocks += _latency(inputs, name, title, draw)
    gap = "Gaps between chunks are not compared: with a draft several tokens arrive per chunk."
    blocks.append(Paragraph(text=gap))
    return Section(key="latency", title="Latency", blocks=tuple(blocks))


def memory_section(inputs: ReviewInput, draw: bool) -> Section:
    """Parts of the memory, stacked, against the budget; predicted beside measured."""
    uses = inputs.evaluation.measurements.memory
    if not uses:
        text = "Memory was not measured."
        return Section(key="memory", title="Memory", blocks=(Paragraph(text=text),))
    rows = tuple(
        (
            f"{ARM_NAMES[u.arm]}, {u.concurrency}",
            megabytes(u.peak_bytes) + ("" if u.worst_case_reached else " *"),
            megabytes(u.predicted_bytes),
            megabytes(u.budget_bytes),
        )
        for u in uses
    )
    reached = all(u.worst_case_reached for u in uses)
    notes = () if reached else ("* the worst case was not reached, so the peak may be higher",)
    heads = ("arm, concurrency", "peak", "predicted bound", "budget")
    blocks: list[Block] = [Table(headers=heads, rows=rows, notes=notes)]
    if draw:
        blocks.insert(0, _memory_figure(uses))
    return Section(key="memory", title="Memory", blocks=tuple(blocks))


def fallback_section(inputs: ReviewInput, draw: bool) -> Section:
    """How often requests leave speculation: counterfactual, misfires, and in the speed pass."""
    found = inputs.evaluation.measurements
    numbers = (
        ("requests that would fall back", "fallback_share"),
        ("healthy requests that would (misfire)", "fallback_misfire"),
        ("tokens decoded plainly", "plain_token_share"),
    )
    cells = Cells()
    rows = tuple((label, cells(found.find(name), percent)) for label, name in numbers)
    blocks: list[Block] = [
        Paragraph(text=_fallback_rule(inputs.policy.fallback)),
        Table(headers=("", "share"), rows=rows, notes=cells.notes),
    ]
    acted = [c for c in found.counts if c.phase == Phase.SPEED and c.arm is Arm.SPEC]
    if acted:
        speed_rows = tuple(
            (str(c.concurrency), f"{c.n_fallen_back} of {c.n_requests}", f"{c.n_plain_tokens:,}")
            for c in sorted(acted, key=lambda c: c.concurrency)
        )
        heads = ("speed pass, concurrency", "fell back", "tokens decoded plainly")
        blocks.append(Table(headers=heads, rows=speed_rows))
    return Section(key="fallback", title="Fallback", blocks=tuple(blocks))


def _predicted(value: Estimate | Missing) -> str:
    return "" if isinstance(value, Missing) else ratio(value.value)


def _speedup_figure(inputs: ReviewInput, scopes: list[Scope]) -> Figure:
    found = inputs.evaluation.measurements
    series = [
        plots.Series(name=name, values=tuple(_known(found.find(metric, s)) for s in scopes))
        for name, metric in (("measured", "speedup"), ("predicted", "predicted_speedup"))
    ]
    svg = plots.series_svg(
        "speedup",
        [s.key for s in scopes],
        [s for s in series if any(s.values)],
        x_label="concurrency",
        y_label="speedup",
        reference=1.0,
    )
    alt = "Ratio of output tokens per second with and without the draft; above the dashed line the "
    return Figure(title="Speedup by concurrency", alt=alt + "draft pays.", svg=svg)


def _latency(inputs: ReviewInput, name: str, title: str, draw: bool) -> list[Block]:
    found = inputs.evaluation.measurements
    scopes = sorted(found.scopes(f"{name}.p50", "concurrency"), key=natural)
    if not scopes:
        missing = found.find(f"{name}.p50", Scope(kind="concurrency"))
        return [Paragraph(text=f"{title}: {interval(missing, quantity)}.")]
    cells, arms = Cells(), (Arm.SPEC, Arm.TARGET)
    rows = tuple(
        (
            f"{s.key}, {ARM_NAMES[arm]}",
            *(cells.point(found.find(f"{name}.{p}", s, arm), quantity) for p in _PERCENTILES),
            cells(found.find(f"{name.removesuffix('_ms')}_ratio.p95", s), ratio)
            if arm is Arm.SPEC
            else "",
        )
        for s in scopes
        for arm in arms
    )
    heads = (f"{name}: concurrency, arm", *_PERCENTILES, "ratio of p95")
    table = Table(headers=heads, rows=rows, notes=cells.notes)
    if not draw:
        return [table]
    series = [
        plots.Series(
            name=f"{ARM_NAMES[arm]}, {p}",
            values=tuple(_known(found.find(f"{name}.{p}", s, arm)) for s in scopes),
        )
        for p in ("p50", "p95")
        for arm in arms
    ]
    svg = plots.series_svg(
        name,
        [s.key for s in scopes],
        [s for s in series if any(s.values)],
        x_label="concurrency",
        y_label="ms",
        from_zero=True,
    )
    alt = "Median and 95th percentile in milliseconds by concurrency; numbers in the table below."
    return [Figure(title=f"{title} (ms)", alt=alt, svg=svg), table]


_PERCENTILES = ("p50", "p95", "p99")


def _memory_figure(uses: tuple[MemoryUse, ...]) -> Figure:
    def parts(use: MemoryUse) -> tuple[float, ...]:
        found = (
            use.weights_target_bytes,
            use.weights_draft_bytes,
            use.kv_target_bytes,
            use.kv_draft_bytes,
            use.workspace_bytes,
        )
        # What the process holds besides, up to its peak: interpreter, libraries, allocator.
        rest = max(0, use.peak_bytes - sum(found))
        return tuple(n / 2**20 for n in (*found, rest))

    bars = [
        plots.Bar(name=f"{ARM_NAMES[u.arm]}, {u.concurrency}", parts=parts(u)) for u in uses[:16]
    ]
    budget = min(u.budget_bytes for u in uses) / 2**20
    svg = plots.stacked_svg("memory", bars, _MEMORY_PARTS, x_label="MiB", budget=budget)
    largest = max(uses, key=lambda u: u.peak_bytes)
    alt = (
        f"Largest peak: {megabytes(largest.peak_bytes)} ({ARM_NAMES[largest.arm]}, concurrency "
        f"{largest.concurrency}) of a budget of {megabytes(largest.budget_bytes)}."
    )
    return Figure(title="Memory by arm and concurrency", alt=alt, svg=svg)


def _fallback_rule(rule: FallbackSettings) -> str:
    floor = rule.floor if isinstance(rule.floor, str) else f"{rule.floor:g}"
    return (
        f"A request leaves speculation when, over its last {rule.window} tested tokens (at least "
        f"{rule.minimum}), the upper bound of its acceptance lies under {floor}."
    )


def _known(value: Estimate | Missing) -> Estimate | None:
    return None if isinstance(value, Missing) else value
