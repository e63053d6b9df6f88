"""Evaluate a version: slice -> replay -> measure -> judge -> evidence in the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pairgate.app.engines import engine_for
from pairgate.app.evidence import Candidate, Evaluated, conclude
from pairgate.app.incumbent import incumbent_traces
from pairgate.app.register import materialise
from pairgate.app.runs import Run, open_run
from pairgate.app.setting import LineSetting, line_setting
from pairgate.app.slices import load_slice
from pairgate.app.workspace import Workspace, now
from pairgate.domain.pair import VersionRef
from pairgate.domain.recorded import Recorded, ReplayPlan
from pairgate.measure import acceptance_stop, speed_looks
from pairgate.replay import replay
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.domain.pair import Pair
    from pairgate.domain.profile import ServingProfile
    from pairgate.ports import Engine, Progress


def evaluate(
    ws: Workspace,
    ref: VersionRef,
    *,
    engine_factory: Callable[[ServingProfile], Engine] = engine_for,
    progress: Progress | None = None,
    command: str = "",
) -> Evaluated:
    """Replay the line's slice through the version and store evidence and verdict.

    A killed evaluation resumes at the last whole block. Raises `Conflict` while another process
    evaluates the same thing, `Unavailable` when the engine does not start, `InvalidInput` when
    the line is not set up.
    """
    candidate = _candidate(ws, ref)
    version, head = candidate.version, candidate.setting.head
    assert head.policy_digest and head.slice_digest
    family = (version.line, version.number, version.pair_digest, head.policy_digest)
    slice_digest = head.slice_digest
    with open_run(
        ws.evaluations_dir,
        label=f"{version.line}@{version.number}",
        key=candidate.run_key,
        at=now(),
        start_attempt=lambda: ws.registry.start_attempt(*family, slice_digest, now()),
        abandon=lambda k: ws.registry.release_attempt(*family[2:], slice_digest, k),
    ) as run:
        if run.resumed and progress is not None:
            n_blocks = len(ParquetTraces(run.traces_dir).keys())
            progress(f"resuming attempt {run.attempt}", n_blocks, n_blocks, "stored blocks")
        recorded = _record(ws, candidate, run, engine_factory, progress)
        evaluated = conclude(ws, candidate, run, recorded, command)
        run.finish()
        return evaluated


def _candidate(ws: Workspace, ref: VersionRef) -> Candidate:
    version = ws.registry.version(ref)
    setting = line_setting(ws, version.line)
    production = setting.head.production
    return Candidate(
        version=version,
        pair=ws.registry.pair(version.pair_digest),
        incumbent=None
        if production is None
        else ws.registry.version(replace(ref, selector=str(production))),
        setting=setting,
    )


def replay_plan(pair: Pair, setting: LineSetting) -> ReplayPlan:
    """The policy's replay settings with every None derived from profile and slice."""
    policy, profile = setting.policy, setting.profile
    settings = policy.replay
    concurrencies = settings.speed_concurrencies or profile.concurrencies
    return ReplayPlan(
        seed=policy.seed,
        max_model_len=profile.max_model_len,
        acceptance_concurrency=settings.acceptance_concurrency or max(profile.concurrencies),
        speed_concurrencies=concurrencies,
        requests_per_block=settings.requests_per_block,
        min_blocks=settings.min_blocks,
        max_blocks=settings.max_blocks,
        warmup_requests=settings.warmup_requests,
        fallback=policy.fallback,
    )


def _record(
    ws: Workspace,
    candidate: Candidate,
    run: Run,
    engine_factory: Callable[[ServingProfile], Engine],
    progress: Progress | None,
) -> Recorded:
    """Run the passes that are not stored yet."""
    setting = candidate.setting
    plan = replay_plan(candidate.pair, setting)
    assert setting.head.slice_digest
    traffic = load_slice(ws, setting.head.slice_digest)
    alpha = setting.policy.alpha * 2.0**-run.attempt
    sink = ParquetTraces(run.traces_dir)
    with materialise(ws, candidate.pair) as pair:
        recorded = replay(
            engine_factory(setting.profile),
            pair,
            traffic,
            plan,
            sink,
            progress,
            acceptance_stop(setting.policy, alpha=alpha),
            more_blocks=speed_looks(setting.policy, alpha=alpha),
        )
    if candidate.incumbent is None or not candidate.incumbent_has_draft:
        return recorded
    incumbent = incumbent_traces(
        ws,
        candidate.incumbent,
        setting,
        traffic,
        plan,
        run.folder,
        recorded.engine,
        len(recorded.acceptance),
        engine_factory,
        progress,
    )
    return replace(recorded, incumbent=incumbent)
