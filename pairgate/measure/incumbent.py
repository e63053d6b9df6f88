"""The candidate against production, paired by request on the same requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pairgate.domain.evidence import OVERALL, Metric, Missing
from pairgate.domain.policy import Rate
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.measure.acceptance import Part, counted, rate_metrics
from pairgate.measure.totals import RequestTotals, Sampling, request_totals
from pairgate.stats.paired import paired_difference


def incumbent_metrics(
    candidate: RequestTotals, incumbent: TraceBatch, sampling: Sampling
) -> Iterator[Metric]:
    """Production's own rates, and `non_inferiority`: candidate − incumbent token acceptance."""
    production = request_totals(incumbent)
    everything = Part(scope=OVERALL, mask=np.ones(len(production), bool))
    for rate in (Rate.TOKEN_ACCEPTANCE, Rate.ACCEPTANCE_LENGTH):
        values = counted(production, rate)
        yield from rate_metrics(values, production, everything, sampling, arm=Arm.INCUMBENT)
    yield non_inferiority(candidate, production, sampling)


def non_inferiority(
    candidate: RequestTotals, production: RequestTotals, sampling: Sampling
) -> Metric:
    """Mean per-request difference of token acceptance over requests that both arms tested."""
    _, mine, theirs = np.intersect1d(
        candidate.request_id, production.request_id, return_indices=True
    )
    both = (candidate.tested[mine] > 0) & (production.tested[theirs] > 0)
    order = sampling.rng.permutation(int(both.sum()))
    mine, theirs = mine[both][order], theirs[both][order]
    if len(mine) == 0:
        value = Missing(reason="the incumbent was replayed on none of these requests")
        return Metric(name="non_inferiority", arm=Arm.SPEC, scope=OVERALL, value=value)
    difference = (
        candidate.committed[mine] / candidate.tested[mine]
        - production.committed[theirs] / production.tested[theirs]
    )
    return Metric(
        name="non_inferiority",
        arm=Arm.SPEC,
        scope=OVERALL,
        value=paired_difference(
            difference, candidate.cluster[mine], alpha=sampling.alpha, unit=candidate.unit
        ),
    )
