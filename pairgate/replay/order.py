"""Orders: of submission, and of the speed blocks; both are fixed by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from pairgate.domain.traffic import Request


def submission_order(requests: Sequence[Request], seed: int) -> tuple[int, ...]:
    """Indices in a random order fixed by `seed`; the requests of a session keep their own order."""
    order = list(range(len(requests)))
    random.Random(f"pairgate order {seed}").shuffle(order)
    places: dict[str, list[int]] = {}
    for place, index in enumerate(order):
        session = requests[index].session
        if session is not None:
            places.setdefault(session, []).append(place)
    for found in places.values():
        for place, index in zip(found, sorted(order[p] for p in found), strict=True):
            order[place] = index
    return tuple(order)


def blocks_drawn(
    order: Sequence[int], size: int, *, seed: int, concurrency: int
) -> Iterator[tuple[int, ...]]:
    """Blocks of requests without replacement; when the slice is exhausted it is shuffled again,
    and no block holds a request twice."""
    size = min(size, len(order))
    rng = random.Random(f"pairgate speed {seed} {concurrency}")
    waiting: list[int] = []
    while True:
        if len(waiting) < size:
            fresh = [i for i in order if i not in waiting]
            rng.shuffle(fresh)
            waiting.extend(fresh)
        yield tuple(waiting[:size])
        waiting = waiting[size:]
