"""Is a slice large enough to decide anything, and does it still look like the traffic?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.slices import load_slice, refuse_faults
from pairgate.app.workspace import Workspace
from pairgate.errors import IntegrityError, require
from pairgate.traffic.drift import Shift, shifts
from pairgate.traffic.importing import ReadOptions, read_logs
from pairgate.traffic.power import (
    DEFAULT_SD,
    NeededRequests,
    Spread,
    decidable_distance,
    needed_requests,
    spreads,
)
from pairgate.traffic.report import ImportReport, Tally
from pairgate.traffic.sampling import SampleSize, sample
from pairgate.traffic.texts import SliceTexts

if TYPE_CHECKING:
    from pairgate.domain.records import SliceRow
    from pairgate.domain.trace import TraceBatch

_CHECK_PER_DOMAIN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCheck:
    """A slice against a fresh log."""

    row: SliceRow
    log: ImportReport
    threshold: float
    shifts: tuple[Shift, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(s.warning for s in self.shifts if s.warning)

    @property
    def n_compared(self) -> int:
        """Distributions for which both sides held enough requests."""
        return sum(s.distance is not None and s.what != "domains" for s in self.shifts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSize:
    """What a domain of a slice can decide: the smallest distance from the floor."""

    domain: str
    n: int
    sd: float
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSize:
    """Needed requests per domain by distance; `assumption` says where the spread is from."""

    alpha: float
    power: float
    sd: float
    assumption: str
    needed: tuple[NeededRequests, ...]
    domains: tuple[DomainSize, ...] = ()


def check_slice(
    ws: Workspace,
    name_or_digest: str,
    logs: Sequence[str | Path],
    *,
    read: ReadOptions | None = None,
    threshold: float = 0.1,
    seed: int = 0,
) -> SliceCheck:
    """Compare a slice with a fresh log: domains, prompt lengths, max_tokens, temperatures.

    Of the log at most 2,000 requests of each domain are held.
    """
    require(0 < threshold < 1, f"--threshold {threshold} is not in (0, 1)")
    traffic = load_slice(ws, name_or_digest)
    row = ws.registry.slice_(name_or_digest)
    record = SliceTexts(ws.slices_dir).record(row.digest)
    if record is None:
        raise IntegrityError(f"the record of slice {row.name} is missing beside its texts")
    tally = Tally()
    # Shares are only comparable when repeated prompts are counted alike.
    read = read if read is not None else ReadOptions()
    options = replace(read, keep_duplicates=record.keep_duplicates)
    size = SampleSize(per_domain=_CHECK_PER_DOMAIN)
    found = sample(read_logs(map(str, logs), options, tally), size, seed, tally)
    log = tally.report((u for f in found for u in f.request.unsupported), len(found))
    refuse_faults(log, strict=False)
    requests = tuple(f.request for f in found)
    return SliceCheck(
        row=row,
        log=log,
        threshold=threshold,
        shifts=shifts(
            traffic.requests, record.report.usable, requests, log.usable, threshold=threshold
        ),
    )


def slice_size(
    ws: Workspace | None,
    name_or_digest: str | None = None,
    *,
    distances: Sequence[float] = (0.10, 0.05, 0.02),
    sd: float | None = None,
    alpha: float = 0.05,
    power: float = 0.9,
) -> SliceSize:
    """How many requests a domain needs, and with a slice, what its domains can decide.

    The spread is `sd`, or what the newest evaluation of the slice saw, or 0.2.
    """
    seen: dict[str, Spread] = {}
    row = None
    if ws is not None and name_or_digest is not None:
        row = ws.registry.slice_(name_or_digest)
        seen = {s.domain: s for s in _seen_spreads(ws, row.digest)} if sd is None else {}
    if sd is not None:
        assumption = f"standard deviation {sd:g} over requests, as given"
    elif seen:
        sd = max(s.sd for s in seen.values())
        assumption = f"standard deviation {sd:.3f}, the widest domain in the newest evidence"
    else:
        sd, assumption = DEFAULT_SD, f"standard deviation {DEFAULT_SD} over requests, a default"
    sd = sd or DEFAULT_SD  # evidence without any spread says nothing of other traffic
    domains = []
    for domain, n in row.domains if row is not None else ():
        spread = (seen[domain].sd if domain in seen else sd) or DEFAULT_SD
        distance = decidable_distance(n, sd=spread, alpha=alpha, power=power)
        domains.append(DomainSize(domain=domain, n=n, sd=spread, distance=distance))
    return SliceSize(
        alpha=alpha,
        power=power,
        sd=sd,
        assumption=assumption,
        needed=needed_requests(distances, sd=sd, alpha=alpha, power=power),
        domains=tuple(domains),
    )


def pilot_spreads(ws: Workspace, folder: str) -> tuple[Spread, ...]:
    """Spread by domain in the acceptance pass of one evaluation, by its folder's name."""
    batch = _acceptance(ws.evaluation_folder(folder) / "traces")
    return () if batch is None else spreads(batch)


def _seen_spreads(ws: Workspace, slice_digest: str) -> tuple[Spread, ...]:
    """Spread by domain in the acceptance pass of the newest evaluation of a slice."""
    rows = [
        row
        for head in ws.registry.lines()
        for row in ws.registry.evaluations(head.line)
        if row.slice_digest == slice_digest
    ]
    for row in sorted(rows, key=lambda r: r.created_at, reverse=True):
        batch = _acceptance(ws.evaluation_folder(row.folder) / "traces")
        if batch is not None:
            return spreads(batch)
    return ()


def _acceptance(folder: Path) -> TraceBatch | None:
    from pairgate.domain.trace import Arm, Phase, TraceBatch
    from pairgate.store.traces import ParquetTraces

    blocks = [
        batch
        for batch in ParquetTraces(folder).load_all()
        if batch.arm is Arm.SPEC and batch.phase is Phase.ACCEPTANCE
    ]
    return TraceBatch.concat(blocks) if blocks else None
