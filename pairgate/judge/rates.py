"""The rules about acceptance: the floor, production, bimodality and fallback."""

from __future__ import annotations

from collections.abc import Iterator

from pairgate.domain.evidence import OVERALL, Estimate, Missing, Scope
from pairgate.domain.policy import (
    AcceptanceRule,
    BimodalityRule,
    FallbackRateRule,
    Mode,
    NonInferiorityRule,
    Rate,
)
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import MIN_POOLED, MIN_UNITS, Case
from pairgate.judge.sentences import (
    Question,
    answer,
    at,
    check,
    compare,
    interval,
    not_applicable,
    statement,
)

_WORDS = {
    Rate.TOKEN_ACCEPTANCE: "token acceptance",
    Rate.ACCEPTANCE_RATE: "acceptance rate",
    Rate.ACCEPTANCE_LENGTH: "acceptance length",
}


def acceptance_checks(rule: AcceptanceRule, case: Case) -> Iterator[Check]:
    """(a) The rate overall and in every domain, per request and pooled."""
    threshold, note = _threshold(rule, case)
    if isinstance(threshold, Missing):
        yield statement(
            rule.name,
            rule.mode,
            Outcome.INCONCLUSIVE,
            f"the threshold is not known: {threshold.reason}",
        )
    else:
        for scope in (OVERALL, *_gated(rule, case)):
            yield from _at_scope(rule, case, scope, threshold, note)
    if (
        rule.advise_threshold is not None
        and rule.rate is Rate.TOKEN_ACCEPTANCE
        and rule.advise_threshold != rule.threshold
    ):
        for scope in (OVERALL, *_gated(rule, case)):
            yield _mean_check(rule, case, scope, rule.advise_threshold, Mode.ADVISE, "")


def _at_scope(
    rule: AcceptanceRule, case: Case, scope: Scope, threshold: float, note: str
) -> Iterator[Check]:
    yield _mean_check(rule, case, scope, threshold, rule.mode, note)
    mean = case.find(f"{rule.rate}.request_mean", scope)
    # A domain of 30 to 99 requests is judged by the request mean alone.
    if scope != OVERALL and mean.n < MIN_POOLED:
        return
    metric = f"{rule.rate}.pooled"
    question = Question(
        rule=rule.name,
        mode=rule.mode,
        scope=scope,
        metric=metric,
        subject=f"pooled {_WORDS[rule.rate]}{at(scope)}",
        threshold=threshold,
        min_n=MIN_POOLED,
        fail_bounds=_corrected(case, metric, scope),
        fail_note=_correction(rule, case),
        note=note,
    )
    yield check(question, case.find(metric, scope))


def _mean_check(
    rule: AcceptanceRule, case: Case, scope: Scope, threshold: float, mode: Mode, note: str
) -> Check:
    metric = f"{rule.rate}.request_mean"
    question = Question(
        rule=rule.name,
        mode=mode,
        scope=scope,
        metric=metric,
        subject=f"{_WORDS[rule.rate]}{at(scope)}",
        threshold=threshold,
        min_n=MIN_UNITS,
        fail_bounds=_corrected(case, metric, scope),
        fail_note=_correction(rule, case),
        note=note,
    )
    return check(question, case.find(metric, scope))


def _gated(rule: AcceptanceRule, case: Case) -> tuple[Scope, ...]:
    scopes = case.measurements.scopes(f"{rule.rate}.request_mean", "domain")
    return tuple(s for s in scopes if s.key not in rule.other)


def _corrected(case: Case, metric: str, scope: Scope) -> Estimate | None:
    found = case.find(f"{metric}.corrected", scope) if scope != OVERALL else None
    return found if isinstance(found, Estimate) else None


def _correction(rule: AcceptanceRule, case: Case) -> str:
    n = len(_gated(rule, case))
    return f"not yet after correcting for {n} domains" if n > 1 else ""


def _threshold(rule: AcceptanceRule, case: Case) -> tuple[float | Missing, str]:
    """The threshold as a number, and where it came from.

    At break-even τ equals the cost of a round in plain steps; accepted / proposed is (τ − 1) / K.
    """
    if not isinstance(rule.threshold, str):
        return rule.threshold, ""
    found = case.break_even_at
    if found is None:
        reason = "break-even needs speed blocks of both arms with round times"
        return Missing(reason=reason), ""
    concurrency, alpha = found
    note = f", break-even at concurrency {concurrency}"
    if rule.rate is Rate.TOKEN_ACCEPTANCE:
        return alpha, note
    scope = Scope(kind="concurrency", key=str(concurrency))
    cost = case.find("round_cost_ratio", scope)
    k = case.find("draft_tokens_per_round", OVERALL)
    if isinstance(cost, Missing) or isinstance(k, Missing):
        return Missing(reason="the cost of a draft round was not measured"), ""
    if rule.rate is Rate.ACCEPTANCE_LENGTH:
        return cost.value, note
    return max(cost.value - 1.0, 0.0) / k.value, note


def non_inferiority_checks(rule: NonInferiorityRule, case: Case) -> Iterator[Check]:
    """(b) Judged where production has the same target; otherwise shown or not applicable."""
    if case.same_target is None:
        yield not_applicable(rule.name, "no incumbent: the line has no production version")
        return
    if not case.incumbent_has_draft:
        why = "production serves its target without a draft, so it has no acceptance"
        yield not_applicable(rule.name, why)
        return
    observed = case.find("non_inferiority", OVERALL)
    if not case.same_target:
        shown = ""
        if isinstance(observed, Estimate):
            shown = f"; shown, not judged: {interval(observed, -rule.margin)}"
        yield not_applicable(
            rule.name,
            f"production has another target, so its acceptance answers another question{shown}",
            observed=observed,
        )
        return
    question = Question(
        rule=rule.name,
        mode=rule.mode,
        scope=OVERALL,
        metric="non_inferiority",
        subject="token acceptance less that of production",
        threshold=-rule.margin,
        min_n=MIN_UNITS,
        strict=True,
    )
    yield check(question, observed)


def bimodality_checks(rule: BimodalityRule, case: Case) -> Iterator[Check]:
    """(c) The share under the floor; a strong flag makes a high share a FAIL.

    A flag alone is a warning: more data would not change it, and a small share does little harm.
    """
    observed = case.find("share_below_floor", OVERALL)
    question = Question(
        rule=rule.name,
        mode=rule.mode,
        scope=OVERALL,
        metric="share_below_floor",
        subject=f"share of requests with a token acceptance under {rule.floor:.2f}:",
        threshold=rule.max_share,
        at_least=False,
        min_n=MIN_POOLED,
    )
    mixture = case.measurements.mixture
    flagged = mixture is not None and mixture.strong
    if (
        flagged
        and isinstance(observed, Estimate)
        and observed.n >= MIN_POOLED
        and observed.value > rule.max_share
        and compare(observed, question) is Outcome.INCONCLUSIVE
    ):
        text = (
            f"{question.subject} {interval(observed, rule.max_share)} > {rule.max_share:.2f}, "
            f"and there are two kinds of requests (n={observed.n} {observed.unit})"
        )
        yield answer(question, Outcome.FAIL, text, observed)
        return
    yield check(question, observed)


def fallback_checks(rule: FallbackRateRule, case: Case) -> Iterator[Check]:
    """(d) The share of requests that would leave speculation."""
    question = Question(
        rule=rule.name,
        mode=rule.mode,
        scope=OVERALL,
        metric="fallback_share",
        subject="share of requests that would fall back",
        threshold=rule.max_share,
        at_least=False,
    )
    yield check(question, case.find("fallback_share", OVERALL))
