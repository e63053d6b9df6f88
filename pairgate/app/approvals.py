"""Who agrees to an evaluation: people by `approve`, and what a reviewer tagged in MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairgate import promote as rules
from pairgate.app.actor import current_actor
from pairgate.app.situation import read_situation
from pairgate.app.workspace import now
from pairgate.domain.records import UNVERIFIED_TAG, Approval
from pairgate.domain.text import check_name
from pairgate.errors import EvidenceMissing, InvalidInput, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import PairVersion, VersionRef
    from pairgate.domain.records import EvidenceRow
    from pairgate.domain.release import Actor

TAG_NAME = "mlflow"
TAG_ACTOR = "(nobody is named)"


def approve(
    ws: Workspace,
    ref: VersionRef,
    name: str,
    *,
    evaluation: str | None = None,
    actor: Actor | None = None,
) -> tuple[Approval, ...]:
    """Agree to the evidence of a version; each approval binds to one evaluation's digest.

    `evaluation` names it by the start of its digest; otherwise it is the evidence that promote
    would stand on now (one PASS per profile), or the newest PASS where there is none such. Raises
    `EvidenceMissing` when the version has no PASS, `NotFound` for an unknown evaluation.
    """
    check_name("the name of the approval", name)
    version = ws.registry.version(ref)
    by, at = actor or current_actor(ws), now()
    made = tuple(
        Approval(
            evaluation_digest=row.digest,
            line=version.line,
            version=version.number,
            name=name,
            actor=by.name,
            identity_source=by.source,
            created_at=at,
        )
        for row in _wanted(ws, version, evaluation)
    )
    for approval in made:
        ws.registry.add_approval(approval)
    return made


def record_tags(ws: Workspace, version: PairVersion) -> tuple[str, ...]:
    """Record what reviewers tagged in MLflow on the evidence that promote would stand on.

    A tag has no author: it is recorded as `unverified (MLflow tag)` and counts only where the
    policy says so. Returns what to warn of: MLflow that could not be asked, where that matters.
    """
    from pairgate.app.review import mlflow_settings

    settings = mlflow_settings(ws)
    if settings is None or (settings.embedded and not (ws.home / "mlflow" / "mlflow.db").is_file()):
        return ()
    with ws.registry.snapshot(version.line) as view:
        situation = read_situation(view)
    try:
        rows = [fresh.row for fresh in rules.usable(situation, version, at=now())]
    except (EvidenceMissing, InvalidInput):
        return ()
    from pairgate.review.mlflow_tags import Tagged, approves, approving_tags

    tagged = Tagged(line=version.line, pair_digest=version.pair_digest)
    try:
        values = approving_tags(settings.tracking_uri, tagged, ws.environ)
    except Unavailable as error:
        counts = situation.rules.approvals_count_tags
        return (f"approvals by tag are not known: {error.message}",) if counts else ()
    for row in rows:
        if any(approves(value, row.digest) for value in values):
            ws.registry.add_approval(_from_tag(version, row))
    return ()


def _from_tag(version: PairVersion, row: EvidenceRow) -> Approval:
    return Approval(
        evaluation_digest=row.digest,
        line=version.line,
        version=version.number,
        name=TAG_NAME,
        actor=TAG_ACTOR,
        identity_source=UNVERIFIED_TAG,
        created_at=now(),
    )


def _wanted(ws: Workspace, version: PairVersion, evaluation: str | None) -> Iterable[EvidenceRow]:
    with ws.registry.snapshot(version.line) as view:
        situation = read_situation(view)
    mine = [e for e in situation.evidence if e.version == version.number]
    if evaluation is not None:
        return [_named(mine, version, evaluation)]
    try:
        return [fresh.row for fresh in rules.usable(situation, version, at=now())]
    except (EvidenceMissing, InvalidInput):
        passes = [row for row in mine if row.outcome == "PASS"]
    if not passes:
        raise EvidenceMissing(
            f"{version} has no PASS to approve", hint=f"run: pairgate evaluate {version}"
        )
    return passes[-1:]


def _named(rows: list[EvidenceRow], version: PairVersion, evaluation: str) -> EvidenceRow:
    wanted = evaluation.lower().removeprefix("sha256:")
    found = [r for r in rows if r.digest.removeprefix("sha256:").startswith(wanted)]
    if len(wanted) < 6 or len(found) != 1:
        raise NotFound(
            f"{evaluation!r} does not name one evaluation of {version}",
            hint="give at least 6 hex digits of its digest, as the report shows them",
        )
    if found[0].outcome != "PASS":
        raise EvidenceMissing(f"that evaluation of {version} says {found[0].outcome}, not PASS")
    return found[0]
