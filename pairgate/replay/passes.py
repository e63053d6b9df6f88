"""The passes after the boundary requests: acceptance, speed, control, memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from pairgate.domain.evidence import MemoryUse
from pairgate.domain.policy import FallbackSettings
from pairgate.domain.recorded import ReplayPlan
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.domain.traffic import Request
from pairgate.replay.block import Block, Run, Tally, label, run_block
from pairgate.replay.order import blocks_drawn

Stop = Callable[[TraceBatch], bool]
"""Asked after every acceptance block about all of them so far; True ends the pass."""
MoreBlocks = Callable[[int, tuple[TraceBatch, ...]], bool]
"""Asked about one concurrency after min_blocks, 2 × min_blocks, …; True asks for as many more."""


def acceptance_pass(run: Run, arm: Arm, stop: Stop | None, *, n_requests: int) -> TraceBatch:
    """Every request once (or the first `n_requests`, up to the end of their block), in submission
    order, fallback off."""
    plan, total = run.plan, len(run.order)
    done: list[TraceBatch] = []
    begin = 0
    for number, indices in enumerate(run.blocks):
        block = Block(
            key=f"acceptance-{arm}-c{plan.acceptance_concurrency}-{number:05d}",
            arm=arm,
            phase=Phase.ACCEPTANCE,
            concurrency=plan.acceptance_concurrency,
            number=number,
            requests=run.requests(indices),
            seed=plan.seed,
            stage=f"acceptance, {label(arm)}",
            done_before=begin,
            total=total,
        )
        done.append(run_block(run, block, Tally(done)))
        begin += len(indices)
        if begin >= min(n_requests, total):
            break
        if run.out_of_time or (stop is not None and stop(TraceBatch.concat(done))):
            break
    return TraceBatch.concat(done)


def speed_pass(
    run: Run,
    more_blocks: MoreBlocks | None,
    *,
    concurrencies: tuple[int, ...],
    arm: Arm = Arm.SPEC,
    goes_on: Callable[[tuple[TraceBatch, ...]], bool] | None = None,
) -> tuple[TraceBatch, ...]:
    """ABBA blocks of `arm` and the target alone at each concurrency, in random order of these.

    `goes_on` is asked after each concurrency about all blocks so far; False ends the pass.
    """
    plan = run.plan
    order = list(concurrencies)
    random.Random(f"pairgate concurrencies {plan.seed}").shuffle(order)
    found: list[TraceBatch] = []
    for at, concurrency in enumerate(order):
        here: list[TraceBatch] = []
        for number, indices in enumerate(_drawn(run, concurrency)):
            if number == plan.max_blocks:
                break
            looks = number >= plan.min_blocks and number % plan.min_blocks == 0
            if looks and (more_blocks is None or not more_blocks(concurrency, tuple(here))):
                break
            if run.out_of_time:
                run.left_out.append(f"speed at {concurrency} from block {number + 1} on")
                break
            here.extend(_abba_block(run, arm, concurrency, number, indices))
        found.extend(here)
        if goes_on is not None and order[at + 1 :] and not goes_on(tuple(found)):
            run.left_out.extend(f"speed at {c}" for c in order[at + 1 :])
            break
    return tuple(found)


def _abba_block(
    run: Run, drafted: Arm, concurrency: int, number: int, indices: tuple[int, ...]
) -> Iterator[TraceBatch]:
    """The same requests in both arms; the order turns round from block to block."""
    arms = (Arm.TARGET, drafted) if run.has_draft else (Arm.TARGET,)
    for at, arm in enumerate(arms if number % 2 == 0 else arms[::-1]):
        block = Block(
            key=f"speed-c{concurrency}-{number:03d}-{arm}",
            arm=arm,
            phase=Phase.SPEED,
            concurrency=concurrency,
            number=number,
            requests=run.requests(indices),
            seed=run.plan.seed,
            fallback=None if arm is Arm.TARGET else _acting(run.plan),
            stage=f"speed at {concurrency}",
            note=f"block {number + 1}, {label(arm)}",
            done_before=(number * len(arms) + at) * len(indices),
            total=_blocks_to_next_look(run.plan, number) * len(arms) * len(indices),
        )
        yield run_block(run, block, Tally())


def _blocks_to_next_look(plan: ReplayPlan, number: int) -> int:
    return min(plan.max_blocks, (number // plan.min_blocks + 1) * plan.min_blocks)


def _acting(plan: ReplayPlan) -> FallbackSettings | None:
    """A floor of `break-even` is only known from these very blocks, so there it does not act."""
    return None if isinstance(plan.fallback.floor, str) else plan.fallback


def fallback_note(plan: ReplayPlan) -> tuple[str, ...]:
    """A warning when the plan's fallback could not act in the speed pass, else nothing."""
    if _acting(plan) is not None:
        return ()
    return (
        f"fallback did not act in the speed pass: its floor {plan.fallback.floor!r} is only known "
        "afterwards",
    )


def control_pass(run: Run) -> tuple[TraceBatch, ...]:
    """The target alone twice, with other keys, on the requests of the first speed blocks."""
    plan = run.plan
    concurrency = plan.max_concurrency
    blocks = _drawn(run, max(plan.speed_concurrencies, default=concurrency))
    indices = dict.fromkeys(i for _ in range(plan.control_blocks) for i in next(blocks))
    found = []
    for number in (0, 1):
        seed = plan.seed + 1 + number
        block = Block(
            key=f"control-c{concurrency}-{number:03d}-target",
            arm=Arm.TARGET,
            phase=Phase.CONTROL,
            concurrency=concurrency,
            number=number,
            requests=tuple((i, _reseeded(r, seed)) for i, r in run.requests(indices)),
            seed=seed,
            stage="control, without draft",
            note=f"run {number + 1}",
            done_before=number * len(indices),
            total=2 * len(indices),
        )
        if run.out_of_time:
            run.left_out.append("control")
            return ()
        found.append(run_block(run, block, Tally()))
    return tuple(found)


def _reseeded(request: Request, run_seed: int) -> Request:
    """The request with numbers of its own for this run, also where it names a seed."""
    if request.sampling.seed is None:
        return request
    seed = (request.sampling.seed * 1_000_003 + run_seed) % 2**63
    return replace(request, sampling=replace(request.sampling, seed=seed))


def memory_pass(run: Run) -> tuple[tuple[MemoryUse, ...], tuple[str, ...]]:
    """The forced worst case at every concurrency; what could not be measured becomes a note."""
    uses: list[MemoryUse] = []
    notes: list[str] = []
    concurrencies = sorted({*run.plan.speed_concurrencies, run.plan.acceptance_concurrency})
    for done, concurrency in enumerate(concurrencies):
        if run.out_of_time:
            run.left_out.append(f"memory at {concurrency}")
            continue
        run.progress("memory", done, len(concurrencies), f"concurrency {concurrency}")
        for with_draft in (False, True) if run.has_draft else (False,):
            use = run.engine.stress(concurrency, with_draft=with_draft)
            if isinstance(use, MemoryUse):
                uses.append(use)
            else:
                notes.append(f"memory at concurrency {concurrency}: {use.reason}")
    run.progress("memory", len(concurrencies), len(concurrencies), "")
    return tuple(uses), tuple(notes)


def _drawn(run: Run, concurrency: int) -> Iterator[tuple[int, ...]]:
    plan = run.plan
    size = plan.block_size(concurrency)
    return blocks_drawn(run.order, size, seed=plan.seed, concurrency=concurrency)
