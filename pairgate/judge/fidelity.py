"""(g) Is the output the target's own?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from pairgate.domain.evidence import Estimate, Fidelity, LawTests
from pairgate.domain.policy import FidelityRule
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import Case
from pairgate.judge.sentences import statement

DRAFT_SCORE_TOLERANCE = 0.01
SURPRISAL_TOLERANCE_NATS = 0.05


def fidelity_checks(rule: FidelityRule, case: Case) -> Iterator[Check]:
    """One check at the level that was reached, with what it would have found."""
    found = case.measurements.fidelity
    if found is None:
        text = "the outputs of the arms were not compared"
        yield statement(rule.name, rule.mode, Outcome.INCONCLUSIVE, text)
        return
    judged = _with_draft(found, rule) if case.has_draft else _target_alone(found, rule)
    yield statement(rule.name, rule.mode, judged.outcome, judged.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    outcome: Outcome
    text: str


def _with_draft(found: Fidelity, rule: FidelityRule) -> _Judged:
    violations = [*_violations(found, rule)]
    control = [*_control_violations(found, rule)]
    if violations and control:
        text = (
            f"{'; '.join(violations)}; but the target alone differs from itself: "
            f"{'; '.join(control)}"
        )
        return _undecided(text)
    if violations:
        if found.n_control_requests == 0:
            return _undecided(f"{'; '.join(violations)}; but no control was run")
        return _Judged(
            outcome=Outcome.FAIL, text=f"fidelity {found.level}: {'; '.join(violations)}"
        )
    if found.n_unclassified:
        return _undecided(
            f"{found.n_unclassified} of {found.n_greedy_requests} greedy outputs differ, and the "
            f"engine gives no margins to tell a near tie from a defect"
        )
    n_compared = found.n_greedy_tokens + found.n_sampled_tokens
    return _if_enough(found, rule, rule.min_level, n_compared, _summary(found))


def _target_alone(found: Fidelity, rule: FidelityRule) -> _Judged:
    """Without a draft nothing can bend the output, so what differs speaks of the engine; but the
    policy's minimum of tokens and level hold as for any other version (F3 needs a draft)."""
    if found.n_control_requests == 0:
        return _undecided("no control was run")
    control = [*_control_violations(found, rule), *_law_violations(found.law, rule)]
    if control:
        return _undecided(f"the target differs from itself: {'; '.join(control)}")
    parts = [f"the target agrees with itself over {found.n_control_requests} requests run twice"]
    if found.law is not None:
        parts.append(_law_summary(found.law))
    return _if_enough(
        found, rule, min(rule.min_level, "F2"), found.n_control_tokens, "; ".join(parts)
    )


def _if_enough(
    found: Fidelity, rule: FidelityRule, min_level: str, n_compared: int, summary: str
) -> _Judged:
    """PASS where the level was reached, on enough tokens, with both means inside the tolerance."""
    if found.level < min_level:
        return _undecided(f"fidelity was tested at {found.level}, the policy asks for {min_level}")
    law = found.law
    n_tokens = max(n_compared, 0 if law is None else law.n_tokens + law.n_certain)
    if n_tokens < rule.min_tokens:
        return _undecided(
            f"fidelity {found.level} from {n_tokens} tokens, {rule.min_tokens} are needed"
        )
    wide = [] if law is None else [*_too_wide(law)]
    if wide:
        return _undecided(f"fidelity {found.level}: {'; '.join(wide)}")
    return _Judged(outcome=Outcome.PASS, text=f"fidelity {found.level}: {summary}")


def _undecided(text: str) -> _Judged:
    return _Judged(outcome=Outcome.INCONCLUSIVE, text=text)


def _too_wide(law: LawTests) -> Iterator[str]:
    """Means whose interval is not inside its tolerance."""
    asked = [("mean surprisal", law.surprisal, SURPRISAL_TOLERANCE_NATS, " nat")]
    if law.level == "F3":
        asked.append(("mean draft score", law.draft_score, DRAFT_SCORE_TOLERANCE, ""))
    for name, mean, tolerance, unit in asked:
        if mean is None:
            if law.n_tokens:
                yield f"too few sampled tokens for the {name} (n={law.n_tokens})"
        elif max(abs(mean.low), abs(mean.high)) > tolerance:
            yield (
                f"{name} {_interval(mean)}{unit} is not certainly within ±{tolerance:g} "
                f"(n={mean.n}{_more(mean, tolerance)})"
            )


def _interval(mean: Estimate) -> str:
    return f"{mean.value:+.4f} [{mean.low:+.4f}, {mean.high:+.4f}]"


def _more(mean: Estimate, tolerance: float) -> str:
    """How many tokens would decide, if the true mean is 0 (its own error then shrinks too)."""
    half = (mean.high - mean.low) / 2.0
    needed = ceil(mean.n * (2.0 * half / tolerance) ** 2) - mean.n
    return f", about {needed} more tokens would decide" if needed > 0 else ""


def _violations(found: Fidelity, rule: FidelityRule) -> Iterator[str]:
    real = found.n_divergent - found.n_near_tie - found.n_unclassified
    if real > 0:
        yield f"{real} of {found.n_greedy_requests} greedy outputs differ from the target's own"
    if found.n_support_violations:
        yield f"{found.n_support_violations} accepted tokens lie outside the target's support"
    for score in found.scores:
        if abs(score.z) > rule.max_abs_z:
            yield f"{score.name} z = {score.z:.1f}, |z| > {rule.max_abs_z:.2f} (n={score.n})"
    yield from _law_violations(found.law, rule)


def _law_violations(law: LawTests | None, rule: FidelityRule) -> Iterator[str]:
    if law is None:
        return
    if law.n_outside:
        yield f"{law.n_outside} emitted tokens lie outside what the target can emit there"
    if law.n_after_end:
        yield f"{law.n_after_end} tokens were emitted after an end token"
    if law.n_recovered_below:
        yield f"{law.n_recovered_below} recovered tokens are likelier under the draft"
    for score in law.scores:
        if abs(score.z) > rule.max_abs_z:
            yield f"{score.name} z = {score.z:.1f}, |z| > {rule.max_abs_z:.2f} (n={score.n})"


def _control_violations(found: Fidelity, rule: FidelityRule) -> Iterator[str]:
    if found.n_control_divergent:
        yield f"{found.n_control_divergent} greedy outputs differ between two runs"
    for score in found.control_scores:
        if abs(score.z) > rule.max_abs_z:
            yield f"{score.name} z = {score.z:.1f}"
    yield from _law_violations(found.control_law, rule)


def _summary(found: Fidelity) -> str:
    parts = []
    if found.n_greedy_requests:
        ties = f", {found.n_near_tie} near ties" if found.n_near_tie else ""
        parts.append(
            f"{found.n_greedy_requests} greedy outputs equal the target's own "
            f"({found.n_greedy_tokens} tokens{ties})"
        )
    parts += [f"{s.name} z = {s.z:.1f} (n={s.n})" for s in found.scores]
    if found.law is not None:
        parts.append(_law_summary(found.law))
    defects = [found.smallest_defect, "" if found.law is None else found.law.smallest_defect]
    if any(defects):
        parts.append(f"would have found {'; '.join(d for d in defects if d)}")
    return "; ".join(parts)


def _law_summary(law: LawTests) -> str:
    means = [("surprisal", law.surprisal, " nat"), ("draft score", law.draft_score, "")]
    parts = [f"{law.n_tokens} sampled tokens keep the target's law"]
    parts += [f"mean {name} {_interval(m)}{unit}" for name, m, unit in means if m is not None]
    parts += [f"{s.name} z = {s.z:.1f} (n={s.n})" for s in law.scores]
    return "; ".join(parts)
