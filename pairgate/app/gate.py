"""The CI step around an evaluation: reuse valid evidence, write the files that CI systems read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.evidence import Evaluated
from pairgate.app.release import usable_evidence
from pairgate.app.setting import line_setting
from pairgate.review.ci import junit_xml, markdown_summary, verdict_document

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import VersionRef
    from pairgate.domain.records import EvidenceRow
    from pairgate.domain.release import Head


def valid_evidence(ws: Workspace, ref: VersionRef, profile: str | None = None) -> Evaluated | None:
    """The newest evaluation that promote would accept now for the line's own profile, or for
    `profile` (NAME or NAME@N); None without. A FAIL is never reused to stop a new attempt; only a
    PASS ends the question.

    What is in production already answers with the PASS that put it there, while the line is
    judged by the same things: a CI job that is run again must not replay a pair against itself.
    """
    head = line_setting(ws, ref.line, profile).head
    row = usable_evidence(ws, ref, head.profile_digest) or _placed_by(ws, ref, head)
    if row is None:
        return None
    stored = ws.registry.evaluation(row.digest)
    return Evaluated(
        digest=row.digest,
        evaluation=stored.evaluation,
        verdict=stored.verdict,
        folder=ws.evaluation_folder(row.folder),
    )


def _placed_by(ws: Workspace, ref: VersionRef, head: Head) -> EvidenceRow | None:
    """The PASS on the profile of `head` that put the version into production."""
    version = ws.registry.version(ref)
    if head.production != version.number:
        return None
    decisions = ws.registry.decisions(version.line)
    placed = [d for d in decisions if d.version == version.number and d.evaluation_digest]
    if not placed or head.profile_digest not in (placed[-1].profile_digest, *placed[-1].profiles):
        return None
    judged_by = (head.policy_digest, head.slice_digest, head.profile_digest)
    rows = [
        r
        for r in ws.registry.evaluations(version.line, version.number)
        if (r.policy_digest, r.slice_digest, r.profile_digest) == judged_by
        and r.outcome == "PASS"
        and r.created_at <= placed[-1].at
    ]
    return rows[-1] if rows else None


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
