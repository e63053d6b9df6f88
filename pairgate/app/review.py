"""What people review: the report's file, the same in the terminal, and the MLflow mirror."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairgate.errors import InvalidInput, PairgateError
from pairgate.store.streams import naming

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.evidence import Evaluation
    from pairgate.domain.pair import Pair
    from pairgate.domain.policy import Policy
    from pairgate.domain.release import Decision
    from pairgate.domain.trace import TraceBatch
    from pairgate.domain.verdict import Verdict
    from pairgate.review.mlflow_mirror import Drift, MlflowTracker
    from pairgate.review.story import Labels

REPORT = "report.html"
_OFF = ("off", "0", "false", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowSettings:
    """Where the mirror is. `embedded`: in the home, without a server."""

    tracking_uri: str
    artifact_root: str | None
    embedded: bool


def write_report(
    ws: Workspace,
    evaluation: Evaluation,
    verdict: Verdict,
    policy: Policy,
    batch: TraceBatch | None,
    folder: Path,
) -> Path:
    """Write `report.html` into the evaluation's folder, whole or not at all; returns its path."""
    from pairgate.review.report import report_html

    text = report_html(
        evaluation,
        verdict,
        policy,
        labels=labels(ws, evaluation),
        acceptance=batch,
        texts=_texts(ws, evaluation) if policy.show_texts else None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REPORT
    staged = folder / f".{REPORT}.tmp"
    with naming(path):
        staged.write_text(text, encoding="utf-8")
        os.replace(staged, path)
    return path


def terminal_summary(
    ws: Workspace, evaluation: Evaluation, verdict: Verdict, *, colour: bool = False
) -> str:
    """What `evaluate`, `gate` and `show` print: verdict, comparison, domains and speed."""
    return _terminal(ws, evaluation, verdict, None, brief=True, colour=colour)


def terminal_report(
    ws: Workspace, evaluation: Evaluation, verdict: Verdict, *, colour: bool = False
) -> str:
    """The whole report as text, with histograms where the traces are still there.

    Raises `IntegrityError` when a stored trace is damaged.
    """
    batch = _acceptance_traces(ws, evaluation)
    return _terminal(ws, evaluation, verdict, batch, brief=False, colour=colour)


def labels(ws: Workspace, evaluation: Evaluation) -> Labels:
    """What the digests of an evaluation are called in this registry."""
    from pairgate.review.story import Labels

    binding = evaluation.binding
    incumbents = [
        v
        for v in ws.registry.versions(evaluation.line)
        if v.pair_digest == binding.incumbent_digest
    ]
    shown = {evaluation.version, *(v.number for v in incumbents)}
    n_slices = ws.registry.n_families(binding.pair_digest, binding.policy_digest, 30.0)
    note = f"this pair was tried on {n_slices} slices under this policy within 30 days"
    return Labels(
        candidate=f"{evaluation.line}@{evaluation.version}",
        incumbent=str(incumbents[-1]) if incumbents else "",
        pair=_pair_line(ws.registry.pair(binding.pair_digest)),
        notes=(
            *((note,) if n_slices > 1 else ()),
            *(
                f"{made.line}@{made.version} was promoted without a PASS on {made.at[:10]} by "
                f"{made.actor} ({made.identity_source}): {made.reason}"
                for made in _overrides(ws, evaluation.line)
                if made.version in shown
            ),
        ),
    )


def mlflow_settings(ws: Workspace) -> MlflowSettings | None:
    """Where to mirror to, or None: turned off by `PAIRGATE_MLFLOW=off`, or nothing configured and
    MLflow not installed. `PAIRGATE_MLFLOW_TRACKING_URI` wins over `MLFLOW_TRACKING_URI`; without
    either the store is embedded in the home."""
    environ = ws.environ
    if environ.get("PAIRGATE_MLFLOW", "on").strip().lower() in _OFF:
        return None
    uri = environ.get("PAIRGATE_MLFLOW_TRACKING_URI") or environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return MlflowSettings(tracking_uri=uri, artifact_root=None, embedded=False)
    if find_spec("mlflow") is None:
        return None
    folder = ws.home / "mlflow"
    return MlflowSettings(
        tracking_uri=f"sqlite:///{folder / 'mlflow.db'}",
        artifact_root=(folder / "artifacts").as_uri(),
        embedded=True,
    )


def mlflow_tracker(ws: Workspace) -> MlflowTracker | None:
    """The mirror, ready to use, or None where there is none."""
    from pairgate.review.mlflow_mirror import MlflowTracker

    settings = mlflow_settings(ws)
    if settings is None:
        return None
    if settings.embedded:
        (ws.home / "mlflow" / "artifacts").mkdir(parents=True, exist_ok=True)
    return MlflowTracker(tracking_uri=settings.tracking_uri, artifact_root=settings.artifact_root)


def deliver_mlflow(ws: Workspace, kind: str, payload: Mapping[str, Any]) -> None:
    """Bring one outbox message to MLflow: `evaluation` {digest} or `head` {line}. Idempotent; does
    nothing where there is no mirror. Raises `Unavailable`, after which the message stays."""
    tracker = mlflow_tracker(ws)
    if tracker is None:
        return
    if kind == "evaluation":
        line = _mirror_evaluation(ws, tracker, payload["digest"])
        _mirror_head(ws, tracker, line)
    elif kind == "head":
        _mirror_head(ws, tracker, payload["line"])
    else:
        raise InvalidInput(f"MLflow takes no message of kind {kind!r}")


def sync_mlflow(
    ws: Workspace, line: str, progress: Callable[[int, int], None] | None = None
) -> int:
    """Mirror all evaluations of a line, oldest first, and its head; returns how many. Raises
    `InvalidInput` where the mirror is off."""
    tracker = _required_tracker(ws)
    rows = ws.registry.evaluations(line)
    with ws.registry.delivering("mlflow", wait_s=60.0):
        for i, row in enumerate(rows):
            _mirror_evaluation(ws, tracker, row.digest)
            if progress is not None:
                progress(i + 1, len(rows))
        _mirror_head(ws, tracker, line)
    return len(rows)


def mlflow_drift(ws: Workspace, line: str) -> tuple[Drift, ...]:
    """What MLflow shows otherwise than pairgate says; changes nothing."""
    tracker = _required_tracker(ws)
    return tracker.drift(
        ws.registry.head(line),
        ws.registry.versions(line),
        [row.digest for row in ws.registry.evaluations(line)],
    )


def _required_tracker(ws: Workspace) -> MlflowTracker:
    tracker = mlflow_tracker(ws)
    if tracker is None:
        raise InvalidInput(
            "there is no MLflow mirror: it is turned off, or mlflow is not installed",
            hint="unset PAIRGATE_MLFLOW, or install it with: pip install 'pairgate[mlflow]'",
        )
    return tracker


def _mirror_evaluation(ws: Workspace, tracker: MlflowTracker, digest: str) -> str:
    stored = ws.registry.evaluation(digest)
    binding = stored.evaluation.binding
    tracker.log_evaluation(
        stored.evaluation,
        stored.verdict,
        _policy(ws, binding.policy_digest),
        pair=ws.registry.pair(binding.pair_digest),
        report=ws.evaluation_folder(stored.row.folder) / REPORT,
        head=ws.registry.head(stored.row.line),
    )
    return stored.row.line


def _mirror_head(ws: Workspace, tracker: MlflowTracker, line: str) -> None:
    head = ws.registry.head(line)
    evaluated = {row.version for row in ws.registry.evaluations(line)}
    newer = [n for n in evaluated - head.withdrawn if n > (head.production or 0)]
    tracker.set_head(
        head,
        ws.registry.versions(line),
        candidate=max(newer, default=None),
        overrides=_overrides(ws, line),
    )


def _overrides(ws: Workspace, line: str) -> tuple[Decision, ...]:
    return tuple(d for d in ws.registry.decisions(line) if d.override)


def _terminal(
    ws: Workspace,
    evaluation: Evaluation,
    verdict: Verdict,
    batch: TraceBatch | None,
    *,
    brief: bool,
    colour: bool,
) -> str:
    from pairgate.review.terminal import summary_text

    return summary_text(
        evaluation,
        verdict,
        _policy(ws, evaluation.binding.policy_digest),
        labels=labels(ws, evaluation),
        acceptance=batch,
        brief=brief,
        colour=colour,
    )


def _acceptance_traces(ws: Workspace, evaluation: Evaluation) -> TraceBatch | None:
    from pairgate.domain.trace import Arm, Phase, TraceBatch
    from pairgate.store.traces import ParquetTraces

    digest = evaluation.digest
    rows = ws.registry.evaluations(evaluation.line, evaluation.version)
    folder = next((ws.evaluation_folder(row.folder) for row in rows if row.digest == digest), None)
    if folder is None or not (folder / "traces").is_dir():
        return None
    blocks = ParquetTraces(folder / "traces").load_all()
    wanted = [b for b in blocks if b.phase == Phase.ACCEPTANCE and b.arm is Arm.SPEC]
    return TraceBatch.concat(wanted) if wanted else None


def _policy(ws: Workspace, digest: str) -> Policy:
    from pairgate.policyfile import policy_from_document

    return policy_from_document(ws.registry.policy_document(digest))


def _pair_line(pair: Pair) -> str:
    decoding = pair.decoding
    sampling = f", {decoding.draft_sampling} draft" if pair.draft else ""
    sizes = ", ".join(f"{m.role} {m.architecture.n_parameters / 1e6:,.1f} M" for m in pair.models)
    flags = f"; allowed on purpose: {', '.join(pair.flags)}" if pair.flags else ""
    return (
        f"{decoding.method}, K = {decoding.num_speculative_tokens}{sampling}; "
        f"{sizes} parameters{flags}"
    )


def _texts(ws: Workspace, evaluation: Evaluation) -> dict[str, str] | None:
    """Request id -> prompt, while the slice still has its texts."""
    from pairgate.app.slices import load_slice

    try:
        requests = load_slice(ws, evaluation.binding.slice_digest).requests
    except PairgateError:  # purged or expired: the report says that they are gone
        return None
    return {r.id: r.text or r.messages or f"{len(r.token_ids or ())} token ids" for r in requests}
