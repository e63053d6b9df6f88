"""Evaluate a version: slice -> replay -> measure -> judge -> evidence in the registry."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pairgate.app.answer_notes import answer_notes
from pairgate.app.carry_over import N_REQUESTS, carried_over
from pairgate.app.early import Looks
from pairgate.app.engines import engine_for
from pairgate.app.evidence import Candidate, Evaluated, conclude
from pairgate.app.incumbent import incumbent_traces, longest_known
from pairgate.app.price import Price, price_of
from pairgate.app.register import materialise
from pairgate.app.runs import Run, open_run
from pairgate.app.setting import LineSetting, line_setting
from pairgate.app.slices import load_slice
from pairgate.app.teacher_forcing import teacher_forced
from pairgate.app.workspace import Workspace, now
from pairgate.compat.decoding import require_agreement
from pairgate.compat.engines import require_engine
from pairgate.domain.pair import Method, VersionRef
from pairgate.domain.policy import AcceptanceRule, SpeedupRule
from pairgate.domain.recorded import Recorded, ReplayPlan
from pairgate.errors import Refused
from pairgate.replay import replay
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.domain.pair import Pair, PairVersion
    from pairgate.domain.profile import ServingProfile
    from pairgate.domain.traffic import TrafficSlice
    from pairgate.ports import Engine, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """`goes_on_anyway`: a FAIL ends nothing (--all). `budget_s` ends the replay at the end of a
    block, with what is missing as INCONCLUSIVE (--budget)."""

    goes_on_anyway: bool = False
    budget_s: float | None = None


def evaluate(
    ws: Workspace,
    ref: VersionRef,
    *,
    engine_factory: Callable[[ServingProfile], Engine] = engine_for,
    progress: Progress | None = None,
    command: str = "",
    profile: str | None = None,
    options: EvaluateOptions | None = None,
    engine_key: str = "",
) -> Evaluated:
    """Replay the line's slice through the version and store evidence and verdict.

    `profile` (NAME or NAME@N) is another one than the line's own to run on; `engine_key` is what
    stored blocks depend on beside it, e.g. a server's version.

    A killed evaluation resumes at the last whole block. Raises `Conflict` while another process
    evaluates the same thing, `Unavailable` when the engine does not start, `InvalidInput` when
    the line is not set up, `Refused` when the profile cannot run the pair as it was registered.
    """
    candidate = replace(_candidate(ws, ref, profile), engine_key=engine_key)
    version, head = candidate.version, candidate.setting.head
    assert head.policy_digest and head.slice_digest
    family = (version.line, version.number, version.pair_digest, head.policy_digest)
    slice_digest = head.slice_digest
    with open_run(
        ws.evaluations_dir,
        label=f"{version.line}@{version.number}",
        key=candidate.run_key,
        at=now(),
        start_attempt=lambda at: ws.registry.start_attempt(*family, slice_digest, at, once=True),
        abandon=lambda k: ws.registry.release_attempt(*family[2:], slice_digest, k),
    ) as run:
        if run.resumed and progress is not None:
            n_blocks = len(ParquetTraces(run.traces_dir).keys())
            progress(f"resuming attempt {run.attempt}", n_blocks, n_blocks, "stored blocks")
        evaluated = _stored(ws, version, run)
        if evaluated is None:
            recorded = _record(
                ws, candidate, run, options or EvaluateOptions(), engine_factory, progress
            )
            evaluated = conclude(ws, candidate, run, recorded, command)
        run.finish()
        return evaluated


def price(ws: Workspace, ref: VersionRef, *, profile: str | None = None) -> Price:
    """What evaluating a version would run and take; nothing is started."""
    candidate = _candidate(ws, ref, profile)
    plan = replay_plan(candidate.pair, candidate.setting)
    assert candidate.setting.head.slice_digest
    n = ws.registry.slice_(candidate.setting.head.slice_digest).n_requests
    return price_of(ws, candidate, plan, n)


def _stored(ws: Workspace, version: PairVersion, run: Run) -> Evaluated | None:
    """What an earlier process stored before it was killed: its evidence stands as it is."""
    rows = ws.registry.evaluations(version.line, version.number) if run.resumed else []
    found = next((row for row in rows if row.folder == run.folder.name), None)
    if found is None:
        return None
    stored = ws.registry.evaluation(found.digest)
    return Evaluated(
        digest=found.digest,
        evaluation=stored.evaluation,
        verdict=stored.verdict,
        folder=run.folder,
        resumed=True,
    )


def _candidate(ws: Workspace, ref: VersionRef, profile: str | None) -> Candidate:
    version = ws.registry.version(ref)
    version.require_files()
    setting = line_setting(ws, version.line, profile)
    pair = ws.registry.pair(version.pair_digest)
    engine, method = setting.profile.engine, pair.decoding.method
    require_engine(engine, method, line=version.line, label=str(version))
    require_agreement(pair.decoding, setting.profile, label=str(version))
    production = setting.head.production
    return Candidate(
        version=version,
        pair=pair,
        incumbent=None
        if production is None
        else ws.registry.version(replace(ref, selector=str(production))),
        setting=setting,
    )


def replay_plan(pair: Pair, setting: LineSetting, *, budget_s: float | None = None) -> ReplayPlan:
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
        screen=_screen(pair, setting, concurrencies),
        budget_s=budget_s,
    )


def _screen(pair: Pair, setting: LineSetting, measured: tuple[int, ...]) -> tuple[int, ...]:
    """Where speed decides, if looks at the acceptance need to know what a draft round costs."""
    policy = setting.policy
    acceptance = [r for r in policy.gates if isinstance(r, AcceptanceRule)]
    if (
        not policy.replay.early_stopping
        or pair.decoding.method is Method.NONE
        or not any(rule.needs_break_even for rule in acceptance)
    ):
        return ()
    rule = next((r for r in policy.gates if isinstance(r, SpeedupRule)), SpeedupRule())
    return tuple(c for c in rule.gated(setting.profile.concurrencies) if c in measured)


def _record(
    ws: Workspace,
    candidate: Candidate,
    run: Run,
    options: EvaluateOptions,
    engine_factory: Callable[[ServingProfile], Engine],
    progress: Progress | None,
) -> Recorded:
    """Run what is not stored yet: the candidate's own passes, then what it is compared with."""
    began = time.monotonic()
    plan = replay_plan(candidate.pair, candidate.setting, budget_s=options.budget_s)
    assert candidate.setting.head.slice_digest
    traffic = load_slice(ws, candidate.setting.head.slice_digest)
    engine = engine_factory(candidate.setting.profile)
    looks = Looks(
        candidate,
        traffic,
        candidate.setting.policy.alpha * 2.0**-run.attempt,
        goes_on_anyway=options.goes_on_anyway,
        incumbent=lambda: longest_known(ws, candidate, engine.describe()),
    )
    recorded = _replayed(ws, candidate, run, plan, traffic, engine, looks, progress)
    if options.budget_s is not None:
        left = options.budget_s - (time.monotonic() - began)
        if left <= 0.0:
            return recorded
        plan = replace(plan, budget_s=left)
    try:
        return _compared(
            ws, candidate, run, recorded, plan, traffic, looks, engine_factory, progress
        )
    except Refused as error:  # servers that run already serve one pair
        note = f"not compared with production: {error.message}"
        return replace(recorded, notes=(*recorded.notes, note))


def _replayed(
    ws: Workspace,
    candidate: Candidate,
    run: Run,
    plan: ReplayPlan,
    traffic: TrafficSlice,
    engine: Engine,
    looks: Looks,
    progress: Progress | None,
) -> Recorded:
    """The candidate's own passes."""
    with materialise(ws, candidate.pair) as pair:
        recorded = replay(
            engine,
            pair,
            traffic,
            plan,
            ParquetTraces(run.traces_dir),
            progress,
            looks.stop,
            more_blocks=looks.more_blocks,
            goes_on=looks.goes_on,
            screened=looks.screened,
        )
        stop, policy = recorded.early_stop, candidate.setting.policy
        if not looks.failed and (stop is None or not stop.undecided):
            alpha = policy.alpha * 2.0**-run.attempt
            recorded = teacher_forced(
                recorded, pair, traffic, policy=policy, alpha=alpha, progress=progress
            )
    notes = length_notes(candidate.pair, recorded.max_model_len)
    notes = (*notes, *answer_notes(recorded.acceptance, recorded.engine.name))
    recorded = replace(recorded, notes=(*recorded.notes, *notes))
    stop = recorded.early_stop
    if stop is None or stop.undecided:
        return recorded
    return replace(recorded, early_stop=replace(stop, why=looks.why))


def _compared(
    ws: Workspace,
    candidate: Candidate,
    run: Run,
    recorded: Recorded,
    plan: ReplayPlan,
    traffic: TrafficSlice,
    looks: Looks,
    engine_factory: Callable[[ServingProfile], Engine],
    progress: Progress | None,
) -> Recorded:
    """The other pairs on the same requests: production, and its draft on a new target.

    Production on its own, other target is only shown, so a part of the requests is enough there;
    what has failed needs no comparison with it.
    """
    n = len(recorded.acceptance)
    judged = candidate.same_target and not looks.failed
    if candidate.incumbent is not None and candidate.incumbent_has_draft and not looks.failed:
        incumbent = incumbent_traces(
            ws,
            candidate.incumbent,
            candidate.setting,
            traffic,
            plan,
            run.folder,
            recorded.engine,
            n if judged else min(n, N_REQUESTS),
            engine_factory,
            progress,
        )
        recorded = replace(recorded, incumbent=incumbent)
    found = carried_over(
        ws,
        candidate,
        traffic,
        plan,
        run.folder,
        recorded.engine,
        n,
        engine_factory,
        progress,
        with_speed=not looks.failed,
    )
    return replace(
        recorded,
        carry_over=found.acceptance,
        carry_over_speed=found.speed,
        carry_over_note=found.note,
    )


def length_notes(pair: Pair, max_model_len: int) -> tuple[str, ...]:
    """What the slice asks of a draft that reads fewer positions (tokens, prompt + output + K)."""
    positions = pair.draft.architecture.max_position_embeddings if pair.draft else 0
    if not 0 < positions < max_model_len:  # 0 is "not stated"
        return ()
    return (
        f"requests take up to {max_model_len} positions and the draft reads {positions}: what is "
        "beyond them is generated without a draft",
    )
