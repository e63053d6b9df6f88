"""Traces -> Measurements: the only place where counters become ratios.

Names (arm `spec` and scope overall unless said; docs/measures.md explains each):

    token_acceptance.request_mean / .pooled     overall, domain, temperature, prompt_length,
                                                concurrency; .pooled also token (output position);
                                                arm incumbent: overall
    token_acceptance.position                   position (1 … K)
    acceptance_rate.request_mean / .pooled      overall, domain
    acceptance_length.request_mean / .pooled    overall, domain; arm incumbent: overall
    <rate>.request_mean.corrected / .pooled.corrected
                                                domain: the rule's rate at alpha / gated domains
    draft_tokens_per_round                      proposed tokens per draft round
    non_inferiority                             candidate − incumbent, per request
    share_below_floor                           from the beta-binomial mixture
    fallback_share, fallback_misfire            counterfactual, from the acceptance pass
    inconsistent_requests                       share whose counters do not add up
    speedup, round_cost_ratio, predicted_speedup, ttft_ratio.p95, tpot_ratio.p95    concurrency
    tokens_per_s, ttft_ms.pXX, tpot_ms.pXX, chunk_gap_ms.pXX    arms spec, target; concurrency
    plain_token_share                           overall, concurrency (speed pass)

`break_even` holds (concurrency, token acceptance at which a draft round pays for itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from pairgate.domain.evidence import Fidelity, Measurements, Metric
from pairgate.domain.policy import AcceptanceRule, BimodalityRule, Policy, Rule
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import TraceBatch
from pairgate.measure.acceptance import acceptance_metrics
from pairgate.measure.counts import counts_of, inconsistent_share, usable
from pairgate.measure.fallback import fallback_metrics
from pairgate.measure.incumbent import incumbent_metrics
from pairgate.measure.looks import acceptance_stop, speed_alpha, speed_looks
from pairgate.measure.shares import below_floor
from pairgate.measure.speed import break_even_points, speed_metrics
from pairgate.measure.totals import Sampling, request_totals

__all__ = ["acceptance_stop", "measure", "speed_looks"]

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
    sampling = Sampling(
        alpha=level,
        rng=np.random.default_rng(policy.seed),
        # A run that was stopped early was looked at in submission order: keep to it.
        shuffle=not recorded.early_stop,
    )
    acceptance = usable(recorded.acceptance)
    speed = [usable(batch) for batch in recorded.speed]
    totals = request_totals(acceptance)
    rule = _rule(policy.rules, AcceptanceRule)
    metrics: list[Metric] = [inconsistent_share(_batches(recorded), alpha=level)]
    metrics += acceptance_metrics(
        acceptance, totals, rule, sampling, domains=recorded.acceptance.domain
    )
    if recorded.incumbent is not None:
        metrics += incumbent_metrics(totals, usable(recorded.incumbent), sampling)
    mixture, share = below_floor(totals, _rule(policy.rules, BimodalityRule).floor, sampling)
    metrics.append(share)
    metrics += speed_metrics(
        speed, metrics, sampling, ratio_alpha=speed_alpha(level, policy.replay)
    )
    break_even = break_even_points(metrics)
    metrics += fallback_metrics(acceptance, totals, policy.fallback, break_even, sampling)
    return Measurements(
        definition=recorded.acceptance.definition,
        metrics=tuple(metrics),
        counts=counts_of(_batches(recorded)),
        memory=recorded.memory,
        mixture=mixture,
        fidelity=fidelity,
        boundary=recorded.boundary,
        break_even=break_even,
    )


def _batches(recorded: Recorded) -> Sequence[TraceBatch]:
    incumbent = () if recorded.incumbent is None else (recorded.incumbent,)
    return (recorded.acceptance, *recorded.speed, *recorded.control, *incumbent)


def _rule(rules: Sequence[Rule], kind: type[R]) -> R:
    """The policy's rule of a kind, or its defaults: a number without a rule is still shown."""
    return next((r for r in rules if isinstance(r, kind)), kind())
