"""(a) The acceptance rule: overall and in every domain, per request and pooled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pairgate.domain.evidence import OVERALL, Estimate, Missing, Scope
from pairgate.domain.policy import AcceptanceRule, Mode, Rate
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import MIN_POOLED, MIN_UNITS, Case
from pairgate.judge.sentences import Question, at, check, statement

_WORDS = {
    Rate.TOKEN_ACCEPTANCE: "token acceptance",
    Rate.ACCEPTANCE_RATE: "acceptance rate",
    Rate.ACCEPTANCE_LENGTH: "acceptance length",
}


def acceptance_checks(rule: AcceptanceRule, case: Case) -> Iterator[Check]:
    """(a) The rate overall and in every domain, per request and pooled."""
    scopes = (OVERALL, *_gated(rule, case))
    found = {scope: _threshold(rule, case, scope) for scope in scopes}
    unknown = [t for t in found.values() if isinstance(t, Missing)]
    if unknown:
        text = f"the threshold is not known: {unknown[0].reason}"
        yield statement(rule.name, rule.mode, Outcome.INCONCLUSIVE, text)
    known = {s: t for s, t in found.items() if isinstance(t, Threshold)}
    refuted = {
        metric: holm_refuted(case, f"{rule.rate}.{metric}", known, scopes[1:])
        for metric in ("request_mean", "pooled")
    }
    for scope, threshold in known.items():
        yield _mean_check(rule, case, scope, threshold, rule.mode, refuted["request_mean"])
        yield from _pooled_check(rule, case, scope, threshold, refuted["pooled"])
    advised = rule.advise_threshold
    if advised is None or rule.rate is not Rate.TOKEN_ACCEPTANCE or advised == rule.threshold:
        return
    floor = Threshold(value=advised, low=advised, high=advised)
    below = holm_refuted(
        case, f"{rule.rate}.request_mean", dict.fromkeys(scopes, floor), scopes[1:]
    )
    for scope in scopes:
        yield _mean_check(rule, case, scope, floor, Mode.ADVISE, below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What a rate has to reach: `high` for a PASS; under `low` it is a FAIL. They differ where the
    threshold is itself measured; `note` says where it came from."""

    value: float
    low: float
    high: float
    note: str = ""


def holm_refuted(
    case: Case, metric: str, thresholds: Mapping[Scope, Threshold], domains: Sequence[Scope]
) -> frozenset[Scope]:
    """The domains that fail by Holm's step-down procedure (Holm 1979) over all of `domains`.

    Per domain it is known at which alpha / d its upper bound is still under the threshold; the
    strongest has to hold at alpha / n, the next at alpha / (n − 1), … until one does not.
    """
    reach = {s: _reach(case, metric, s, thresholds[s]) for s in domains if s in thresholds}
    refuted: set[Scope] = set()
    for i, scope in enumerate(sorted(reach, key=lambda s: (-reach[s], s.key))):
        if reach[scope] < len(domains) - i:
            break
        refuted.add(scope)
    return frozenset(refuted)


def _reach(case: Case, metric: str, scope: Scope, threshold: Threshold) -> int:
    """The largest divisor of alpha at which the domain is still under its threshold; 0 if none."""
    plain = case.find(metric, scope)
    if isinstance(plain, Missing) or plain.n < MIN_UNITS:
        return 0
    reached = 1 if plain.high < threshold.low else 0
    for bound in _corrected(case, metric, scope):
        if bound.high < threshold.low:
            reached = max(reached, round(plain.alpha / bound.alpha))
    return reached


def _corrected(case: Case, metric: str, scope: Scope) -> tuple[Estimate, ...]:
    """The bounds of one domain at alpha / d, largest divisor first."""
    return tuple(
        m.value
        for m in case.measurements.metrics
        if m.name == f"{metric}.corrected" and m.scope == scope and isinstance(m.value, Estimate)
    )


def _mean_check(
    rule: AcceptanceRule,
    case: Case,
    scope: Scope,
    threshold: Threshold,
    mode: Mode,
    refuted: frozenset[Scope],
) -> Check:
    metric = f"{rule.rate}.request_mean"
    question = replace(
        _question(rule, case, scope, threshold, metric, refuted),
        mode=mode,
        subject=f"{_WORDS[rule.rate]}{at(scope)}",
        min_n=MIN_UNITS,
    )
    return check(question, case.find(metric, scope))


def _pooled_check(
    rule: AcceptanceRule,
    case: Case,
    scope: Scope,
    threshold: Threshold,
    refuted: frozenset[Scope],
) -> Iterator[Check]:
    """A domain of 30 to 99 requests is judged by the request mean alone. Where the pass was stopped
    before its end, the pooled bound is by betting, holds at any n, and is asked for from 30 on: a
    stop must not be a way around it."""
    metric = f"{rule.rate}.pooled"
    observed = case.find(metric, scope)
    stop = case.measurements.early_stop
    stopped = stop is not None and stop.n_saved > 0
    mean = case.find(f"{rule.rate}.request_mean", scope)
    if scope != OVERALL and mean.n < (MIN_UNITS if stopped else MIN_POOLED):
        return
    question = _question(rule, case, scope, threshold, metric, refuted)
    yield check(
        replace(
            question,
            subject=f"pooled {_WORDS[rule.rate]}{at(scope)}",
            min_n=MIN_UNITS if stopped and scope != OVERALL else MIN_POOLED,
        ),
        observed,
    )


def _question(
    rule: AcceptanceRule,
    case: Case,
    scope: Scope,
    threshold: Threshold,
    metric: str,
    refuted: frozenset[Scope],
) -> Question:
    is_domain = scope != OVERALL
    corrected = _corrected(case, metric, scope) if is_domain else ()
    n = len(_gated(rule, case))
    return Question(
        rule=rule.name,
        mode=rule.mode,
        scope=scope,
        metric=metric,
        subject="",
        threshold=threshold.value,
        pass_at=threshold.high,
        fail_at=threshold.low,
        refuted=scope in refuted if is_domain else None,
        fail_bounds=corrected[0] if corrected else None,
        fail_note=f"not yet after correcting for {n} domains" if is_domain and n > 1 else "",
        note=threshold.note,
    )


def _gated(rule: AcceptanceRule, case: Case) -> tuple[Scope, ...]:
    scopes = case.measurements.scopes(f"{rule.rate}.request_mean", "domain")
    return tuple(s for s in scopes if s.key not in rule.other)


def _threshold(rule: AcceptanceRule, case: Case, scope: Scope) -> Threshold | Missing:
    """The threshold of a scope. At break-even τ equals the cost of a round in plain steps, and
    accepted / proposed is (τ − 1) / K; a PASS has to clear its upper bound, a FAIL the lower."""
    wanted = rule.threshold_in(None if scope == OVERALL else scope.key)
    if not isinstance(wanted, str):
        return Threshold(value=wanted, low=wanted, high=wanted)
    found = case.break_even
    if found is None:
        return Missing(reason="break-even needs speed blocks of both arms with round times")
    numbers = (found.value, found.low, found.high)
    if rule.rate is not Rate.TOKEN_ACCEPTANCE:
        costs = [
            case.find("round_cost_ratio", Scope(kind="concurrency", key=str(c)))
            for c in case.speed_gates_at
        ]
        k = case.find("draft_tokens_per_round", OVERALL)
        known = [cost for cost in costs if isinstance(cost, Estimate)]
        if len(known) < len(costs) or isinstance(k, Missing):
            return Missing(reason="the cost of a draft round was not measured")
        most = max(known, key=lambda cost: cost.value)
        numbers = (most.value, most.low, max(cost.high for cost in known))
        if rule.rate is Rate.ACCEPTANCE_RATE:
            value, low, high = (max(cost - 1.0, 0.0) / k.value for cost in numbers)
            numbers = (value, low, high)
    value, low, high = numbers
    note = f", break-even at concurrency {found.concurrency} {value:.2f} [{low:.2f}, {high:.2f}]"
    return Threshold(value=value, low=low, high=high, note=note)
