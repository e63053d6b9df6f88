"""One block of a replay: run it, or take it from the sink; warm up once per arm and concurrency."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from pairgate.domain.policy import FallbackSettings
from pairgate.domain.recorded import ReplayPlan
from pairgate.domain.trace import Arm, Phase, RequestTrace, RoundState, TraceBatch
from pairgate.domain.traffic import Request, TrafficSlice
from pairgate.errors import InvalidEvaluation, InvalidInput
from pairgate.ports import (
    Engine,
    EngineLimits,
    GenerateOptions,
    MaterialisedPair,
    Progress,
    TraceSink,
)
from pairgate.replay.order import submission_blocks
from pairgate.stats.running import RunningRatio

Indexed = tuple[int, Request]
_WARMUP_TOKENS = 16
_LABELS = {Arm.TARGET: "without draft", Arm.INCUMBENT: "production", Arm.CARRY_OVER: "carried over"}


def label(arm: Arm) -> str:
    """The arm as people read it."""
    return _LABELS.get(arm, "with draft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all passes of one replay share."""

    engine: Engine
    pair: MaterialisedPair
    traffic: TrafficSlice
    plan: ReplayPlan
    sink: TraceSink
    progress: Progress
    max_model_len: int
    definition: str
    blocks: tuple[tuple[int, ...], ...]
    clock: Callable[[], float]
    warm: set[tuple[bool, int]]
    began: float
    left_out: list[str]

    @property
    def order(self) -> tuple[int, ...]:
        """The submission order."""
        return tuple(i for block in self.blocks for i in block)

    @property
    def out_of_time(self) -> bool:
        """Whether the plan's budget has ended; asked between blocks."""
        budget = self.plan.budget_s
        return budget is not None and self.clock() - self.began >= budget

    @property
    def k(self) -> int:
        return self.pair.pair.decoding.num_speculative_tokens

    @property
    def has_draft(self) -> bool:
        return self.k > 0

    def requests(self, indices: Iterable[int]) -> tuple[Indexed, ...]:
        return tuple((i, self.traffic.requests[i]) for i in indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block to run. `seed` is the run's, or another for the control."""

    key: str
    arm: Arm
    phase: Phase
    concurrency: int
    number: int
    requests: tuple[Indexed, ...]
    seed: int
    fallback: FallbackSettings | None = None
    stage: str = ""
    note: str = ""
    done_before: int = 0
    total: int = 0

    @property
    def with_draft(self) -> bool:
        return self.arm is not Arm.TARGET


def started(
    engine: Engine,
    pair: MaterialisedPair,
    traffic: TrafficSlice,
    plan: ReplayPlan,
    sink: TraceSink,
    progress: Progress | None,
) -> Run:
    """Start the engine with the limits that the plan, or else the slice, implies."""
    longest = pair.pair.target.architecture.max_position_embeddings
    limits = EngineLimits(
        max_model_len=plan.max_model_len or longest,
        max_concurrency=plan.max_concurrency,
        seed=plan.seed,
        watchdog_s=plan.watchdog_s,
        memory_budget_bytes=plan.memory_budget_bytes,
    )
    # The scripted engine lives in a time of its own.
    clock: Callable[[], float] = getattr(engine, "clock", time.perf_counter)
    began = clock()
    engine.start(pair, limits)
    if plan.max_model_len is None:
        # The lengths need the started engine's tokenizer; starting again only sets the limit.
        limits = replace(limits, max_model_len=min(longest, _needed_length(engine, pair, traffic)))
        engine.start(pair, limits)
    # Servers that run already have a limit of their own, and its edges are the ones to try.
    served: int | None = getattr(engine, "served_max_model_len", None)
    if served is not None and served > limits.max_model_len:
        limits = replace(limits, max_model_len=served)
        engine.start(pair, limits)
    return Run(
        engine=engine,
        pair=pair,
        traffic=traffic,
        plan=plan,
        sink=sink,
        progress=progress or _silent,
        max_model_len=limits.max_model_len,
        definition=engine.describe().definition,
        blocks=submission_blocks(traffic.requests, plan.seed, block=plan.acceptance_block),
        clock=clock,
        warm=set(),
        began=began,
        left_out=[],
    )


def _needed_length(engine: Engine, pair: MaterialisedPair, traffic: TrafficSlice) -> int:
    """Longest prompt + longest output + K + 1; a prompt that cannot be encoded fails later."""
    prompts = [1]
    for request in traffic.requests:
        try:
            prompts.append(engine.prompt_tokens(request))
        except InvalidInput:
            continue
    outputs = max(r.max_tokens for r in traffic.requests)
    return max(prompts) + outputs + pair.pair.decoding.num_speculative_tokens + 1


class Tally:
    """Token acceptance so far with its interval, for the progress line."""

    def __init__(self, batches: Iterable[TraceBatch] = ()) -> None:
        self._ratio = RunningRatio()
        for batch in batches:
            self.add(batch)

    def add(self, trace: RequestTrace | TraceBatch) -> None:
        drafted = trace.round_state == RoundState.DRAFTED
        accepted, proposed = trace.accepted[drafted], trace.proposed[drafted]
        row = (
            trace.round_request[drafted]
            if isinstance(trace, TraceBatch)
            else np.zeros(len(accepted), np.int64)
        )
        n_accepted = np.bincount(row, accepted).astype(np.float64)
        n_rejected = np.bincount(row, accepted < proposed).astype(np.float64)
        self._ratio.add(n_accepted, n_accepted + n_rejected)

    @property
    def note(self) -> str:
        value, interval = self._ratio.value, self._ratio.interval()
        if value is None:
            return ""
        bounds = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        return f"accepted {value:.3f}{bounds}"


def run_block(run: Run, block: Block, tally: Tally) -> TraceBatch:
    """The stored block, or run it and store it."""
    stored = run.sink.load(block.key)
    wanted = np.array([i for i, _ in block.requests], np.int64)
    if stored is not None and np.array_equal(stored.index, wanted):
        done = block.done_before + len(stored)
        run.progress(block.stage, done, block.total, "already stored")
        return stored
    _warm_up(run, block)
    options = GenerateOptions(
        with_draft=block.with_draft,
        concurrency=block.concurrency,
        seed=block.seed,
        fallback=block.fallback,
    )
    rows: list[RequestTrace] = []
    begin = run.clock()
    for trace in run.engine.generate(block.requests, options):
        rows.append(trace)
        tally.add(trace)
        run.progress(
            block.stage, block.done_before + len(rows), block.total, block.note or tally.note
        )
    batch = TraceBatch.from_rows(
        rows,
        arm=block.arm,
        phase=block.phase,
        concurrency=block.concurrency,
        block=block.number,
        wall_s=run.clock() - begin,
        definition=run.definition,
        order=wanted.tolist(),
    )
    if not np.array_equal(batch.index, wanted):
        raise InvalidEvaluation(
            f"block {block.key}: the engine answered {len(batch)} requests of {len(wanted)}"
        )
    run.sink.save(block.key, batch)
    return batch


def _warm_up(run: Run, block: Block) -> None:
    """A few short requests before the first block of an arm at a concurrency; never counted."""
    state = (block.with_draft, block.concurrency)
    if state in run.warm or block.phase is Phase.BOUNDARY:
        return
    run.warm.add(state)
    short = [
        (i, replace(r, max_tokens=min(r.max_tokens, _WARMUP_TOKENS)))
        for i, r in block.requests[: run.plan.warmup_requests]
    ]
    options = GenerateOptions(
        with_draft=block.with_draft, concurrency=block.concurrency, seed=block.seed
    )
    run.progress(block.stage, block.done_before, block.total, "warming up")
    for _ in run.engine.generate(short, options):
        pass


def _silent(stage: str, done: int, total: int, note: str) -> None:
    """No progress wanted."""
