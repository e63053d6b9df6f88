"""slice + engine -> traces: the order, the blocks, the warm-up and the seeds of one evaluation.

Passes, in this order: boundary requests, the first speed blocks where the threshold of the
acceptance depends on them, acceptance, speed, control, memory. Every block is handed to the sink as
it ends, so that a killed replay resumes there; a failed request is data.
"""

from __future__ import annotations

from collections.abc import Callable

from pairgate.domain.evidence import AcceptancePlan, BoundaryResult, EarlyStop, MemoryUse
from pairgate.domain.recorded import Recorded, ReplayPlan
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.domain.traffic import TrafficSlice
from pairgate.ports import Engine, MaterialisedPair, Progress, TraceSink
from pairgate.replay.block import Run, started
from pairgate.replay.boundary import boundary_pass, eos_at_once
from pairgate.replay.order import submission_order
from pairgate.replay.passes import (
    MoreBlocks,
    Stop,
    acceptance_pass,
    control_pass,
    fallback_note,
    memory_pass,
    speed_pass,
)

__all__ = [
    "GoesOn",
    "MoreBlocks",
    "Screened",
    "Stop",
    "acceptance_plan",
    "replay",
    "replay_acceptance",
    "replay_carry_over",
    "submission_order",
]

GoesOn = Callable[[TraceBatch, tuple[TraceBatch, ...]], bool]
"""Asked after the acceptance pass (without speed blocks) and after the speed blocks of each
concurrency; False ends the replay there."""
Screened = Callable[[tuple[BoundaryResult, ...], tuple[TraceBatch, ...]], None]
"""Told, before the acceptance pass, what the boundary requests and the first speed blocks gave."""


def replay(
    engine: Engine,
    pair: MaterialisedPair,
    traffic: TrafficSlice,
    plan: ReplayPlan,
    sink: TraceSink,
    progress: Progress | None = None,
    stop: Stop | None = None,
    *,
    more_blocks: MoreBlocks | None = None,
    goes_on: GoesOn | None = None,
    screened: Screened | None = None,
) -> Recorded:
    """Run the whole plan and close the engine.

    Without `more_blocks` the speed pass has exactly `plan.min_blocks` per concurrency. Raises what
    the engine raises when it cannot start; requests never raise.
    """
    try:
        run = started(engine, pair, traffic, plan, sink, progress)
        boundary = boundary_pass(run) if plan.with_boundary else ()
        first = speed_pass(run, None, concurrencies=plan.screen) if plan.screen else ()
        if screened is not None:
            screened(boundary, first)
        arm = Arm.SPEC if run.has_draft else Arm.TARGET
        n = len(traffic.requests)
        acceptance = acceptance_pass(run, arm, stop, n_requests=n)

        def on(speed: tuple[TraceBatch, ...]) -> bool:
            return goes_on is None or goes_on(acceptance, speed)

        speed, control, memory, notes = _later_passes(run, on, more_blocks, first)
        return Recorded(
            boundary=boundary + eos_at_once(acceptance),
            acceptance=acceptance,
            speed=speed,
            control=control,
            engine=engine.describe(),
            max_model_len=run.max_model_len,
            memory=memory,
            early_stop=_early_stop(run, acceptance, n),
            planned=acceptance_plan(traffic),
            notes=notes + fallback_note(plan),
        )
    finally:
        engine.close()


def _later_passes(
    run: Run,
    goes_on: Callable[[tuple[TraceBatch, ...]], bool],
    more_blocks: MoreBlocks | None,
    first: tuple[TraceBatch, ...],
) -> tuple[tuple[TraceBatch, ...], tuple[TraceBatch, ...], tuple[MemoryUse, ...], tuple[str, ...]]:
    """Speed, control and memory, cheapest first, as long as nothing has failed."""
    plan = run.plan
    speed = first
    if not goes_on(()):
        waiting = [c for c in plan.speed_concurrencies if c not in plan.screen]
        run.left_out.extend(f"speed at {c}" for c in waiting if plan.with_speed)
    elif plan.with_speed:
        # The first blocks are stored: they are taken from there and not run again.
        speed = speed_pass(
            run, more_blocks, concurrencies=plan.speed_concurrencies, goes_on=goes_on
        )
    if not goes_on(speed):
        run.left_out.extend([*["control"] * plan.with_control, *["memory"] * plan.memory])
        return speed, (), (), ()
    control = control_pass(run) if plan.with_control else ()
    memory, notes = memory_pass(run) if plan.memory else ((), ())
    return speed, control, memory, notes


def _early_stop(run: Run, acceptance: TraceBatch, n_planned: int) -> EarlyStop | None:
    """How the replay ended before its plan; the caller knows better than `a look` why."""
    if len(acceptance) == n_planned and not run.left_out:
        return None
    budget = run.plan.budget_s
    return EarlyStop(
        why="a look at the results decided it"
        if not run.out_of_time
        else f"the budget of {(budget or 0.0) / 60:g} minutes had ended",
        n_requests=len(acceptance),
        n_planned=n_planned,
        request_s=acceptance.wall_s / len(acceptance),
        left_out=tuple(run.left_out),
        undecided=run.out_of_time,
    )


def acceptance_plan(traffic: TrafficSlice) -> AcceptancePlan:
    """What the acceptance pass over a slice is, before anything has run."""
    tokens: dict[object, int] = {}
    for i, request in enumerate(traffic.requests):
        unit = i if request.session is None else request.session
        tokens[unit] = tokens.get(unit, 0) + request.max_tokens
    return AcceptancePlan(
        n_requests=len(traffic.requests),
        domains=tuple(sorted({r.domain for r in traffic.requests})),
        longest_unit_tokens=max(tokens.values()),
    )


def replay_acceptance(
    engine: Engine,
    pair: MaterialisedPair,
    traffic: TrafficSlice,
    plan: ReplayPlan,
    sink: TraceSink,
    progress: Progress | None = None,
    *,
    arm: Arm,
    n_requests: int | None = None,
) -> TraceBatch:
    """The acceptance pass alone, for another pair on the same requests (the incumbent).

    `n_requests` ends it after the block that holds the n-th request, e.g. where the candidate's
    own pass stopped. Starts and closes the engine.
    """
    try:
        run = started(engine, pair, traffic, plan, sink, progress)
        n = len(traffic.requests) if n_requests is None else n_requests
        return acceptance_pass(run, arm, None, n_requests=n)
    finally:
        engine.close()


def replay_carry_over(
    engine: Engine,
    pair: MaterialisedPair,
    traffic: TrafficSlice,
    plan: ReplayPlan,
    sink: TraceSink,
    progress: Progress | None = None,
    *,
    n_requests: int,
    concurrencies: tuple[int, ...],
) -> tuple[TraceBatch, tuple[TraceBatch, ...]]:
    """Production's draft on the new target: its acceptance on the first `n_requests`, and the
    plan's first speed blocks at `concurrencies`. Starts and closes the engine."""
    try:
        run = started(engine, pair, traffic, plan, sink, progress)
        acceptance = acceptance_pass(run, Arm.CARRY_OVER, None, n_requests=n_requests)
        speed = speed_pass(run, None, concurrencies=concurrencies, arm=Arm.CARRY_OVER)
        return acceptance, speed
    finally:
        engine.close()
