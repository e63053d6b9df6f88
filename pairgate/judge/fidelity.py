"""(g) Is the output the target's own?"""

from __future__ import annotations

from collections.abc import Iterator

from pairgate.domain.evidence import Fidelity
from pairgate.domain.policy import FidelityRule
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import Case
from pairgate.judge.sentences import statement


def fidelity_checks(rule: FidelityRule, case: Case) -> Iterator[Check]:
    """One check at the level that was reached, with what it would have found."""
    found = case.measurements.fidelity
    if found is None:
        text = "the outputs of the arms were not compared"
        yield statement(rule.name, rule.mode, Outcome.INCONCLUSIVE, text)
        return
    outcome, text = _judged(found, rule, case.has_draft)
    yield statement(rule.name, rule.mode, outcome, text)


def _judged(found: Fidelity, rule: FidelityRule, has_draft: bool) -> tuple[Outcome, str]:
    violations = [*_violations(found, rule)]
    control = [*_control_violations(found, rule)]
    if not has_draft:
        return _target_alone(found, control)
    if violations and control:
        return (
            Outcome.INCONCLUSIVE,
            f"{'; '.join(violations)}; but the target alone differs from itself: "
            f"{'; '.join(control)}",
        )
    if violations:
        if found.n_control_requests == 0:
            return Outcome.INCONCLUSIVE, f"{'; '.join(violations)}; but no control was run"
        return Outcome.FAIL, f"fidelity {found.level}: {'; '.join(violations)}"
    if found.level < rule.min_level:
        text = f"fidelity was tested at {found.level}, the policy asks for {rule.min_level}"
        return Outcome.INCONCLUSIVE, text
    if found.n_unclassified:
        return (
            Outcome.INCONCLUSIVE,
            f"{found.n_unclassified} of {found.n_greedy_requests} greedy outputs differ, and the "
            f"engine gives no margins to tell a near tie from a defect",
        )
    n_tokens = found.n_greedy_tokens + found.n_sampled_tokens
    if n_tokens < rule.min_tokens:
        text = f"fidelity {found.level} from {n_tokens} tokens, {rule.min_tokens} are needed"
        return Outcome.INCONCLUSIVE, text
    return Outcome.PASS, f"fidelity {found.level}: {_summary(found)}"


def _target_alone(found: Fidelity, control: list[str]) -> tuple[Outcome, str]:
    if found.n_control_requests == 0:
        return Outcome.INCONCLUSIVE, "no control was run"
    if control:
        return Outcome.INCONCLUSIVE, f"the target differs from itself: {'; '.join(control)}"
    return (
        Outcome.PASS,
        f"the target agrees with itself over {found.n_control_requests} requests run twice",
    )


def _violations(found: Fidelity, rule: FidelityRule) -> Iterator[str]:
    real = found.n_divergent - found.n_near_tie - found.n_unclassified
    if real > 0:
        yield f"{real} of {found.n_greedy_requests} greedy outputs differ from the target's own"
    if found.n_support_violations:
        yield f"{found.n_support_violations} accepted tokens lie outside the target's support"
    for score in found.scores:
        if abs(score.z) > rule.max_abs_z:
            yield f"{score.name} z = {score.z:.1f}, |z| > {rule.max_abs_z:.2f} (n={score.n})"


def _control_violations(found: Fidelity, rule: FidelityRule) -> Iterator[str]:
    if found.n_control_divergent:
        yield f"{found.n_control_divergent} greedy outputs differ between two runs"
    for score in found.control_scores:
        if abs(score.z) > rule.max_abs_z:
            yield f"{score.name} z = {score.z:.1f}"


def _summary(found: Fidelity) -> str:
    parts = []
    if found.n_greedy_requests:
        ties = f", {found.n_near_tie} near ties" if found.n_near_tie else ""
        parts.append(
            f"{found.n_greedy_requests} greedy outputs equal the target's own "
            f"({found.n_greedy_tokens} tokens{ties})"
        )
    parts += [f"{s.name} z = {s.z:.1f} (n={s.n})" for s in found.scores]
    if found.smallest_defect:
        parts.append(f"would have found {found.smallest_defect}")
    return "; ".join(parts)
