"""The candidate against production, and against production's draft on the new target, paired by
request on the same requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pairgate.domain.evidence import OVERALL, Estimate, Metric, Missing
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
    yield from _rates(production, Arm.INCUMBENT, sampling)
    yield _gain("non_inferiority", candidate, production, sampling)


def carry_over_metrics(
    candidate: RequestTotals, carried: TraceBatch, sampling: Sampling
) -> Iterator[Metric]:
    """The rates of production's draft on the new target, and `carry_over_gain`: candidate −
    carried-over token acceptance on the requests that both ran."""
    totals = request_totals(carried)
    yield from _rates(totals, Arm.CARRY_OVER, sampling)
    yield _gain("carry_over_gain", candidate, totals, sampling)


def _rates(totals: RequestTotals, arm: Arm, sampling: Sampling) -> Iterator[Metric]:
    everything = Part(scope=OVERALL, mask=np.ones(len(totals), bool))
    for rate in (Rate.TOKEN_ACCEPTANCE, Rate.ACCEPTANCE_LENGTH):
        yield from rate_metrics(counted(totals, rate), totals, everything, sampling, arm=arm)


def paired_gain(
    candidate: RequestTotals, other: RequestTotals, sampling: Sampling, *, domain: str | None = None
) -> Estimate | Missing:
    """Mean per-request difference of token acceptance, candidate − other, over requests that both
    arms tested (of one `domain`, where given), in the candidate's order."""
    _, mine, theirs = np.intersect1d(candidate.request_id, other.request_id, return_indices=True)
    both = (candidate.tested[mine] > 0) & (other.tested[theirs] > 0)
    if domain is not None:
        both &= candidate.domain[mine] == domain
    mine, theirs = mine[both], theirs[both]
    order = np.argsort(mine)
    if not sampling.looked:
        order = sampling.rng.permutation(order)
    mine, theirs = mine[order], theirs[order]
    if len(mine) == 0:
        return Missing(reason="none of these requests ran in both")
    difference = (
        candidate.committed[mine] / candidate.tested[mine]
        - other.committed[theirs] / other.tested[theirs]
    )
    return paired_difference(
        difference,
        candidate.cluster[mine],
        alpha=sampling.final_alpha,
        unit=candidate.unit,
        anytime=sampling.stopped,
    )


def _gain(name: str, candidate: RequestTotals, other: RequestTotals, sampling: Sampling) -> Metric:
    value = paired_gain(candidate, other, sampling)
    return Metric(name=name, arm=Arm.SPEC, scope=OVERALL, value=value)
