"""A policy in sentences."""

from __future__ import annotations

from pairgate.domain.policy import (
    AcceptanceRule,
    ApprovalSettings,
    BimodalityRule,
    CacheRule,
    FallbackRateRule,
    FidelityRule,
    LatencyRule,
    MemoryRule,
    NonInferiorityRule,
    Policy,
    Rule,
    SpeedupRule,
)


def explained(policy: Policy) -> list[str]:
    """What the policy gates and shows, one sentence per rule, then how it is measured."""
    sentences = [f"{_mode(rule)}: {_rule(rule)}." for rule in policy.rules]
    replay, fallback, approvals = policy.replay, policy.fallback, policy.approvals
    sentences.append(
        f"each bound holds with error {policy.alpha:g}; attempt k is measured at "
        f"{policy.alpha:g} / 2^k; the seed is {policy.seed}."
    )
    sentences.append(
        "the replay ends at a certain FAIL, and the acceptance pass at a certain PASS from 100 "
        "requests on."
        if replay.early_stopping
        else "the acceptance pass runs to its end; a FAIL then ends the replay."
    )
    sentences.append(
        f"speed: {replay.min_blocks} to {replay.max_blocks} blocks per arm and concurrency; "
        f"more than {replay.max_failed_share:.1%} failed requests make the evaluation invalid."
    )
    sentences.append(
        f"a request leaves speculation when the upper Wilson bound (z = {fallback.z:g}) of its "
        f"last {fallback.window} tested tokens, at least {fallback.minimum}, is under "
        f"{fallback.floor}{' and is probed again later' if fallback.reprobe else ''}."
    )
    sentences.append(
        f"evidence promotes for {policy.max_age_days:g} days, files verified within "
        f"{policy.verify_max_age_days:g} days, with {_approvals(approvals)}."
    )
    if policy.profiles:
        sentences.append(
            f"a promotion needs a PASS on the line's own profile and on each of: "
            f"{', '.join(policy.profiles)}."
        )
    return sentences


def _approvals(approvals: ApprovalSettings) -> str:
    n = max(approvals.required, len(approvals.names))
    named = f" for {', '.join(approvals.names)}" if approvals.names else ""
    others = " by different people, none of whom promotes" if n and approvals.distinct else ""
    return f"{n} approvals{named}{others}"


def _mode(rule: Rule) -> str:
    return f"{rule.mode}s {rule.name}"


def _rule(rule: Rule) -> str:
    match rule:
        case AcceptanceRule():
            return _acceptance(rule)
        case NonInferiorityRule():
            return (
                "on the same requests, the token acceptance is not under that of production by "
                f"more than {rule.margin:g}, where the target is the same"
            )
        case BimodalityRule():
            return (
                f"at most {rule.max_share:.0%} of the requests have a token acceptance of their "
                f"own under {rule.floor:g}"
            )
        case FallbackRateRule():
            return f"at most {rule.max_share:.0%} of the requests would leave speculation"
        case SpeedupRule():
            own = "".join(f", over {ratio:g} at {c}" for c, ratio in rule.at)
            return (
                f"tokens per second with / without draft over {rule.min_ratio:g}{_where(rule)}{own}"
            )
        case MemoryRule():
            budget = "the machine's memory"
            if rule.budget_bytes is not None:
                budget = f"{rule.budget_bytes / 2**30:.2f} GiB"
            return f"peak memory and the analytic bound fit {budget} less {rule.margin:.0%}"
        case FidelityRule():
            higher = f" ({rule.level} where engine and method allow it)"
            return (
                f"the output is the target's own at level {rule.min_level}"
                f"{higher if rule.wanted > rule.min_level else ''}: no real greedy "
                f"divergence, |z| up to {rule.max_abs_z:g}, from {rule.min_tokens} tokens on"
            )
        case LatencyRule():
            return (
                f"p95 with / without draft: time to first token up to {rule.max_ttft_ratio:g}, "
                f"time per output token up to {rule.max_tpot_ratio:g}{_where(rule)}; on the "
                f"native engine it {rule.on_native}s"
            )
        case CacheRule():
            return f"the prefix-cache hit share does not drop by more than {rule.max_drop:g}"


def _acceptance(rule: AcceptanceRule) -> str:
    floor = (
        "the break-even of the measured costs"
        if isinstance(rule.threshold, str)
        else f"{rule.threshold:g}"
    )
    other = f" except {', '.join(rule.other)}" if rule.other else ""
    shown = ""
    if rule.advise_threshold is not None and rule.rate == "token_acceptance":
        shown = f"; {rule.advise_threshold:g} is shown as well"
    own = "".join(
        f"; in {domain} at least {value if isinstance(value, str) else f'{value:g}'}"
        for domain, value in rule.domains
    )
    return (
        f"{rule.rate.replace('_', ' ')}, per request and pooled, is at least {floor}, overall and "
        f"in every domain{other}{own}{shown}"
    )


def _where(rule: SpeedupRule | LatencyRule) -> str:
    named = (
        "at the profile's concurrencies"
        if rule.concurrencies is None
        else f"at concurrency {', '.join(map(str, rule.concurrencies))}"
    )
    shown = f", shown only at {', '.join(map(str, rule.advise_at))}" if rule.advise_at else ""
    return f", {named}{shown}"
