"""The prefix cache: how much of the prompts it held, in each arm, and what the draft took away.

From the speed blocks, where both arms run the same requests from an empty cache. A draft's own
keys and values share the cache's room, so it can push out what the target would have found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import OVERALL, Metric
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.measure.totals import Sampling, session_clusters
from pairgate.stats.blocks import block_difference
from pairgate.stats.ratio import clustered, pooled_ratio


def cache_metrics(speed: Sequence[TraceBatch], sampling: Sampling) -> Iterator[Metric]:
    """`cache_hit` of both arms, pooled over requests, and `cache_hit_difference` over blocks;
    nothing where the engine says nothing."""
    known = [b.where((b.cached_tokens >= 0) & (b.prompt_tokens > 0)) for b in speed]
    for arm in (Arm.SPEC, Arm.TARGET):
        here = [b for b in known if b.arm is arm and len(b)]
        if here:
            yield _hit(here, arm, sampling)
    alone = {(b.concurrency, b.block): b for b in known if b.arm is Arm.TARGET and len(b)}
    pairs = [
        (b, alone[b.concurrency, b.block])
        for b in known
        if b.arm is Arm.SPEC and len(b) and (b.concurrency, b.block) in alone
    ]
    if pairs:
        differences = np.array([_share(a) - _share(b) for a, b in pairs])
        yield Metric(
            name="cache_hit_difference",
            arm=Arm.SPEC,
            scope=OVERALL,
            value=block_difference(differences, alpha=sampling.alpha, support=1.0),
        )


def _share(batch: TraceBatch) -> float:
    return float(batch.cached_tokens.sum() / batch.prompt_tokens.sum())


def _hit(batches: Sequence[TraceBatch], arm: Arm, sampling: Sampling) -> Metric:
    def column(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(b, name) for b in batches]).astype(float)

    sessions = np.concatenate([b.session for b in batches])
    sums = clustered(column("cached_tokens"), column("prompt_tokens"), session_clusters(sessions))
    unit = "sessions" if bool((sessions != "").any()) else "requests"
    value = pooled_ratio(sums, alpha=sampling.alpha, rng=sampling.rng, unit=unit)
    return Metric(name="cache_hit", arm=arm, scope=OVERALL, value=value)
