"""The three acceptance numbers, pooled and per request, overall and by breakdown.

Pooled is what the machine pays; the request mean is what users feel. They differ by up to 0.2 in
real traffic, so both are measured and both are gated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import OVERALL, Estimate, Metric, Missing, Scope
from pairgate.domain.policy import Rate
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.measure.totals import (
    Ints,
    Mask,
    RequestTotals,
    Sampling,
    Verified,
    verified_rounds,
)
from pairgate.stats.betting import Range, betting_mean
from pairgate.stats.ratio import (
    ClusterSums,
    anytime_ratio,
    clustered,
    pooled_ratio,
)

TEMPERATURE_EDGES = (0.0, 0.5, 1.0)
TEMPERATURE_LABELS = ("0", "0-0.5", "0.5-1", "over 1")
LENGTH_EDGES = (64, 256, 1024, 4096)
LENGTH_LABELS = ("1-64", "65-256", "257-1024", "1025-4096", "over 4096")
TOKEN_EDGES = (32, 64, 128, 256, 512)
_SESSION_SEED = 20230530
TOKEN_LABELS = ("1-32", "33-64", "65-128", "129-256", "257-512", "over 512")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """One rate as counters per request [n]; `support` is where one request's ratio can lie,
    `per_token` how large the denominator can be per token of the answer."""

    rate: Rate
    numerator: Ints
    denominator: Ints
    support: Range
    per_token: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """The requests [n] of one scope."""

    scope: Scope
    mask: Mask


def counted(totals: RequestTotals, rate: Rate) -> Counted:
    """Numerator and denominator of a rate (docs/measures.md)."""
    if rate is Rate.TOKEN_ACCEPTANCE:
        return Counted(
            rate=rate, numerator=totals.committed, denominator=totals.tested, support=Range()
        )
    if rate is Rate.ACCEPTANCE_RATE:
        longest = float(np.max(totals.proposed / np.maximum(totals.rounds, 1), initial=1.0))
        return Counted(
            rate=rate,
            numerator=totals.accepted,
            denominator=totals.proposed,
            support=Range(),
            per_token=np.ceil(longest),
        )
    proposed, rounds = int(totals.proposed.sum()), int(totals.rounds.sum())
    longest = float(np.ceil(proposed / rounds)) if rounds else 1.0
    per_round = totals.emitted / np.maximum(totals.rounds, 1)
    return Counted(
        rate=rate,
        numerator=totals.emitted,
        denominator=totals.rounds,
        support=Range(low=0.0, high=max(longest + 1.0, float(per_round.max(initial=0.0)))),
    )


def acceptance_metrics(
    batch: TraceBatch,
    totals: RequestTotals,
    sampling: Sampling,
    *,
    domains: Sequence[str],
    judged: Rate,
) -> Iterator[Metric]:
    """The acceptance metrics that judge nothing (those of the rate `judged` are `gated_metrics`);
    see the package's docstring for the names.

    `domains` are those that were planned: one without a usable request is Missing, not absent.
    """
    token = counted(totals, Rate.TOKEN_ACCEPTANCE)
    overall = Part(scope=OVERALL, mask=np.ones(len(totals), bool))
    parts = domain_parts(totals, domains)
    for rate in Rate:
        if rate is judged:
            continue
        values = counted(totals, rate)
        for part in (overall, *parts):
            yield from rate_metrics(values, totals, part, sampling)
    for part in _other_parts(batch, totals):
        yield from rate_metrics(token, totals, part, sampling)
    rounds = verified_rounds(batch)
    yield from _by_position(rounds, totals, sampling)
    yield from _by_output_position(batch, rounds, totals, sampling)


def rate_metrics(
    values: Counted,
    totals: RequestTotals,
    part: Part,
    sampling: Sampling,
    *,
    arm: Arm = Arm.SPEC,
    suffix: str = "",
) -> tuple[Metric, Metric]:
    """`<rate>.request_mean` and `<rate>.pooled` of one part of the requests."""
    mean = request_mean(values, totals, part.mask, sampling)
    pooled = pooled_of(
        values.numerator,
        values.denominator,
        values.support,
        totals,
        part,
        sampling,
        per_token=values.per_token,
    )
    return (
        Metric(name=f"{values.rate}.request_mean{suffix}", arm=arm, scope=part.scope, value=mean),
        Metric(name=f"{values.rate}.pooled{suffix}", arm=arm, scope=part.scope, value=pooled),
    )


def request_mean(
    values: Counted, totals: RequestTotals, mask: Mask, sampling: Sampling
) -> Estimate | Missing:
    """Mean of the requests' own ratios by betting; one request per session.

    Requests without a denominator have no ratio and are left out. Where nobody looked on the way
    the order is shuffled, because betting assumes that no one sorted the observations.
    """
    rows = np.flatnonzero(mask & (values.denominator > 0))
    if totals.has_sessions:
        rows = _one_per_session(rows, totals)
    rows = sampling.ordered(rows)
    if len(rows) == 0:
        return Missing(reason=f"no request has anything to divide by for {values.rate}")
    return betting_mean(
        values.numerator[rows] / values.denominator[rows],
        alpha=sampling.alpha,
        unit=totals.unit,
        support=values.support,
    )


def _one_per_session(rows: Ints, totals: RequestTotals) -> Ints:
    """A random request of each session, the sessions in the order in which they began. The
    numbers drawn do not depend on what comes after, so that a look sees what the end sees."""
    drawn = np.random.default_rng(_SESSION_SEED).random(len(totals))[rows]
    by_session = np.lexsort((drawn, totals.cluster[rows]))
    ordered = rows[by_session]
    return ordered[np.unique(totals.cluster[ordered], return_index=True)[1]]


def pooled_of(
    numerator: NDArray[np.generic],
    denominator: NDArray[np.generic],
    support: Range,
    totals: RequestTotals,
    part: Part,
    sampling: Sampling,
    *,
    per_token: float = 1.0,
) -> Estimate | Missing:
    """Σ numerator / Σ denominator over the part's clusters; by betting where the pass was stopped
    before its planned end."""
    sums = sums_of(numerator, denominator, totals, part)
    if sampling.stopped and len(sums):
        return anytime_ratio(
            sums,
            alpha=sampling.final_alpha,
            unit=totals.unit,
            support=support,
            largest=per_token * sampling.longest,
        )
    return pooled_ratio(
        sums, alpha=sampling.final_alpha, rng=sampling.rng, unit=totals.unit, support=support
    )


def sums_of(
    numerator: NDArray[np.generic],
    denominator: NDArray[np.generic],
    totals: RequestTotals,
    part: Part,
) -> ClusterSums:
    """Numerators and denominators per cluster, over the requests of one part."""
    return clustered(
        numerator[part.mask].astype(float),
        denominator[part.mask].astype(float),
        totals.cluster[part.mask],
    )


def domain_parts(totals: RequestTotals, domains: Sequence[str]) -> tuple[Part, ...]:
    """One part per domain, by name, also of those that no row of `totals` belongs to."""
    return tuple(
        Part(scope=Scope(kind="domain", key=name), mask=totals.domain == name)
        for name in sorted(set(map(str, domains)))
    )


def temperature_parts(totals: RequestTotals) -> Iterator[Part]:
    """One part per temperature bucket that has a request."""
    bucket = np.searchsorted(TEMPERATURE_EDGES, totals.temperature, side="left")
    return _buckets("temperature", TEMPERATURE_LABELS, bucket)


def _buckets(kind: str, labels: Sequence[str], bucket: NDArray[np.intp]) -> Iterator[Part]:
    for i, label in enumerate(labels):
        if (bucket == i).any():
            yield Part(scope=Scope(kind=kind, key=label), mask=bucket == i)


def _other_parts(batch: TraceBatch, totals: RequestTotals) -> Iterator[Part]:
    yield from temperature_parts(totals)
    length = np.searchsorted(LENGTH_EDGES, totals.prompt_tokens, side="left")
    yield from _buckets("prompt_length", LENGTH_LABELS, length)
    yield Part(
        scope=Scope(kind="concurrency", key=str(batch.concurrency)), mask=np.ones(len(totals), bool)
    )


def _by_position(rounds: Verified, totals: RequestTotals, sampling: Sampling) -> Iterator[Metric]:
    """Accepted of tested at the j-th proposed token of a round, for j = 1 … K."""
    for j in range(1, int(rounds.proposed.max(initial=0)) + 1):
        accepted = rounds.committed >= j
        tested = accepted | (rounds.rejected & (rounds.committed == j - 1))
        value = _per_request(accepted, tested, rounds.request, totals, sampling)
        yield Metric(
            name="token_acceptance.position",
            arm=Arm.SPEC,
            scope=Scope(kind="position", key=str(j)),
            value=value,
        )


def _by_output_position(
    batch: TraceBatch, rounds: Verified, totals: RequestTotals, sampling: Sampling
) -> Iterator[Metric]:
    """Token acceptance by how much of the answer was written when the round began."""
    before = np.cumsum(batch.emitted, dtype=np.int64) - batch.emitted
    starts = batch.round_offsets[:-1]
    origin = np.concatenate((before, [0]))[np.minimum(starts, len(before))]
    written = 1 + before - origin[batch.round_request]
    bucket = np.searchsorted(TOKEN_EDGES, written[batch.round_state == 0], side="left")
    tested = rounds.committed + rounds.rejected
    for i, label in enumerate(TOKEN_LABELS):
        inside = bucket == i
        if inside.any():
            value = _per_request(
                rounds.committed[inside], tested[inside], rounds.request[inside], totals, sampling
            )
            scope = Scope(kind="token", key=label)
            yield Metric(name="token_acceptance.pooled", arm=Arm.SPEC, scope=scope, value=value)


def _per_request(
    numerator: NDArray[np.generic],
    denominator: NDArray[np.generic],
    request: Ints,
    totals: RequestTotals,
    sampling: Sampling,
) -> Estimate | Missing:
    """Pooled ratio of per-round counters."""
    n = len(totals)
    return pooled_of(
        np.bincount(request, weights=numerator, minlength=n),
        np.bincount(request, weights=denominator, minlength=n),
        Range(),
        totals,
        Part(scope=OVERALL, mask=np.ones(n, bool)),
        sampling,
    )


def draft_length(totals: RequestTotals, sampling: Sampling) -> Metric:
    """Proposed tokens per draft round, as it was used."""
    longest = float(np.max(totals.proposed / np.maximum(totals.rounds, 1), initial=1.0))
    value = pooled_of(
        totals.proposed,
        totals.rounds,
        Range(low=0.0, high=max(1.0, longest)),
        totals,
        Part(scope=OVERALL, mask=np.ones(len(totals), bool)),
        sampling,
    )
    return Metric(name="draft_tokens_per_round", arm=Arm.SPEC, scope=OVERALL, value=value)
