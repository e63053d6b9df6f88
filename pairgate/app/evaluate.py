"""Evaluate a version: slice -> replay -> measure -> judge -> evidence in the registry."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate import __version__
from pairgate.app.engines import engine_for
from pairgate.app.incumbent import incumbent_traces, stored_incumbent
from pairgate.app.register import materialise
from pairgate.app.review import write_report
from pairgate.app.runs import Run, open_run
from pairgate.app.setting import LineSetting, line_setting
from pairgate.app.workspace import Workspace, now
from pairgate.domain.canonical import digest_of
from pairgate.domain.evidence import Binding, Evaluation, Provenance
from pairgate.domain.recorded import Recorded, ReplayPlan
from pairgate.domain.trace import Phase, TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.errors import EvidenceMissing
from pairgate.fidelity import compare_outputs
from pairgate.judge import judge
from pairgate.measure import acceptance_stop, measure, speed_looks
from pairgate.replay import replay
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.domain.pair import Pair, PairVersion, VersionRef
    from pairgate.domain.policy import Policy
    from pairgate.domain.profile import ServingProfile
    from pairgate.ports import Engine, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation that is stored: its digest is what approvals and decisions name."""

    digest: str
    evaluation: Evaluation
    verdict: Verdict
    folder: Path
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What is evaluated, and against what."""

    version: PairVersion
    pair: Pair
    incumbent: PairVersion | None
    setting: LineSetting

    @property
    def same_target(self) -> bool | None:
        """Whether production has the same target; None without an incumbent."""
        if self.incumbent is None:
            return None
        return self.incumbent.target_digest == self.version.target_digest

    @property
    def run_key(self) -> str:
        """Stored blocks may be reused only where all of this is equal."""
        head = self.setting.head
        return digest_of(
            [
                self.version.pair_digest,
                head.policy_digest,
                head.slice_digest,
                head.profile_digest,
                self.incumbent.pair_digest if self.incumbent else None,
                self.setting.policy.seed,
                __version__,
            ]
        )


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
        return _conclude(ws, candidate, run, recorded, command)


def judge_again(ws: Workspace, ref: VersionRef, *, policy: Policy | None = None) -> Evaluated:
    """Judge the newest stored traces of a version again; it is one more look, so one attempt.

    With `policy` the evidence is bound to that policy's digest: promote accepts it only once the
    line is set to it.
    """
    from pairgate.app.inspect import newest_evidence

    candidate = _candidate(ws, ref)
    row = newest_evidence(ws, candidate.version)
    stored = ws.registry.evaluation(row.digest)
    if policy is not None:
        candidate = _under_policy(ws, candidate, policy)
    version, head = candidate.version, candidate.setting.head
    assert head.policy_digest and head.slice_digest
    attempt = ws.registry.start_attempt(
        version.line,
        version.number,
        version.pair_digest,
        head.policy_digest,
        head.slice_digest,
        now(),
    )
    folder = Path(row.folder)
    recorded = _recorded_again(stored.evaluation, folder)
    run = Run(
        folder=folder,
        attempt=attempt,
        started_at=stored.evaluation.provenance.started_at,
        resumed=False,
    )
    return _conclude(ws, candidate, run, recorded, f"pairgate judge {ref}")


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


def _under_policy(ws: Workspace, candidate: Candidate, policy: Policy) -> Candidate:
    from pairgate.policyfile import policy_document

    ws.registry.save_policy(policy.digest, policy.name, policy_document(policy), now())
    head = replace(candidate.setting.head, policy_digest=policy.digest)
    return replace(candidate, setting=replace(candidate.setting, head=head, policy=policy))


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
    alpha = setting.policy.alpha * 2.0**-run.attempt
    sink = ParquetTraces(run.traces_dir)
    with materialise(ws, candidate.pair) as pair:
        recorded = replay(
            engine_factory(setting.profile),
            pair,
            setting.traffic,
            plan,
            sink,
            progress,
            acceptance_stop(setting.policy, alpha=alpha),
            more_blocks=speed_looks(setting.policy, alpha=alpha),
        )
    if candidate.incumbent is None or not candidate.same_target:
        return recorded
    incumbent = incumbent_traces(
        ws,
        candidate.incumbent,
        setting,
        plan,
        run.folder,
        recorded.engine,
        len(recorded.acceptance),
        engine_factory,
        progress,
    )
    return replace(recorded, incumbent=incumbent)


def _recorded_again(evaluation: Evaluation, folder: Path) -> Recorded:
    """What the replay saw, from its stored blocks and the facts in its evidence."""
    batches = ParquetTraces(folder / "traces").load_all()
    by_phase = {p: [b for b in batches if b.phase is p] for p in Phase}
    acceptance = by_phase[Phase.ACCEPTANCE]
    if not acceptance:
        raise EvidenceMissing(
            f"the traces of this evaluation are gone from {folder}",
            hint=f"run: pairgate evaluate {evaluation.line}@{evaluation.version}",
        )
    return Recorded(
        boundary=evaluation.measurements.boundary,
        acceptance=TraceBatch.concat(sorted(acceptance, key=lambda b: b.block)),
        speed=tuple(by_phase[Phase.SPEED]),
        control=tuple(by_phase[Phase.CONTROL]),
        engine=evaluation.provenance.engine,
        max_model_len=0,
        incumbent=stored_incumbent(folder),
        memory=evaluation.measurements.memory,
    )


def _conclude(
    ws: Workspace, candidate: Candidate, run: Run, recorded: Recorded, command: str
) -> Evaluated:
    """Measure, judge, store, and leave the rest of the world to the outbox."""
    setting, version = candidate.setting, candidate.version
    policy = setting.policy
    alpha = policy.alpha * 2.0**-run.attempt
    fidelity = compare_outputs(recorded)
    measurements = measure(recorded, policy=policy, alpha=alpha, fidelity=fidelity)
    verdict = judge(
        measurements,
        policy,
        incumbent_same_target=candidate.same_target,
        concurrencies=setting.profile.concurrencies,
        engine=recorded.engine.name,
        method=candidate.pair.decoding.method,
        early_stop=recorded.early_stop,
        warnings=recorded.notes,
    )
    evaluation = Evaluation(
        line=version.line,
        version=version.number,
        attempt=run.attempt,
        alpha=alpha,
        binding=_binding(candidate, recorded),
        measurements=measurements,
        provenance=Provenance(
            engine=recorded.engine,
            pairgate_version=__version__,
            seed=policy.seed,
            command=command or f"pairgate evaluate {version}",
            host=platform.node(),
            started_at=run.started_at,
            finished_at=now(),
            trace_files=ParquetTraces(run.traces_dir).files(),
        ),
    )
    if verdict.outcome is Outcome.ERROR:  # an invalid evaluation is no look
        head = setting.head
        assert head.policy_digest and head.slice_digest
        ws.registry.release_attempt(
            version.pair_digest, head.policy_digest, head.slice_digest, run.attempt
        )
    return _store(ws, candidate, run, evaluation, verdict, recorded)


def _store(
    ws: Workspace,
    candidate: Candidate,
    run: Run,
    evaluation: Evaluation,
    verdict: Verdict,
    recorded: Recorded,
) -> Evaluated:
    from pairgate.review.ci import verdict_document

    digest = evaluation.digest
    write_report(ws, evaluation, verdict, candidate.setting.policy, recorded.acceptance, run.folder)
    document = verdict_document(evaluation, verdict)
    (run.folder / "verdict.json").write_text(json.dumps(document, indent=2, ensure_ascii=False))
    ws.registry.save_evaluation(evaluation, verdict, now(), str(run.folder))
    if not run.resumed or (run.folder / "run.json").exists():
        run.finish()
    return Evaluated(
        digest=digest,
        evaluation=evaluation,
        verdict=verdict,
        folder=run.folder,
        resumed=run.resumed,
    )


def _binding(candidate: Candidate, recorded: Recorded) -> Binding:
    head = candidate.setting.head
    assert head.policy_digest and head.slice_digest and head.profile_digest
    return Binding(
        pair_digest=candidate.version.pair_digest,
        target_digest=candidate.version.target_digest,
        policy_digest=head.policy_digest,
        slice_digest=head.slice_digest,
        profile_digest=head.profile_digest,
        engine=recorded.engine.name,
        engine_version=recorded.engine.version,
        hardware_class=recorded.engine.hardware_class,
        incumbent_digest=candidate.incumbent.pair_digest if candidate.incumbent else None,
    )
