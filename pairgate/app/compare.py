"""Two versions against each other: paired on the same requests, and every measurement side by
side; what they consist of is `app.diff`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.errors import InvalidInput

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.evidence import Estimate, Metric, Missing
    from pairgate.domain.pair import VersionRef
    from pairgate.domain.records import EvidenceRow
    from pairgate.domain.trace import TraceBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric of both versions; `name` carries scope and arm."""

    name: str
    before: Estimate | Missing | None
    after: Estimate | Missing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`comparable` is false, with the reason, when slice, engine or hardware differ."""

    rows: tuple[MetricRow, ...]
    caveat: str


def compare(ws: Workspace, before: VersionRef, after: VersionRef) -> Comparison:
    """The newest measurements of two versions. Raises `EvidenceMissing` when one has none."""
    from pairgate.app.inspect import newest_evidence

    stored = [
        ws.registry.evaluation(newest_evidence(ws, ws.registry.version(r)).digest)
        for r in (before, after)
    ]
    first, second = (s.evaluation for s in stored)
    if first.measurements.definition != second.measurements.definition:
        raise InvalidInput(
            f"{before} was counted as {first.measurements.definition}, {after} as "
            f"{second.measurements.definition}; numbers under different definitions do not compare",
            hint="evaluate both on the same engine",
        )
    tables = [
        {(m.name, m.scope, m.arm): m.value for m in e.measurements.metrics} for e in (first, second)
    ]
    keys = list(dict.fromkeys([*tables[0], *tables[1]]))
    rows = tuple(
        MetricRow(
            name=f"{name} ({scope}, {arm})",
            before=tables[0].get((name, scope, arm)),
            after=tables[1].get((name, scope, arm)),
        )
        for name, scope, arm in keys
    )
    unlike = [
        part
        for part in ("slice_digest", "engine", "engine_version", "hardware_class", "profile_digest")
        if getattr(first.binding, part) != getattr(second.binding, part)
    ]
    caveat = f"not like for like: {', '.join(unlike)} differ" if unlike else ""
    return Comparison(rows=rows, caveat=caveat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Differences of token acceptance per request, after − before, overall first; none, with the
    reason, where the two did not run the same requests under equal conditions."""

    differences: tuple[Metric, ...]
    alpha: float
    reason: str = ""


def paired(ws: Workspace, before: VersionRef, after: VersionRef) -> Paired:
    """The paired analysis of the newest evaluations of two versions, from their stored traces.

    Raises `EvidenceMissing` when one has none.
    """
    from pairgate.app.inspect import newest_evidence
    from pairgate.measure import paired_differences

    rows = [newest_evidence(ws, ws.registry.version(ref)) for ref in (before, after)]
    first, second = (ws.registry.evaluation(row.digest).evaluation for row in rows)
    alpha = 0.05
    unlike = [
        part
        for part in ("slice_digest", "engine", "engine_version", "hardware_class")
        if getattr(first.binding, part) != getattr(second.binding, part)
    ]
    if unlike:
        return Paired(differences=(), alpha=alpha, reason=f"{', '.join(unlike)} differ")
    if first.provenance.seed != second.provenance.seed:
        return Paired(differences=(), alpha=alpha, reason="the seeds differ")
    batches = [_acceptance(ws, row) for row in rows]
    for ref, batch in zip((before, after), batches, strict=True):
        if batch is None:
            reason = f"the traces of {ref} are gone, or it has no draft"
            return Paired(differences=(), alpha=alpha, reason=reason)
    old, new = batches
    assert old is not None
    assert new is not None
    return Paired(
        differences=paired_differences(old, new, alpha=alpha, seed=second.provenance.seed),
        alpha=alpha,
    )


def _acceptance(ws: Workspace, row: EvidenceRow) -> TraceBatch | None:
    from pairgate.domain.trace import Arm, Phase, TraceBatch
    from pairgate.store.traces import ParquetTraces

    found = [
        batch
        for batch in ParquetTraces(ws.evaluation_folder(row.folder) / "traces").load_all()
        if batch.phase is Phase.ACCEPTANCE and batch.arm is Arm.SPEC
    ]
    return TraceBatch.concat(sorted(found, key=lambda b: b.block)) if found else None
