"""From what a replay saw to stored evidence: measure, judge, write, register."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate import __version__
from pairgate.app.incumbent import CARRY_OVER_FOLDER, INCUMBENT_FOLDER
from pairgate.app.review import write_report
from pairgate.app.workspace import Workspace, now
from pairgate.domain.canonical import digest_of
from pairgate.domain.evidence import Binding, Evaluation, Provenance
from pairgate.domain.pair import Method
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.engines.hardware import cpu_hardware_class
from pairgate.fidelity import compare_outputs
from pairgate.judge import judge
from pairgate.measure import measure
from pairgate.store.streams import naming
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.app.runs import Run
    from pairgate.app.setting import LineSetting
    from pairgate.domain.pair import Pair, PairVersion
    from pairgate.domain.recorded import Recorded


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
    engine_key: str = ""

    @property
    def same_target(self) -> bool | None:
        """Whether production has the same target; None without an incumbent."""
        if self.incumbent is None:
            return None
        return self.incumbent.target_digest == self.version.target_digest

    @property
    def incumbent_has_draft(self) -> bool:
        """False where production serves its target alone: it has no acceptance to compare with."""
        return self.incumbent is not None and self.incumbent.method is not Method.NONE

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
                cpu_hardware_class(),
                *(_installed(name) for name in ("torch", "transformers")),
                *((self.engine_key,) if self.engine_key else ()),
            ]
        )


def _installed(package: str) -> str:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return "absent"


def conclude(
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
        incumbent_has_draft=candidate.incumbent_has_draft,
        concurrencies=setting.profile.concurrencies,
        engine=recorded.engine.name,
        method=candidate.pair.decoding.method,
        prefix_cache=setting.profile.prefix_caching,
        warnings=recorded.notes,
        version=str(version),
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
            trace_files=trace_files(run.folder),
        ),
    )
    if verdict.outcome is Outcome.ERROR:  # an invalid evaluation is no look
        head = setting.head
        assert head.policy_digest and head.slice_digest
        ws.registry.release_attempt(
            version.pair_digest, head.policy_digest, head.slice_digest, run.attempt
        )
    return _store(ws, candidate, run, evaluation, verdict, recorded)


def trace_files(folder: Path) -> tuple[tuple[str, str], ...]:
    """(path, digest) of every stored block of a run, also of the pairs it was compared with."""
    return tuple(
        (f"{prefix}{name}", digest)
        for prefix, room in (
            ("", "traces"),
            (f"{INCUMBENT_FOLDER}/", INCUMBENT_FOLDER),
            (f"{CARRY_OVER_FOLDER}/", CARRY_OVER_FOLDER),
        )
        for name, digest in ParquetTraces(folder / room).files()
    )


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
    path = run.folder / "verdict.json"
    with naming(path):
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False))
    ws.registry.save_evaluation(evaluation, verdict, now(), run.folder.name)
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
