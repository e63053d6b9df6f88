"""What differs between two versions: their content (`diff`) and their measurements (`compare`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pairgate.domain.pair import ModelRef, Pair
from pairgate.errors import InvalidInput

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.evidence import Estimate, Missing
    from pairgate.domain.pair import VersionRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`part` is e.g. `draft/model.safetensors` or `decoding.num_speculative_tokens`."""

    part: str
    before: str
    after: str


def diff(ws: Workspace, before: VersionRef, after: VersionRef) -> tuple[Difference, ...]:
    """Every file and setting that is not equal, in the order of the pair document."""
    first, second = (ws.registry.pair(ws.registry.version(r).pair_digest) for r in (before, after))
    return (*_model_differences(first, second), *_decoding_differences(first, second))


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


def _model_differences(first: Pair, second: Pair) -> list[Difference]:
    models: dict[str, list[ModelRef | None]] = {}
    for position, pair in enumerate((first, second)):
        for model in pair.models:
            models.setdefault(model.role, [None, None])[position] = model
    found = []
    for role, (before, after) in models.items():
        names = [{f.path: f for f in m.files} if m else {} for m in (before, after)]
        for path in sorted({*names[0], *names[1]}):
            texts = [
                f"{n[path].sha256[7:19]} ({n[path].size} bytes)" if path in n else "absent"
                for n in names
            ]
            if texts[0] != texts[1]:
                found.append(Difference(part=f"{role}/{path}", before=texts[0], after=texts[1]))
    return found


def _decoding_differences(first: Pair, second: Pair) -> list[Difference]:
    before, after = asdict(first.decoding), asdict(second.decoding)
    return [
        Difference(part=f"decoding.{key}", before=str(before[key]), after=str(after[key]))
        for key in before
        if before[key] != after[key]
    ]
