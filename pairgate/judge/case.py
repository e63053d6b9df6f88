"""What is judged: the arguments of `judge`, together."""

from __future__ import annotations

from dataclasses import dataclass

from pairgate.domain.evidence import Estimate, Measurements, Missing, Scope
from pairgate.domain.policy import Policy, SpeedupRule

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

    def find(self, name: str, scope: Scope) -> Estimate | Missing:
        return self.measurements.find(name, scope)

    @property
    def speed_gates_at(self) -> tuple[int, ...]:
        """The concurrencies at which the pair has to pay. A rule that only advises is not asked:
        the policy's digest does not cover it."""
        rule = next((r for r in self.policy.gates if isinstance(r, SpeedupRule)), SpeedupRule())
        named = rule.concurrencies or self.concurrencies
        return tuple(c for c in named if c not in rule.advise_at) or named

    @property
    def break_even_at(self) -> tuple[int, float] | None:
        """(concurrency, token acceptance): the highest break-even among those; None if unknown."""
        known = [p for p in self.measurements.break_even if p[0] in self.speed_gates_at]
        return max(known, key=lambda p: p[1], default=None)
