"""The rules beside the floor: production, bimodality and fallback."""

from __future__ import annotations

from collections.abc import Iterator

from pairgate.domain.evidence import OVERALL, Estimate
from pairgate.domain.policy import (
    BimodalityRule,
    FallbackRateRule,
    NonInferiorityRule,
)
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import MIN_POOLED, MIN_UNITS, Case
from pairgate.judge.sentences import (
    Question,
    answer,
    check,
    compare,
    interval,
    not_applicable,
)


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
