"""Read the registry: where lines stand, what was decided, what is known of a version.

Nothing here decodes evidence unless it is asked for: `status` stays as fast as its imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.domain.release import Decision, Head, fold
from pairgate.errors import EvidenceMissing

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import Pair, PairVersion, VersionRef
    from pairgate.domain.records import EvidenceRow
    from pairgate.store.sql import StoredEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """One version as `status` shows it. `state` lists its roles, e.g. `production, pinned`."""

    version: int
    state: str
    method: str
    pair_digest: str
    outcome: str | None
    attempt: int | None
    evaluated_at: str | None
    evaluation_digest: str | None
    recommendation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStatus:
    """A line: its head, its versions (newest first) and how its production came about."""

    head: Head
    versions: tuple[VersionStatus, ...]
    last_decision: Decision | None
    overridden: bool
    warnings: tuple[str, ...]
    pending_deliveries: int


def line_statuses(ws: Workspace, line: str | None = None) -> tuple[LineStatus, ...]:
    """All lines, or one. Raises `NotFound` for an unknown line."""
    heads = ws.registry.lines() if line is None else [ws.registry.head(line)]
    return tuple(_line_status(ws, head) for head in heads)


def head_at(ws: Workspace, line: str, at: str) -> Head:
    """Where a line stood at a time (ISO 8601), from the log alone."""
    ws.registry.head(line)
    return fold(line, (d for d in ws.registry.decisions(line) if d.at <= at))


def newest_evidence(ws: Workspace, version: PairVersion) -> EvidenceRow:
    """Raises `EvidenceMissing` when the version was never evaluated."""
    rows = ws.registry.evaluations(version.line, version.number)
    if not rows:
        raise EvidenceMissing(
            f"{version} has not been evaluated", hint=f"run: pairgate evaluate {version}"
        )
    return max(rows, key=lambda r: r.created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDetail:
    """What `show` prints. `newest` is decoded evidence, or None."""

    version: PairVersion
    pair: Pair
    roles: str
    evaluations: tuple[EvidenceRow, ...]
    newest: StoredEvaluation | None


def version_detail(ws: Workspace, ref: VersionRef) -> VersionDetail:
    """Everything about one version: pair, roles, evidence from newest to oldest."""
    version = ws.registry.version(ref)
    rows = tuple(
        sorted(
            ws.registry.evaluations(version.line, version.number),
            key=lambda r: r.created_at,
            reverse=True,
        )
    )
    return VersionDetail(
        version=version,
        pair=ws.registry.pair(version.pair_digest),
        roles=_roles(ws.registry.head(version.line), version.number),
        evaluations=rows,
        newest=ws.registry.evaluation(rows[0].digest) if rows else None,
    )


def _line_status(ws: Workspace, head: Head) -> LineStatus:
    newest: dict[int, EvidenceRow] = {}
    for row in sorted(ws.registry.evaluations(head.line), key=lambda r: r.created_at):
        newest[row.version] = row
    decisions = ws.registry.decisions(head.line)
    moves = [d for d in decisions if d.production == head.production and d.kind != "set"]
    last_move = next((d for d in reversed(moves) if d.version == head.production), None)
    return LineStatus(
        head=head,
        versions=tuple(
            _version_status(head, v, newest.get(v.number))
            for v in sorted(ws.registry.versions(head.line), key=lambda v: -v.number)
        ),
        last_decision=decisions[-1] if decisions else None,
        overridden=bool(last_move and last_move.override),
        warnings=last_move.warnings if last_move else (),
        pending_deliveries=len(ws.registry.pending(head.line)),
    )


def _version_status(head: Head, version: PairVersion, row: EvidenceRow | None) -> VersionStatus:
    return VersionStatus(
        version=version.number,
        state=_roles(head, version.number),
        method=str(version.method),
        pair_digest=version.pair_digest,
        outcome=row.outcome if row else None,
        attempt=row.attempt if row else None,
        evaluated_at=row.created_at if row else None,
        evaluation_digest=row.digest if row else None,
        recommendation=row.recommendation if row else "",
    )


def _roles(head: Head, number: int) -> str:
    names = [
        ("production", number == head.production),
        ("previous", number == head.previous),
        ("disabled", number == head.disabled),
        ("withdrawn", number in head.withdrawn),
        ("pinned", number in head.protected and number != head.production),
    ]
    return ", ".join(name for name, holds in names if holds) or "stored"
