"""Read the registry: where lines stand, what was decided, what is known of a version.

Nothing here decodes evidence unless it is asked for: `status` stays as fast as its imports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.app.setting import line_setting
from pairgate.domain.release import Decision, Head, Kind, fold
from pairgate.domain.situation import MOVES
from pairgate.errors import EvidenceMissing

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.observation import Observation
    from pairgate.domain.pair import Pair, PairVersion, VersionRef
    from pairgate.domain.records import EvidenceRow, Reference
    from pairgate.store.sql import StoredEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """One version as `status` shows it. `state` lists its roles, e.g. `production, pinned`;
    `problem` is what was wrong with its files when they were last checked, or ''."""

    version: int
    state: str
    method: str
    pair_digest: str
    outcome: str | None
    attempt: int | None
    evaluated_at: str | None
    evaluation_digest: str | None
    recommendation: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStatus:
    """A line: its head, its versions (newest first) and how its production came about.

    `profiles` are what the line is set to (`NAME@N`, its own first), `serving_profiles` what
    production came with: `line set` may have moved on. `observed` is the newest look at the servers
    that run it. `overridden`: what serves, or would without
    its disabling, was last promoted without a PASS.
    """

    head: Head
    profiles: tuple[str, ...]
    serving_profiles: tuple[str, ...]
    versions: tuple[VersionStatus, ...]
    last_decision: Decision | None
    overridden: bool
    override_reason: str
    warnings: tuple[str, ...]
    pending_deliveries: int
    observed: Observation | None = None


def line_statuses(ws: Workspace, line: str | None = None) -> tuple[LineStatus, ...]:
    """All lines, or one. Raises `NotFound` for an unknown line."""
    heads = ws.registry.lines() if line is None else [ws.registry.head(line)]
    return tuple(_line_status(ws, head) for head in heads)


def head_at(ws: Workspace, line: str, at: str) -> Head:
    """Where a line stood at a time (ISO 8601), from the log alone.

    The sequence counts, not the clocks: of two that decide at once, or on two machines, the later
    decision may carry the earlier time.
    """
    ws.registry.head(line)
    decisions = ws.registry.decisions(line)
    n_made = max((d.sequence for d in decisions if d.at <= at), default=0)
    return fold(line, decisions[:n_made])


def newest_evidence(ws: Workspace, version: PairVersion, profile: str | None = None) -> EvidenceRow:
    """The newest of the version, or of those on `profile` (NAME or NAME@N). Raises
    `EvidenceMissing` when there is none, `NotFound`."""
    rows = ws.registry.evaluations(version.line, version.number)
    on, option = "", ""
    if profile is not None:
        on, option = f" on {profile}", f" --profile {profile}"
        digest = line_setting(ws, version.line, profile).head.profile_digest
        rows = [r for r in rows if r.profile_digest == digest]
    if not rows:
        raise EvidenceMissing(
            f"{version} has not been evaluated{on}",
            hint=f"run: pairgate evaluate {version}{option}",
        )
    return max(rows, key=lambda r: r.created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDetail:
    """What `show` prints. `newest` is decoded evidence, or None; `references` are the known places
    of files outside the store, `warnings` what registration found beside errors."""

    version: PairVersion
    pair: Pair
    roles: str
    evaluations: tuple[EvidenceRow, ...]
    newest: StoredEvaluation | None
    references: tuple[Reference, ...] = ()
    warnings: tuple[str, ...] = ()


def version_detail(ws: Workspace, ref: VersionRef) -> VersionDetail:
    """Everything about one version: pair, roles, evidence from newest to oldest."""
    version = ws.registry.version(ref)
    pair = ws.registry.pair(version.pair_digest)
    digests = [f.sha256 for model in pair.models for f in model.files]
    rows = tuple(
        sorted(
            ws.registry.evaluations(version.line, version.number),
            key=lambda r: r.created_at,
            reverse=True,
        )
    )
    return VersionDetail(
        version=version,
        pair=pair,
        roles=_roles(ws.registry.head(version.line), version),
        warnings=tuple(json.loads(ws.registry.provenance(version.pair_digest)).get("warnings", ())),
        evaluations=rows,
        newest=ws.registry.evaluation(rows[0].digest) if rows else None,
        references=tuple(ws.registry.references(digests).values()),
    )


def _line_status(ws: Workspace, head: Head) -> LineStatus:
    newest: dict[int, EvidenceRow] = {}
    for row in sorted(ws.registry.evaluations(head.line), key=lambda r: r.created_at):
        newest[row.version] = row
    decisions, problems = ws.registry.decisions(head.line), ws.registry.file_problems(head.line)
    moves = [d for d in decisions if d.kind in MOVES and d.version == head.production]
    last_move = moves[-1] if moves else None
    served = head.production if head.disabled is None else head.disabled
    promoted = [d for d in decisions if d.kind is Kind.PROMOTE and d.version == served]
    labels = {r.digest: str(r) for r in ws.registry.profiles(head.line)}
    serving = next((d for d in reversed(decisions) if d.kind in MOVES), None)
    return LineStatus(
        head=head,
        profiles=_profile_labels(labels, head),
        serving_profiles=_profile_labels(labels, serving) if serving else (),
        versions=tuple(
            _version_status(head, v, newest.get(v.number), problems.get(v.number, ""))
            for v in sorted(ws.registry.versions(head.line), key=lambda v: -v.number)
        ),
        last_decision=decisions[-1] if decisions else None,
        overridden=bool(promoted and promoted[-1].override),
        override_reason=promoted[-1].reason if promoted and promoted[-1].override else "",
        warnings=last_move.warnings if last_move else (),
        pending_deliveries=len(ws.registry.pending(head.line)),
        observed=_observed(ws, head),
    )


def _observed(ws: Workspace, head: Head) -> Observation | None:
    """The newest look at the servers, while it speaks of what is in production."""
    found = ws.observations.newest(head.line)
    return found if found and found.promised.version == head.production else None


def _profile_labels(labels: Mapping[str, str], of: Head | Decision) -> tuple[str, ...]:
    digests = (of.profile_digest, *of.profiles)
    return tuple(labels.get(d, d) for d in digests if d is not None)


def _version_status(
    head: Head, version: PairVersion, row: EvidenceRow | None, problem: str
) -> VersionStatus:
    return VersionStatus(
        version=version.number,
        state=_roles(head, version),
        method=str(version.method),
        pair_digest=version.pair_digest,
        outcome=row.outcome if row else None,
        attempt=row.attempt if row else None,
        evaluated_at=row.created_at if row else None,
        evaluation_digest=row.digest if row else None,
        recommendation=row.recommendation if row else "",
        problem=problem,
    )


def _roles(head: Head, version: PairVersion) -> str:
    number = version.number
    names = [
        ("collected", version.collected_at is not None),
        ("production", number == head.production),
        ("previous", number == head.previous),
        ("disabled", number == head.disabled),
        ("withdrawn", number in head.withdrawn),
        ("pinned", number in head.protected and number != head.production),
    ]
    return ", ".join(name for name, holds in names if holds) or "stored"
