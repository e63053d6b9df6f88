"""slice + engine -> traces: the order, the blocks, the warm-up and the seeds of one evaluation.

Passes, in this order: boundary requests, acceptance, speed, control, memory. Every block is handed
to the sink as it ends, so that a killed replay resumes there; a failed request is data.
"""

from __future__ import annotations

from collections.abc import Callable

from pairgate.domain.evidence import MemoryUse
from pairgate.domain.recorded import Recorded, ReplayPlan
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.domain.traffic import TrafficSlice
from pairgate.ports import Engine, MaterialisedPair, Progress, TraceSink
from pairgate.replay.block import started
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

__all__ = ["GoesOn", "MoreBlocks", "Stop", "replay", "replay_acceptance", "submission_order"]

GoesOn = Callable[[TraceBatch], bool]
"""Asked once, after the acceptance pass; False ends the replay there."""


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
) -> Recorded:
    """Run the whole plan and close the engine.

    Without `more_blocks` the speed pass has exactly `plan.min_blocks` per concurrency. Raises what
    the engine raises when it cannot start; requests never raise.
    """
    try:
        run = started(engine, pair, traffic, plan, sink, progress)
        boundary = boundary_pass(run) if plan.with_boundary else ()
        arm = Arm.SPEC if run.has_draft else Arm.TARGET
        acceptance = acceptance_pass(run, arm, stop, n_blocks=None)
        left = len(traffic.requests) - len(acceptance)
        early = f"{left} of {len(traffic.requests)} requests were not needed" if left else ""
        speed: tuple[TraceBatch, ...] = ()
        control: tuple[TraceBatch, ...] = ()
        memory: tuple[MemoryUse, ...] = ()
        notes: tuple[str, ...] = ()
        if goes_on is None or goes_on(acceptance):
            speed = speed_pass(run, more_blocks) if plan.with_speed else ()
            control = control_pass(run) if plan.with_control else ()
            memory, notes = memory_pass(run) if plan.memory else ((), ())
        else:
            early = f"{early}; " * bool(early) + "speed, control and memory were left out"
        return Recorded(
            boundary=boundary + eos_at_once(acceptance),
            acceptance=acceptance,
            speed=speed,
            control=control,
            engine=engine.describe(),
            max_model_len=run.max_model_len,
            memory=memory,
            early_stop=early,
            notes=notes + fallback_note(plan),
        )
    finally:
        engine.close()


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
    """The acceptance pass alone, for another pair on the same requests (incumbent, carry-over).

    `n_requests` ends it after the block that holds the n-th request, e.g. where the candidate's
    own pass stopped. Starts and closes the engine.
    """
    try:
        run = started(engine, pair, traffic, plan, sink, progress)
        n_blocks = None if n_requests is None else -(-n_requests // plan.acceptance_block)
        return acceptance_pass(run, arm, None, n_blocks=n_blocks)
    finally:
        engine.close()
