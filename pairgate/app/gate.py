"""The CI step around an evaluation: reuse valid evidence, write the files that CI systems read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.evidence import Evaluated
from pairgate.app.release import usable_evidence
from pairgate.review.ci import junit_xml, markdown_summary, verdict_document

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import VersionRef
    from pairgate.domain.records import EvidenceRow


def valid_evidence(ws: Workspace, ref: VersionRef) -> Evaluated | None:
    """The newest evaluation that promote would accept now, or None. A FAIL is never reused to
    stop a new attempt; only a PASS ends the question.

    What is in production already answers with the PASS that put it there, while the line is
    judged by the same things: a CI job that is run again must not replay a pair against itself.
    """
    row = usable_evidence(ws, ref) or _placed_by(ws, ref)
    if row is None:
        return None
    stored = ws.registry.evaluation(row.digest)
    return Evaluated(
        digest=row.digest,
        evaluation=stored.evaluation,
        verdict=stored.verdict,
        folder=ws.evaluation_folder(row.folder),
    )


def _placed_by(ws: Workspace, ref: VersionRef) -> EvidenceRow | None:
    version = ws.registry.version(ref)
    head = ws.registry.head(version.line)
    if head.production != version.number:
        return None
    placed = [d for d in ws.registry.decisions(version.line) if d.version == version.number]
    digests = [d.evaluation_digest for d in placed if d.evaluation_digest]
    rows = {r.digest: r for r in ws.registry.evaluations(version.line, version.number)}
    row = rows.get(digests[-1]) if digests else None
    judged_by = (head.policy_digest, head.slice_digest, head.profile_digest)
    if row is None or row.outcome != "PASS":
        return None
    return row if (row.policy_digest, row.slice_digest, row.profile_digest) == judged_by else None


def write_ci_files(
    done: Evaluated, *, verdict: Path | None, junit: Path | None, summary: Path | None
) -> None:
    """Write what was asked for; the summary is appended, as CI systems expect."""
    if verdict is not None:
        document = verdict_document(done.evaluation, done.verdict)
        verdict.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    if junit is not None:
        junit.write_text(junit_xml(done.evaluation, done.verdict))
    if summary is not None:
        with summary.open("a", encoding="utf-8") as handle:
            handle.write(markdown_summary(done.evaluation, done.verdict) + "\n")
