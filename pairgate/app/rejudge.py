"""Judge stored traces again, under the line's policy or another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.carry_over import stored_carry_over
from pairgate.app.evidence import Candidate, Evaluated, conclude, trace_files
from pairgate.app.incumbent import CARRY_OVER_FOLDER, INCUMBENT_FOLDER, stored_incumbent
from pairgate.app.inspect import newest_evidence
from pairgate.app.runs import Run, new_folder
from pairgate.app.setting import LineSetting, line_setting
from pairgate.app.workspace import Workspace, now
from pairgate.domain.pair import VersionRef
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import Phase, TraceBatch
from pairgate.errors import EvidenceMissing, EvidenceStale, IntegrityError
from pairgate.fidelity import at_alpha
from pairgate.policyfile import policy_document, policy_from_document
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.policy import Policy
    from pairgate.domain.records import EvidenceRow
    from pairgate.store.sql import StoredEvaluation


def judge_again(
    ws: Workspace, ref: VersionRef, *, policy: Policy | None = None, profile: str | None = None
) -> Evaluated:
    """Judge the newest stored traces of a version again; it is one more look, so one attempt.
    With `profile` (NAME or NAME@N) the newest that ran on it.

    The evidence stays bound to the slice, profile and incumbent of its replay, and is bound to
    `policy` (the line's, unless given): promote accepts it where the line agrees. The slice's
    texts are not needed. Raises `EvidenceMissing` without stored traces, `EvidenceStale` when
    `policy` would have replayed something else, `IntegrityError` when the traces are not those
    of the evaluation.
    """
    version = ws.registry.version(ref)
    row = newest_evidence(ws, version, profile)
    stored = ws.registry.evaluation(row.digest)
    policy = policy or line_setting(ws, version.line).policy
    _require_same_replay(ws, row, policy)
    source = ws.evaluation_folder(row.folder)
    if not (source / "traces").is_dir():
        raise EvidenceMissing(
            f"the traces of this evaluation are gone from {source}",
            hint=f"run: pairgate evaluate {version}",
        )
    candidate = _as_replayed(ws, version, row, policy)
    attempt = ws.registry.start_attempt(
        version.line,
        version.number,
        version.pair_digest,
        candidate.setting.policy.digest,
        row.slice_digest,
        now(),
    )
    run = Run(
        folder=_folder_beside(source, attempt),
        attempt=attempt,
        started_at=stored.evaluation.provenance.started_at,
        resumed=False,
    )
    alpha = candidate.setting.policy.alpha * 2.0**-attempt
    recorded = _recorded_again(stored, run.folder, alpha)
    return conclude(ws, candidate, run, recorded, f"pairgate judge {ref}")


def _require_same_replay(ws: Workspace, row: EvidenceRow, policy: Policy) -> None:
    """Thresholds may differ, what was run may not: the traces would be evidence of settings that
    never acted, and looks at the speed blocks would spend another alpha than they took."""
    replayed = policy_from_document(ws.registry.policy_document(row.policy_digest))
    if _what_ran(replayed) != _what_ran(policy):
        raise EvidenceStale(
            f"policy {policy.name} replays with other settings than the stored traces had "
            "([replay], [fallback] or seed)",
            hint=f"set it on the line and run: pairgate evaluate {row.line}@{row.version}",
        )


def _what_ran(policy: Policy) -> tuple[object, ...]:
    # Decides how much of a run is kept, not how it ran. Looks on the way do count: they spend.
    replay = replace(policy.replay, max_failed_share=0.0)
    return (replay, policy.fallback, policy.seed)


def _as_replayed(
    ws: Workspace, version: PairVersion, row: EvidenceRow, policy: Policy
) -> Candidate:
    """The version as its stored evaluation met it, under `policy`."""
    if not ws.registry.has_policy(policy.digest):  # what the line shows is the line's to change
        ws.registry.save_policy(policy.digest, policy.name, policy_document(policy), now())
    head = replace(
        ws.registry.head(version.line),
        policy_digest=policy.digest,
        slice_digest=row.slice_digest,
        profile_digest=row.profile_digest,
    )
    incumbent = (
        None
        if row.incumbent_digest is None
        else ws.registry.version(VersionRef(line=version.line, selector=row.incumbent_digest))
    )
    return Candidate(
        version=version,
        pair=ws.registry.pair(version.pair_digest),
        incumbent=incumbent,
        setting=LineSetting(
            head=head, policy=policy, profile=ws.registry.profile(row.profile_digest)
        ),
    )


def _folder_beside(folder: Path, attempt: int) -> Path:
    """A folder for another verdict on the same traces: the first report is never overwritten."""
    beside = new_folder(folder.parent, f"{folder.name}-judged-{attempt}")
    for name in ("traces", INCUMBENT_FOLDER, CARRY_OVER_FOLDER):
        if (folder / name).is_dir():
            (beside / name).symlink_to(Path("..", folder.name, name))
    return beside


def _recorded_again(stored: StoredEvaluation, folder: Path, alpha: float) -> Recorded:
    """What the replay saw, from its stored blocks and the facts in its evidence."""
    evaluation = stored.evaluation
    batches = ParquetTraces(folder / "traces").load_all()
    by_phase = {p: [b for b in batches if b.phase is p] for p in Phase}
    acceptance = by_phase[Phase.ACCEPTANCE]
    if not acceptance:
        raise EvidenceMissing(
            f"the traces of this evaluation are gone from {folder}",
            hint=f"run: pairgate evaluate {evaluation.line}@{evaluation.version}",
        )
    if trace_files(folder) != evaluation.provenance.trace_files:
        raise IntegrityError(
            f"the traces in {folder} are not those that the evaluation was made from",
            hint=f"run: pairgate evaluate {evaluation.line}@{evaluation.version}",
        )
    carry_over, carry_over_speed = stored_carry_over(folder)
    fidelity = evaluation.measurements.fidelity
    return Recorded(
        boundary=evaluation.measurements.boundary,
        acceptance=TraceBatch.concat(sorted(acceptance, key=lambda b: b.block)),
        speed=tuple(by_phase[Phase.SPEED]),
        control=tuple(by_phase[Phase.CONTROL]),
        engine=evaluation.provenance.engine,
        max_model_len=0,
        incumbent=stored_incumbent(folder),
        memory=evaluation.measurements.memory,
        early_stop=evaluation.measurements.early_stop,
        planned=evaluation.measurements.plan,
        carry_over=carry_over,
        carry_over_speed=carry_over_speed,
        carry_over_note=evaluation.measurements.carry_over,
        law=None if fidelity is None or fidelity.law is None else at_alpha(fidelity.law, alpha),
        control_law=None if fidelity is None else fidelity.control_law,
    )
