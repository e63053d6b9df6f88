"""All decisions for an auditor: who, how we know, what, on what evidence; as rows, CSV or HTML.

Reasons, names and warnings are text of users: CSV cells never begin like a formula, HTML is
escaped, and control characters are shown instead of sent.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from html import escape
from typing import TYPE_CHECKING

from pairgate.app.audit import Audited, AuditHead, heads, verify
from pairgate.app.workspace import now

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.records import Approval, EvidenceRow
    from pairgate.domain.release import Decision

# OWASP, "CSV injection": spreadsheets take these at the start of a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One decision as an auditor reads it; '' is none. The digests are whole."""

    line: str
    sequence: int
    at: str
    kind: str
    version: str
    production: str
    previous: str
    actor: str
    identity_source: str
    reason: str
    override: str
    reinstate: str
    evaluation: str
    verdict: str
    attempt: str
    measured_at: str
    approvals: str
    incumbent: str
    policy: str
    slice: str
    profile: str
    request_id: str
    warnings: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Decisions between two times, of one line or all, with the state of the whole history."""

    made_at: str
    since: str | None
    until: str | None
    rows: tuple[ReportRow, ...]
    heads: tuple[AuditHead, ...]
    audited: Audited


def audit_report(
    ws: Workspace, line: str | None = None, *, since: str | None = None, until: str | None = None
) -> AuditReport:
    """Times are ISO 8601 in UTC with microseconds, both included. Raises `NotFound`."""
    ends = heads(ws, line)
    rows: list[ReportRow] = []
    for end in ends:
        evidence = {row.digest: row for row in ws.registry.evaluations(end.line)}
        for decision in ws.registry.decisions(end.line, since=since, until=until):
            digest = decision.evaluation_digest
            approvals = ws.registry.approvals(digest) if digest is not None else []
            rows.append(_row(decision, evidence.get(digest or ""), approvals))
    return AuditReport(
        made_at=now(),
        since=since,
        until=until,
        rows=tuple(rows),
        heads=ends,
        audited=verify(ws, line),
    )


def as_csv(report: AuditReport) -> str:
    """One row per decision after a row of names; RFC 4180, every cell quoted."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow([f.name for f in fields(ReportRow)])
    writer.writerows([_harmless(shown(str(v))) for v in astuple(row)] for row in report.rows)
    return out.getvalue()


def as_html(report: AuditReport) -> str:
    """One page without scripts, links or anything that is loaded."""
    problems = report.audited.problems
    state = "everything adds up" if not problems else f"{len(problems)} problems"
    named = [f.name.replace("_", " ") for f in fields(ReportRow)]
    period = f"from {report.since or 'the beginning'} until {report.until or 'now'}"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>pairgate audit report</title><style>{_STYLE}</style></head><body>",
        f"<h1>Audit report</h1><p>Made {_html(report.made_at)}; decisions {_html(period)}. "
        f"The whole history was verified: {_html(state)}.</p>",
        _list(problems),
        "<h2>Heads</h2>",
        _list([str(head) for head in report.heads]),
        f"<h2>{len(report.rows)} decisions</h2><table><thead>{_cells(named, 'th')}</thead><tbody>",
        *(_cells([str(value) for value in astuple(row)], "td") for row in report.rows),
        "</tbody></table></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


_STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
    "th,td{border:1px solid #999;padding:.3em;text-align:left;vertical-align:top;"
    "max-width:24em;overflow-wrap:anywhere}"
)


def shown(text: str) -> str:
    """Control characters as escapes; line breaks too, so that a row stays a row."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.lstrip(" '\"").startswith(_FORMULA) else cell


def _html(text: str) -> str:
    return escape(shown(text), quote=True)


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_html(item)}</li>' for item in items)}</ul>" if items else ""


def _cells(values: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{_html(value)}</{tag}>' for value in values)}</tr>"


def _row(
    decision: Decision, evidence: EvidenceRow | None, approvals: Sequence[Approval]
) -> ReportRow:
    d = decision
    return ReportRow(
        line=d.line,
        sequence=d.sequence,
        at=d.at,
        kind=d.kind.value,
        version=_version(d.line, d.version),
        production=_version(d.line, d.production),
        previous=_version(d.line, d.previous),
        actor=d.actor,
        identity_source=d.identity_source,
        reason=d.reason,
        override="yes" if d.override else "",
        reinstate="yes" if d.reinstate else "",
        evaluation=d.evaluation_digest or "",
        verdict=evidence.outcome if evidence else "",
        attempt=str(evidence.attempt) if evidence else "",
        measured_at=evidence.measured_at if evidence else "",
        approvals="; ".join(f"{a.name} by {a.actor} ({a.identity_source})" for a in approvals),
        incumbent=d.incumbent_digest or "",
        policy=d.policy_digest or "",
        slice=d.slice_digest or "",
        profile=" ".join(p for p in (d.profile_digest, *d.profiles) if p),
        request_id=d.request_id or "",
        warnings="; ".join(d.warnings),
        hash=d.hash,
    )


def _version(line: str, number: int | None) -> str:
    return "" if number is None else f"{line}@{number}"
