"""What is judged: the arguments of `judge`, together."""

from __future__ import annotations

from dataclasses import dataclass

from pairgate.domain.evidence import Estimate, Measurements, Missing, Scope
from pairgate.domain.policy import Policy, SpeedupRule
from pairgate.domain.trace import Arm

MIN_UNITS = 30  # for a mean
MIN_POOLED = 100  # for a pooled ratio and for the mixture
MIN_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that the rules look at: measurements, policy, and what is known of the setting."""

    measurements: Measurements
    policy: Policy
    same_target: bool | None
    incumbent_has_draft: bool
    concurrencies: tuple[int, ...]
    engine: str
    has_draft: bool
    prefix_cache: bool
    version: str

    def find(self, name: str, scope: Scope, arm: Arm = Arm.SPEC) -> Estimate | Missing:
        found = self.measurements.find(name, scope, arm)
        stop = self.measurements.early_stop
        if isinstance(found, Missing) and stop is not None and stop.left_out:
            measured = any(m.name == name and m.scope == scope for m in self.measurements.metrics)
            if not measured:
                return Missing(reason=f"the evaluation ended before, because {stop.why}")
        return found

    @property
    def speed_gates_at(self) -> tuple[int, ...]:
        """The concurrencies at which the pair has to pay. A rule that only advises is not asked:
        the policy's digest does not cover it."""
        rule = next((r for r in self.policy.gates if isinstance(r, SpeedupRule)), SpeedupRule())
        return rule.gated(self.concurrencies) or rule.concurrencies or self.concurrencies

    @property
    def break_even(self) -> BreakEven | None:
        """The highest break-even among those concurrencies; None while one is unknown."""
        known = {
            c: self.measurements.find("break_even", Scope(kind="concurrency", key=str(c)))
            for c in self.speed_gates_at
        }
        found = {c: value for c, value in known.items() if isinstance(value, Estimate)}
        if not found or len(found) < len(known):
            return None
        at = max(found, key=lambda c: found[c].value)
        return BreakEven(
            concurrency=at,
            value=found[at].value,
            low=found[at].low,
            high=max(value.high for value in found.values()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where a draft round stops paying: at least `low` for sure, and `high` at most."""

    concurrency: int
    value: float
    low: float
    high: float
