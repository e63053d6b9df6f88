"""The verdict: four outcomes, one check per rule and scope, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pairgate.domain.evidence import Estimate, Missing, Scope
from pairgate.domain.policy import Mode


class Outcome(StrEnum):
    """ERROR (the evaluation is invalid) is not FAIL (a claim), and no data is never PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"

    @property
    def exit_code(self) -> int:
        return {"PASS": 0, "FAIL": 10, "INCONCLUSIVE": 11, "ERROR": 17}[self.value]


# Worst first: the verdict is the worst of its gating checks.
_SEVERITY = (Outcome.ERROR, Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst outcome; of none at all it is INCONCLUSIVE, never PASS."""
    found = set(outcomes)
    return next((o for o in _SEVERITY if o in found), Outcome.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule on one scope. `reason` is a sentence with value, interval, threshold and n;
    `n_more` says how many more units would decide an INCONCLUSIVE one."""

    rule: str
    scope: Scope
    mode: Mode
    outcome: Outcome
    reason: str
    metric: str = ""
    observed: Estimate | Missing | None = None
    threshold: float | None = None
    n_more: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What `judge` says of one evaluation under one policy.

    `comparison` sets the version beside its target alone and beside production's draft on the same
    target, where the target is a new one; `early_stop` says how a replay ended before its plan.
    """

    outcome: Outcome
    checks: tuple[Check, ...]
    policy_digest: str
    recommendation: str = ""
    warnings: tuple[str, ...] = ()
    early_stop: str = ""
    comparison: str = ""

    @property
    def blocking(self) -> tuple[Check, ...]:
        """The gating checks that are not PASS, worst first."""
        found = [c for c in self.checks if c.mode is Mode.GATE and c.outcome is not Outcome.PASS]
        return tuple(sorted(found, key=lambda c: _SEVERITY.index(c.outcome)))
