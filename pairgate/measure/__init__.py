"""Traces -> Measurements: the only place where counters become ratios.

Names (arm `spec` and scope overall unless said; docs/measures.md explains each):

    token_acceptance.request_mean / .pooled     overall, domain, temperature, prompt_length,
                                                concurrency; .pooled also token (output position);
                                                arms incumbent, carry-over: overall
    token_acceptance.position                   position (1 … K)
    token_acceptance.overlap                    overall, domain, temperature: from Σ min(p, q)
    acceptance_rate.request_mean / .pooled      overall, domain
    acceptance_length.request_mean / .pooled    overall, domain; arm incumbent: overall
    <rate>.request_mean.corrected / .pooled.corrected
                                                domain: the rule's rate at alpha / d for the
                                                divisors d of Holm's procedure, largest first
    draft_tokens_per_round                      proposed tokens per draft round
    non_inferiority                             candidate − incumbent, per request
    carry_over_gain                             candidate − production's draft on its target
    share_below_floor                           from the beta-binomial mixture
    fallback_share, fallback_misfire            counterfactual, from the acceptance pass
    inconsistent_requests                       share whose counters do not add up
    speedup, round_cost_ratio, predicted_speedup, ttft_ratio.p95, tpot_ratio.p95    concurrency
    tokens_per_s, ttft_ms.pXX, tpot_ms.pXX, chunk_gap_ms.pXX    arms spec, target; concurrency
    break_even                                  concurrency
    plain_token_share                           overall, concurrency (speed pass)
    cache_hit, cache_hit_difference             overall (speed pass); cache_hit: both arms

`break_even` holds (concurrency, token acceptance at which a draft round pays for itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from pairgate.domain.evidence import Fidelity, Measurements, Metric
from pairgate.domain.policy import (
    AcceptanceRule,
    BimodalityRule,
    FallbackRateRule,
    Policy,
    Rule,
)
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import TraceBatch
from pairgate.measure.acceptance import acceptance_metrics
from pairgate.measure.cache import cache_metrics
from pairgate.measure.counts import counts_of, inconsistent_share, usable
from pairgate.measure.fallback import fallback_metrics
from pairgate.measure.gated import gated_metrics
from pairgate.measure.incumbent import carry_over_metrics, incumbent_metrics
from pairgate.measure.looks import speed_alpha, speed_looks
from pairgate.measure.overlap import overlap_metrics
from pairgate.measure.paired import paired_differences
from pairgate.measure.shares import below_floor
from pairgate.measure.speed import (
    break_even_metrics,
    break_even_points,
    carry_over_speedups,
    speed_metrics,
)
from pairgate.measure.totals import Sampling, request_totals

__all__ = ["look", "measure", "paired_differences", "speed_looks"]

R = TypeVar("R", AcceptanceRule, BimodalityRule)


def measure(
    recorded: Recorded,
    *,
    policy: Policy,
    alpha: float | None = None,
    fidelity: Fidelity | None = None,
) -> Measurements:
    """Everything a verdict may look at, each bound at `alpha` (the policy's, unless given).

    The caller spends alpha over attempts: attempt k is measured at alpha · 2^−k. The policy gives
    the floors, the domains that are only shown, the fallback rule and the seed of the resampling.
    `fidelity` comes from `pairgate.fidelity.compare_outputs` and is passed through. Requests whose
    counters do not add up are left out and counted in `inconsistent_requests`.
    """
    level = policy.alpha if alpha is None else alpha
    sampling = _sampling(recorded, policy, level)
    acceptance = usable(recorded.acceptance)
    totals = request_totals(acceptance)
    ratio_alpha = speed_alpha(level, policy.replay)
    metrics: list[Metric] = [inconsistent_share(_batches(recorded), alpha=level)]
    domains = planned_domains(recorded)
    rule = _rule(policy.rules, AcceptanceRule)
    # First, as in `look`: the same resamples, so that a look and the verdict cannot differ.
    metrics += gated_metrics(totals, rule, sampling, domains=domains)
    metrics += acceptance_metrics(acceptance, totals, sampling, domains=domains, judged=rule.rate)
    if recorded.incumbent is not None:
        metrics += incumbent_metrics(totals, usable(recorded.incumbent), sampling)
    if recorded.carry_over is not None:
        metrics += carry_over_metrics(totals, usable(recorded.carry_over), sampling)
    metrics += carry_over_speedups(
        [usable(batch) for batch in recorded.carry_over_speed], alpha=ratio_alpha
    )
    mixture, share = below_floor(totals, _rule(policy.rules, BimodalityRule).floor, sampling)
    metrics.append(share)
    speed = [usable(batch) for batch in recorded.speed]
    metrics += speed_metrics(speed, metrics, sampling, ratio_alpha=ratio_alpha)
    metrics += break_even_metrics(metrics)
    break_even = break_even_points(metrics)
    metrics += fallback_metrics(acceptance, totals, policy.fallback, break_even, sampling)
    metrics += cache_metrics(speed, sampling)
    metrics += overlap_metrics(acceptance, totals, sampling, domains=domains)
    return Measurements(
        definition=recorded.acceptance.definition,
        metrics=tuple(metrics),
        counts=counts_of(_batches(recorded)),
        memory=recorded.memory,
        mixture=mixture,
        fidelity=fidelity,
        boundary=recorded.boundary,
        break_even=break_even,
        plan=recorded.planned,
        early_stop=recorded.early_stop,
        carry_over=recorded.carry_over_note,
    )


def look(recorded: Recorded, *, policy: Policy, alpha: float) -> Measurements:
    """What a stop may rest on, from the blocks so far: the same bounds as `measure` has at this
    moment, without the breakdowns that judge nothing. `recorded` counts as stopped here."""
    sampling = _sampling(recorded, policy, alpha)
    acceptance = usable(recorded.acceptance)
    totals = request_totals(acceptance)
    metrics: list[Metric] = []
    for rule in policy.rules:
        if isinstance(rule, AcceptanceRule):
            metrics += gated_metrics(totals, rule, sampling, domains=planned_domains(recorded))
    if recorded.incumbent is not None:
        metrics += incumbent_metrics(totals, usable(recorded.incumbent), sampling)
    speed = [usable(batch) for batch in recorded.speed]
    metrics += speed_metrics(
        speed, metrics, sampling, ratio_alpha=speed_alpha(alpha, policy.replay)
    )
    metrics += break_even_metrics(metrics)
    break_even = break_even_points(metrics)
    if any(isinstance(rule, FallbackRateRule) for rule in policy.rules):
        metrics += fallback_metrics(acceptance, totals, policy.fallback, break_even, sampling)
    return Measurements(
        definition=recorded.acceptance.definition,
        metrics=tuple(metrics),
        counts=counts_of((recorded.acceptance,)),
        boundary=recorded.boundary,
        break_even=break_even,
        plan=recorded.planned,
    )


def planned_domains(recorded: Recorded) -> tuple[str, ...]:
    """Those of the plan, or where there is none, those that were replayed."""
    if recorded.planned is not None:
        return recorded.planned.domains
    return tuple(map(str, np.unique(recorded.acceptance.domain)))


def _sampling(recorded: Recorded, policy: Policy, alpha: float) -> Sampling:
    plan = recorded.planned
    return Sampling(
        alpha=alpha,
        rng=np.random.default_rng(policy.seed),
        looked=plan is not None and (policy.replay.early_stopping or recorded.stopped),
        stopped=recorded.stopped,
        longest=0 if plan is None else plan.longest_unit_tokens,
    )


def _batches(recorded: Recorded) -> Sequence[TraceBatch]:
    others = (recorded.incumbent, recorded.carry_over)
    return (
        recorded.acceptance,
        *recorded.speed,
        *recorded.control,
        *(batch for batch in others if batch is not None),
    )


def _rule(rules: Sequence[Rule], kind: type[R]) -> R:
    """The policy's rule of a kind, or its defaults: a number without a rule is still shown."""
    return next((r for r in rules if isinstance(r, kind)), kind())
