"""Looks at an evaluation that still runs: when it has failed, and when its acceptance has passed.

A look measures the blocks so far as if the replay ended here (`measure.look`: bounds that hold at
every moment) and judges them by the rules of the policy that such bounds exist for. So a stop
never rests on anything but the verdict's own rules (docs/decisions/0013-stopping-early.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pairgate.app.evidence import Candidate
from pairgate.app.teacher_forcing import enough_tokens
from pairgate.domain.evidence import BoundaryResult, EarlyStop, EngineInfo
from pairgate.domain.policy import (
    AcceptanceRule,
    BimodalityRule,
    FallbackRateRule,
    Mode,
    NonInferiorityRule,
    Policy,
    Rule,
    SpeedupRule,
)
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import TraceBatch
from pairgate.domain.traffic import TrafficSlice
from pairgate.domain.verdict import Check, Outcome, worst
from pairgate.judge import judge
from pairgate.measure import look, speed_looks
from pairgate.replay import acceptance_plan

MIN_REQUESTS_TO_PASS = 100
_SEQUENTIAL = (AcceptanceRule, NonInferiorityRule, FallbackRateRule)


class Looks:
    """What one replay asks on its way; remembers why it ended.

    `goes_on_anyway` is `evaluate --all`: a FAIL ends nothing. `incumbent` gives stored traces of
    production under equal conditions; without them a policy that compares with production (on the
    same target) cannot pass early.
    """

    def __init__(
        self,
        candidate: Candidate,
        traffic: TrafficSlice,
        alpha: float,
        *,
        goes_on_anyway: bool = False,
        incumbent: Callable[[], TraceBatch | None] = lambda: None,
    ) -> None:
        self.why = ""
        self.failed = False
        self._candidate = candidate
        self._policy: Policy = candidate.setting.policy
        self._alpha = alpha
        self._anyway = goes_on_anyway
        self._find_incumbent = incumbent
        self._incumbent: TraceBatch | None = None
        self._boundary: tuple[BoundaryResult, ...] = ()
        self._screen: tuple[TraceBatch, ...] = ()
        self._plan = acceptance_plan(traffic)
        setting = candidate.setting
        self.more_blocks = speed_looks(self._policy, alpha=alpha, engine=setting.profile.engine)

    def screened(self, boundary: tuple[BoundaryResult, ...], speed: tuple[TraceBatch, ...]) -> None:
        """What ran before the acceptance pass."""
        self._boundary, self._screen = boundary, speed
        if self._candidate.same_target and any(
            isinstance(rule, NonInferiorityRule) for rule in self._policy.gates
        ):
            self._incumbent = self._find_incumbent()

    def stop(self, acceptance: TraceBatch) -> bool:
        """After each block of the acceptance pass: whether no further request is needed."""
        if not self._policy.replay.early_stopping:
            return False
        checks = self._looked_at(acceptance, self._screen)
        if worst(c.outcome for c in checks) is Outcome.FAIL and not self._anyway:
            return self._fails(checks)
        # Speed has more blocks to come; by its first ones it can only fail.
        rates = [c for c in checks if c.rule != SpeedupRule.name]
        if (
            worst(c.outcome for c in rates) is Outcome.PASS
            and len(acceptance) >= MIN_REQUESTS_TO_PASS
            and self._pass_may_stop
            and enough_tokens(self._policy, acceptance)
        ):
            self.why = "the acceptance rules had certainly passed"
            return True
        return False

    def goes_on(self, acceptance: TraceBatch, speed: tuple[TraceBatch, ...]) -> bool:
        """Between the stages: whether nothing has failed yet."""
        if self._anyway or self.failed:
            return self._anyway
        checks = self._looked_at(acceptance, speed or self._screen)
        return not (worst(c.outcome for c in checks) is Outcome.FAIL and self._fails(checks))

    @property
    def _pass_may_stop(self) -> bool:
        """The mixture's share has no bound that holds at every look, so a policy that gates it runs
        to the end."""
        return not any(isinstance(rule, BimodalityRule) for rule in self._policy.gates)

    def _fails(self, checks: list[Check]) -> bool:
        self.failed = True
        rules = sorted({c.rule for c in checks if c.outcome is Outcome.FAIL})
        failed = f"it had certainly failed ({', '.join(rules)})"
        self.why = f"{self.why}, and later {failed}" if self.why else failed
        return True

    def outcome(self, acceptance: TraceBatch, speed: tuple[TraceBatch, ...]) -> Outcome:
        """What the rules that a look can judge say of these blocks."""
        return worst(c.outcome for c in self._looked_at(acceptance, speed))

    def _looked_at(self, acceptance: TraceBatch, speed: tuple[TraceBatch, ...]) -> list[Check]:
        """The gating checks that a look can judge."""
        rules = tuple(r for r in self._policy.gates if isinstance(r, self._kinds(speed)))
        if not rules:
            return []
        policy = replace(self._policy, rules=rules)
        complete = len(acceptance) == self._plan.n_requests
        recorded = Recorded(
            boundary=self._boundary,
            acceptance=acceptance,
            speed=speed,
            control=(),
            engine=_NO_ENGINE,
            max_model_len=0,
            incumbent=self._incumbent,
            planned=self._plan,
            early_stop=None
            if complete
            else EarlyStop(
                why="", n_requests=len(acceptance), n_planned=self._plan.n_requests, request_s=0.0
            ),
        )
        verdict = judge(
            replace(
                look(recorded, policy=policy, alpha=self._alpha), early_stop=recorded.early_stop
            ),
            policy,
            incumbent_same_target=self._candidate.same_target,
            incumbent_has_draft=self._candidate.incumbent_has_draft,
            concurrencies=self._candidate.setting.profile.concurrencies,
            method=self._candidate.pair.decoding.method,
        )
        judged = {rule.name for rule in rules} | {"boundary"}
        return [
            c
            for c in verdict.checks
            if c.mode is Mode.GATE
            and c.rule in judged
            and (c.rule != "boundary" or c.outcome is Outcome.FAIL)
        ]

    def _kinds(self, speed: tuple[TraceBatch, ...]) -> tuple[type[Rule], ...]:
        """Speed is judged once blocks of it ran."""
        return (*_SEQUENTIAL, SpeedupRule) if speed else _SEQUENTIAL


_NO_ENGINE = EngineInfo(name="", version="", hardware_class="", device="", dtype="", definition="")
