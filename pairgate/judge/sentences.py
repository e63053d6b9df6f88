"""Comparing an estimate with a threshold, and saying so in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pairgate.domain.evidence import OVERALL, Estimate, Missing, Scope
from pairgate.domain.policy import Mode
from pairgate.domain.verdict import Check, Outcome
from pairgate.stats.proportion import units_without_event

_VERB = {
    Outcome.PASS: "passes",
    Outcome.FAIL: "fails",
    Outcome.INCONCLUSIVE: "undecided",
    Outcome.ERROR: "invalid",
}
_MOST_UNITS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one check asks: is the quantity `at_least` (or at most) the threshold?

    `min_n` units are needed before anything is claimed. `pass_at` and `fail_at` are what the bounds
    have to clear where the threshold is itself an interval. `refuted`, where given, says whether a
    FAIL holds after a correction for several claims; `fail_bounds` is the widest interval of that
    correction, `fail_note` names it. `strict`: equality is not enough.
    """

    rule: str
    mode: Mode
    scope: Scope
    metric: str
    subject: str
    threshold: float
    at_least: bool = True
    min_n: int = 1
    strict: bool = False
    pass_at: float | None = None
    fail_at: float | None = None
    refuted: bool | None = None
    fail_bounds: Estimate | None = None
    fail_note: str = ""
    note: str = ""

    @property
    def clears(self) -> float:
        """What the bound of a PASS has to clear."""
        return self.threshold if self.pass_at is None else self.pass_at

    @property
    def misses(self) -> float:
        """What the bound of a FAIL has to miss."""
        return self.threshold if self.fail_at is None else self.fail_at


def check(question: Question, observed: Estimate | Missing) -> Check:
    """The check that answers a question."""
    if isinstance(observed, Missing):
        return answer(
            question,
            Outcome.INCONCLUSIVE,
            f"{question.subject} was not measured: {observed.reason}",
            observed,
            question.min_n - observed.n if observed.n < question.min_n > 1 else None,
        )
    if observed.n < question.min_n:
        return answer(
            question,
            Outcome.INCONCLUSIVE,
            f"{question.subject} {interval(observed, question.threshold)} from {observed.n} "
            f"{observed.unit}, at least {question.min_n} are needed",
            observed,
            question.min_n - observed.n,
        )
    outcome = compare(observed, question)
    beside = question.misses if outcome is Outcome.FAIL else question.clears
    text = (
        f"{question.subject} {interval(observed, beside)} "
        f"{_symbol(question, outcome)} {number(beside, observed)}"
    )
    more = n_more(observed, question) if outcome is Outcome.INCONCLUSIVE else None
    notes = [f"n={observed.n} {observed.unit}"]
    if outcome is Outcome.INCONCLUSIVE:
        if question.fail_note and _refuted(observed, question):
            notes.append(question.fail_note)
        notes.append(
            "more would not decide"
            if more is None
            else f"about {more} {observed.unit} more would decide"
        )
    return answer(question, outcome, f"{text} ({', '.join(notes)}){question.note}", observed, more)


def compare(observed: Estimate, question: Question) -> Outcome:
    """PASS when the bound clears the threshold, FAIL when the opposite bound misses it."""
    if question.at_least:
        clears = (
            observed.low > question.clears if question.strict else observed.low >= question.clears
        )
    else:
        clears = observed.high <= question.clears
    if clears:
        return Outcome.PASS
    refuted = _refuted(observed, question) if question.refuted is None else question.refuted
    return Outcome.FAIL if refuted else Outcome.INCONCLUSIVE


def _refuted(observed: Estimate, question: Question) -> bool:
    if question.at_least:
        return observed.high < question.misses
    return observed.low > question.misses


def n_more(observed: Estimate, question: Question) -> int | None:
    """Units that would decide if the value stays: intervals shrink with 1/√n. None if it sits on
    the threshold, where no number decides."""
    toward = observed.value > question.threshold
    # Above, what is still missing is the PASS of an "at least" and the FAIL of an "at most".
    beside = question.clears if toward is question.at_least else question.misses
    distance = abs(observed.value - beside)
    if toward != (observed.value > beside):
        return None  # inside the threshold's own interval
    if observed.value == 0.0 and not question.at_least:
        needed = units_without_event(question.threshold, alpha=observed.alpha)
        return max(needed - observed.n, 1)
    half = observed.value - observed.low if toward else observed.high - observed.value
    if question.fail_bounds is not None and not toward:
        half = question.fail_bounds.high - observed.value
    if distance <= 0.0:
        return None
    needed_n = observed.n * (half / distance) ** 2
    if needed_n > _MOST_UNITS:
        return None
    return max(math.ceil(needed_n - observed.n), 1)


def interval(observed: Estimate, threshold: float) -> str:
    """`0.41 [0.38, 0.44]`, with as many digits as it takes to see which side a bound is on."""
    digits = _digits(observed, threshold)
    return f"{observed.value:.{digits}f} [{observed.low:.{digits}f}, {observed.high:.{digits}f}]"


def number(threshold: float, observed: Estimate) -> str:
    """A threshold with as many digits as the estimate beside it needs."""
    return f"{threshold:.{_digits(observed, threshold)}f}"


def _digits(observed: Estimate, threshold: float) -> int:
    for digits in (2, 3, 4):
        shown = round(threshold, digits)
        if all(
            round(bound, digits) != shown
            for bound in (observed.low, observed.high)
            if bound != threshold
        ):
            return digits
    return 4


def _symbol(question: Question, outcome: Outcome) -> str:
    if outcome is Outcome.INCONCLUSIVE:
        return "against"
    good = ">" if question.strict else ">="
    if outcome is Outcome.PASS:
        return good if question.at_least else "<="
    return "<" if question.at_least else ">"


def answer(
    question: Question,
    outcome: Outcome,
    text: str,
    observed: Estimate | Missing | None,
    more: int | None = None,
) -> Check:
    """The check that answers a question: its outcome, and a reason that begins with it."""
    return Check(
        rule=question.rule,
        scope=question.scope,
        mode=question.mode,
        outcome=outcome,
        reason=f"{_VERB[outcome]}: {text}",
        metric=question.metric,
        observed=observed,
        threshold=question.threshold,
        n_more=more,
    )


def statement(rule: str, mode: Mode, outcome: Outcome, text: str, scope: Scope = OVERALL) -> Check:
    """A check without an estimate."""
    return Check(
        rule=rule, scope=scope, mode=mode, outcome=outcome, reason=f"{_VERB[outcome]}: {text}"
    )


def not_applicable(
    rule: str, why: str, *, scope: Scope = OVERALL, observed: Estimate | Missing | None = None
) -> Check:
    """Shown and never decides: neither a silent pass nor a reason to refuse."""
    return Check(
        rule=rule,
        scope=scope,
        mode=Mode.ADVISE,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"not applicable: {why}",
        observed=observed,
    )


def at(scope: Scope) -> str:
    """` in "sql"`, ` at concurrency 8`, or ` overall`."""
    if scope.kind == "domain":
        return f' in "{scope.key}"'
    return " overall" if scope.kind == "overall" else f" at {scope}"
