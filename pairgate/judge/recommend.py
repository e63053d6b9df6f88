"""One sentence: what to do with this verdict."""

from __future__ import annotations

from collections.abc import Sequence

from pairgate.domain.evidence import Estimate, Scope
from pairgate.domain.policy import MemoryRule, Mode
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import Case
from pairgate.judge.comparison import carried_over_is_faster, carried_over_pays
from pairgate.judge.machine import memory_fit

# Rules whose failure is the draft's alone, as long as the target's own checks hold.
_DRAFT_RULES = {
    "acceptance",
    "non_inferiority",
    "bimodality",
    "fallback",
    "speedup",
    "latency",
    "cache",
    "memory",
    "boundary",
}


def recommendation(case: Case, outcome: Outcome, checks: Sequence[Check]) -> str:
    """What follows, with the commands that do it."""
    blocking = [c for c in checks if c.mode is Mode.GATE and c.outcome is outcome]
    line = case.version.partition("@")[0]
    if outcome is Outcome.PASS:
        if carried_over_is_faster(case) and carried_over_pays(case):
            return f"ship carried over, which is faster than the new draft: {_carry_over(case)}"
        return f"ship it: `pairgate promote {case.version}`{_where_it_does_not_pay(case)}"
    if outcome is Outcome.ERROR:
        return "the evaluation is invalid: mend what the errors name and evaluate again"
    if outcome is Outcome.INCONCLUSIVE:
        return _more_evidence(blocking)
    rules = sorted({c.rule for c in blocking})
    if not case.has_draft:
        return f"do not ship: the target itself fails ({', '.join(rules)})"
    if set(rules) <= _DRAFT_RULES and target_alone_holds(case, checks):
        if carried_over_pays(case):
            pays = "the old draft still pays on the new target"
            return f"ship carried over: {pays}: {_carry_over(case)}"
        return (
            "ship without a draft: the new target can go out alone: "
            f"`pairgate register {line} --target TARGET --method none`"
        )
    return f"do not ship: {', '.join(rules)} failed"


def _carry_over(case: Case) -> str:
    found = case.measurements.carry_over
    return (
        f"`pairgate register {case.version.partition('@')[0]} --target TARGET --draft DRAFT` with "
        f"the draft of {found.draft_of if found is not None else 'production'}, and evaluate it"
    )


def target_alone_holds(case: Case, checks: Sequence[Check]) -> bool:
    """Whether nothing that was measured speaks against the target without its draft."""
    fidelity_failed = any(c.rule == "fidelity" and c.outcome is Outcome.FAIL for c in checks)
    found = case.measurements.fidelity
    control_clean = found is None or found.n_control_divergent == 0
    rule = next((r for r in case.policy.rules if isinstance(r, MemoryRule)), MemoryRule())
    memory = [memory_fit(m, rule) for m in case.measurements.memory if m.arm is Arm.TARGET]
    boundary = [r for r in case.measurements.boundary if r.arm is Arm.TARGET]
    return (
        not fidelity_failed
        and control_clean
        and all(m.outcome is not Outcome.FAIL for m in memory)
        and all(r.ok for r in boundary)
    )


def _where_it_does_not_pay(case: Case) -> str:
    slower = []
    for concurrency, _ in case.measurements.break_even:
        found = case.find("speedup", Scope(kind="concurrency", key=str(concurrency)))
        if isinstance(found, Estimate) and found.high < 1.0:
            slower.append(str(concurrency))
    if not slower:
        return ""
    return f"; speculation slows it down at concurrency {', '.join(slower)}: serve it below that"


def _more_evidence(blocking: Sequence[Check]) -> str:
    wanted: dict[str, int] = {}
    for found in blocking:
        if found.n_more is not None and found.observed is not None:
            unit = found.observed.unit if isinstance(found.observed, Estimate) else "requests"
            wanted[unit] = max(wanted.get(unit, 0), found.n_more)
    if wanted:
        text = " and ".join(f"about {n} more {unit}" for unit, n in sorted(wanted.items()))
        return f"not decided yet: {text} would decide"
    rules = ", ".join(sorted({c.rule for c in blocking}))
    return f"not decided: see what {rules} still needs"
