"""Orders: of submission, and of the speed blocks; both are fixed by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from pairgate.domain.traffic import Request


def submission_order(requests: Sequence[Request], seed: int, *, block: int = 64) -> tuple[int, ...]:
    """Indices in a random order fixed by `seed`; the requests of a session keep their own order."""
    return tuple(i for wave in submission_blocks(requests, seed, block=block) for i in wave)


def submission_blocks(
    requests: Sequence[Request], seed: int, *, block: int = 64
) -> tuple[tuple[int, ...], ...]:
    """The submission order, cut into blocks of about `block` requests.

    Every session lies in one block whole, its turns spread over the block. So what has run at the
    end of a block is a random sample of sessions, and not of their first turns, which a test that
    looks at every block rests on.
    """
    units = _sessions(requests)
    random.Random(f"pairgate order {seed}").shuffle(units)
    blocks: list[tuple[int, ...]] = []
    waiting: list[tuple[int, ...]] = []
    for unit in units:
        waiting.append(unit)
        if sum(map(len, waiting)) >= block:
            blocks.append(_by_turns(waiting))
            waiting = []
    return (*blocks, _by_turns(waiting)) if waiting else tuple(blocks)


def _sessions(requests: Sequence[Request]) -> list[tuple[int, ...]]:
    """Indices by session; a request without one is alone."""
    found: dict[object, list[int]] = {}
    for i, request in enumerate(requests):
        found.setdefault(i if request.session is None else request.session, []).append(i)
    return [tuple(indices) for indices in found.values()]


def _by_turns(units: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The first turns of all, then the second ones, …: a session's turns do not overlap."""
    longest = max(map(len, units))
    return tuple(unit[turn] for turn in range(longest) for unit in units if turn < len(unit))


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
