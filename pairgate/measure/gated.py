"""What the acceptance rule is judged by, with the bounds that a FAIL of a single domain needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pairgate.domain.evidence import OVERALL, Estimate, Metric, Missing
from pairgate.domain.policy import AcceptanceRule
from pairgate.domain.trace import Arm
from pairgate.measure.acceptance import (
    Counted,
    Part,
    counted,
    domain_parts,
    draft_length,
    pooled_of,
    rate_metrics,
    request_mean,
    sums_of,
)
from pairgate.measure.totals import RequestTotals, Sampling
from pairgate.stats.ratio import pooled_ratios

_MOST_DIVISORS = 7


def gated_metrics(
    totals: RequestTotals, rule: AcceptanceRule, sampling: Sampling, *, domains: Sequence[str]
) -> Iterator[Metric]:
    """What the acceptance rule is judged by, and nothing else."""
    values = counted(totals, rule.rate)
    parts = domain_parts(totals, domains)
    for part in (Part(scope=OVERALL, mask=np.ones(len(totals), bool)), *parts):
        yield from rate_metrics(values, totals, part, sampling)
    yield from corrected_metrics(totals, rule, parts, sampling)
    yield draft_length(totals, sampling)


def holm_divisors(n_domains: int) -> tuple[int, ...]:
    """Divisors of alpha at which the bounds of single domains are needed, largest first.

    Holm's procedure (Holm 1979) compares the i-th strongest of n with alpha / (n − i). Beyond
    eight domains the divisors in between are thinned out; judging takes the next larger one.
    """
    if n_domains < 2:
        return ()
    kept = np.geomspace(2, n_domains, min(n_domains - 1, _MOST_DIVISORS))
    return tuple(sorted({int(d) for d in np.ceil(kept.round(9))}, reverse=True))


def corrected_metrics(
    totals: RequestTotals, rule: AcceptanceRule, domains: tuple[Part, ...], sampling: Sampling
) -> Iterator[Metric]:
    """Bounds at alpha / divisor: what a FAIL of a single domain has to clear (Holm).

    A PASS needs no correction (intersection-union).
    """
    gated = [part for part in domains if part.scope.key not in rule.other]
    divisors, values = holm_divisors(len(gated)), counted(totals, rule.rate)
    for part in gated:
        levels = [replace(sampling, alpha=sampling.alpha / d) for d in divisors]
        means = [request_mean(values, totals, part.mask, level) for level in levels]
        for suffix, found in (
            ("request_mean", means),
            ("pooled", _pooled_levels(values, totals, part, levels)),
        ):
            for value in found:
                name = f"{rule.rate}.{suffix}.corrected"
                yield Metric(name=name, arm=Arm.SPEC, scope=part.scope, value=value)


def _pooled_levels(
    values: Counted, totals: RequestTotals, part: Part, levels: Sequence[Sampling]
) -> Sequence[Estimate | Missing]:
    if not levels or levels[0].stopped:
        return [
            pooled_of(
                values.numerator,
                values.denominator,
                values.support,
                totals,
                part,
                level,
                per_token=values.per_token,
            )
            for level in levels
        ]
    return pooled_ratios(
        sums_of(values.numerator, values.denominator, totals, part),
        alphas=tuple(level.final_alpha for level in levels),
        rng=levels[0].rng,
        unit=totals.unit,
        support=values.support,
    )
