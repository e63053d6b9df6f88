"""Which requests of a log become the slice: stratified by domain, the same for the same seed."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from pairgate.errors import InvalidInput
from pairgate.traffic.importing import Found
from pairgate.traffic.report import Reason, Tally

_MAX_DOMAINS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """`per_domain` takes that many of each domain, `total` in proportion to the traffic; neither
    takes all."""

    per_domain: int | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        if self.per_domain is not None and self.total is not None:
            raise InvalidInput("give --per-domain or --total, not both")
        for name, n in (("--per-domain", self.per_domain), ("--total", self.total)):
            if n is not None and n < 1:
                raise InvalidInput(f"{name} is {n}; it must be at least 1")

    @property
    def limit(self) -> int | None:
        return self.per_domain if self.per_domain is not None else self.total


def sample(found: Iterable[Found], size: SampleSize, seed: int, tally: Tally) -> list[Found]:
    """A simple random sample of each domain, in one pass, holding no more than `limit` of each.

    Each request draws its priority from the seed and its id alone (bottom-k sampling; Cohen and
    Kaplan 2007, "Summarizing data using bottom-k sketches"), so neither the order of the files
    nor other requests change what is drawn.
    """
    if (limit := size.limit) is None:
        return list(found)
    # Per domain a heap whose root has the highest priority: the first to go.
    kept: dict[str, list[tuple[int, int, Found]]] = {}
    for item in found:
        heap = kept.setdefault(item.request.domain, [])
        if len(kept) > _MAX_DOMAINS:
            raise InvalidInput(
                f"the log has more than {_MAX_DOMAINS} domains, e.g. {item.request.domain!r}",
                hint="map the domain to something coarser with --map domain=PATH",
            )
        entry = (-_priority(seed, item.request.id), item.ordinal, item)
        if len(heap) < limit:
            heapq.heappush(heap, entry)
        else:
            _, _, item = heapq.heappushpop(heap, entry)
            tally.leave_out(Reason.NOT_SAMPLED, item.place, item.request.id)
    return _share_out(kept, size, tally)


def _share_out(
    kept: dict[str, list[tuple[int, int, Found]]], size: SampleSize, tally: Tally
) -> list[Found]:
    n_of = allotment(tally.usable, size.total) if size.total is not None else None
    taken: list[Found] = []
    for domain, heap in kept.items():
        first = [item for _, _, item in sorted(heap, key=lambda entry: -entry[0])]
        n = len(first) if n_of is None else n_of[domain]
        taken += first[:n]
        for item in first[n:]:
            tally.leave_out(Reason.NOT_SAMPLED, item.place, item.request.id)
    return taken


def allotment(counts: dict[str, int], total: int) -> dict[str, int]:
    """`total` seats in proportion to `counts`, by largest remainder, none above its count."""
    whole = sum(counts.values())
    total = min(total, whole)
    seats = {name: total * n // whole for name, n in counts.items()}
    by_remainder = sorted(counts, key=lambda name: (-(total * counts[name] % whole), name))
    for name in by_remainder[: total - sum(seats.values())]:
        seats[name] += 1
    return seats


def _priority(seed: int, id: str) -> int:
    digest = hashlib.blake2b(f"{seed}\0{id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
