"""Evidence: estimates with intervals, what was missing and why, and where all of it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pairgate.domain.canonical import digest_of
from pairgate.domain.trace import Arm
from pairgate.errors import InvalidEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured value with a two-sided interval made of two one-sided bounds.

    `low` holds with confidence 1 − alpha and so does `high`, each on its own. `n` counts `unit`
    (requests, sessions, blocks, tokens). It cannot be built from nothing: n = 0 or NaN raises.
    """

    value: float
    low: float
    high: float
    n: int
    unit: str
    alpha: float
    method: str

    def __post_init__(self) -> None:
        numbers = (self.value, self.low, self.high, self.alpha)
        if not all(math.isfinite(x) for x in numbers):
            raise InvalidEvaluation(f"an estimate is not finite: {numbers} ({self.method})")
        if self.n <= 0:
            raise InvalidEvaluation(f"an estimate from no {self.unit} ({self.method})")
        if not self.low <= self.high:
            raise InvalidEvaluation(f"interval [{self.low}, {self.high}] is empty ({self.method})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A number that was not measured; `n` says how much there was."""

    reason: str
    n: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The part of the traffic a metric speaks of: `overall`, or a breakdown and its key.

    Kinds: overall, domain, concurrency, temperature, prompt_length, position, token.
    """

    kind: str = "overall"
    key: str = ""

    def __str__(self) -> str:
        return self.kind if not self.key else f"{self.kind} {self.key}"


OVERALL = Scope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One named measurement; the names stand in docs/measures.md."""

    name: str
    arm: Arm
    scope: Scope
    value: Estimate | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums of one arm's counters in one phase; ratios are made in `measure` only."""

    arm: Arm
    phase: str
    concurrency: int
    n_requests: int
    n_failed: int
    n_excluded: int
    n_rounds: int
    n_skipped_rounds: int
    n_proposed: int
    n_accepted: int
    n_tested_committed: int
    n_accepted_committed: int
    n_emitted: int
    n_completion_tokens: int
    n_plain_tokens: int
    n_fallen_back: int
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Two-component beta-binomial fit of accepted-of-tested counts (gate.md, Bimodality)."""

    n: int
    weight_low: float
    mean_low: float
    mean_high: float
    delta_bic: float
    valley_ratio: float
    strong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of one arm at one concurrency. `kind`: rss, cuda or server; `predicted_bytes` is the
    analytic bound, `budget_bytes` what the machine or the policy allows."""

    arm: Arm
    concurrency: int
    kind: str
    weights_target_bytes: int
    weights_draft_bytes: int
    kv_target_bytes: int
    kv_draft_bytes: int
    workspace_bytes: int
    peak_bytes: int
    predicted_bytes: int
    budget_bytes: int
    worst_case_reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ZScore:
    """A statistic that is standard normal if and only if the target's law was kept."""

    name: str
    z: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LawTests:
    """Emitted tokens against the law they should come from, teacher-forced (levels F2 and F3).

    Of the outputs of `n_requests`, `n_tokens` were sampled and `n_certain` come from a law of one
    token (temperature 0). Violations, each of which is a proof: `n_outside` tokens that the law
    does not contain, `n_after_end` tokens after an end token, `n_recovered_below` recovered tokens
    that the draft found more likely than the target. `n_excused` lie outside by no more than
    rounding. `surprisal` (nats) and `draft_score` are means per sampled token that are 0 as long
    as the law is kept; None where too little varies.
    """

    level: str
    n_requests: int
    n_tokens: int
    n_certain: int
    n_outside: int
    n_after_end: int
    n_recovered_below: int
    n_excused: int
    scores: tuple[ZScore, ...]
    surprisal: Estimate | None
    draft_score: Estimate | None
    smallest_defect: str
    wall_s: float = 0.0

    @property
    def n_violations(self) -> int:
        return self.n_outside + self.n_after_end + self.n_recovered_below


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """What was compared and what it could have found; `level` is F1, F2 or F3 (docs/fidelity.md).

    Of the `n_divergent` greedy requests, `n_near_tie` are excused by the target's own margin and
    `n_unclassified` cannot be told apart, because a low-precision engine gives no margins. `law` is
    what teacher forcing found in the outputs with the draft (of the version, where it has none),
    `control_law` in those of the target alone.
    """

    level: str
    n_greedy_requests: int
    n_greedy_tokens: int
    n_divergent: int
    n_near_tie: int
    n_control_requests: int
    n_control_divergent: int
    n_sampled_tokens: int
    n_support_violations: int
    scores: tuple[ZScore, ...] = ()
    control_scores: tuple[ZScore, ...] = ()
    smallest_defect: str = ""
    n_unclassified: int = 0
    n_control_tokens: int = 0
    law: LawTests | None = None
    control_law: LawTests | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryResult:
    """One boundary request (prompt at the maximum length, empty prompt, one token, EOS at once)."""

    name: str
    arm: Arm
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePlan:
    """The acceptance pass as it was planned, known before anything ran.

    `longest_unit_tokens` is the largest sum of max_tokens of one session, or of one request
    without a session: what no unit's denominator can be over.
    """

    n_requests: int
    domains: tuple[str, ...]
    longest_unit_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Why and where a replay ended before its plan.

    `why` is a clause (`a FAIL was certain`). Of `n_planned` requests of the acceptance pass
    `n_requests` ran, each in `request_s` seconds; `left_out` are the stages that were not run.
    `undecided` says that a budget ended it, so that what is missing is evidence.
    """

    why: str
    n_requests: int
    n_planned: int
    request_s: float
    left_out: tuple[str, ...] = ()
    undecided: bool = False

    @property
    def n_saved(self) -> int:
        return self.n_planned - self.n_requests

    @property
    def saved_hours(self) -> float:
        """Time per request times the requests that were not run."""
        return self.n_saved * self.request_s / 3600.0

    @property
    def sentence(self) -> str:
        text = f"Stopped early, because {self.why}"
        if self.n_saved:
            text += (
                f": {self.n_requests} of {self.n_planned} requests of the acceptance pass were "
                f"run, {self.n_saved} ({self.n_saved / self.n_planned:.0%}, "
                f"{_duration(self.saved_hours)}) were not needed"
                if not self.undecided
                else f": {self.n_requests} of {self.n_planned} requests of the acceptance pass ran"
            )
        if self.left_out:
            text += f"; not run: {', '.join(self.left_out)}"
        return f"{text}."


def _duration(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 0.1 else f"{hours:.4f} hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryOver:
    """The draft of production (`draft_of`) on the new target: where its numbers come from, or why
    there are none.

    `kind`: measured, stored (evidence of `name` was reused), self (it is the version that was
    evaluated), none. `reason` says why there is nothing to compare with.
    """

    kind: str
    draft_of: str = ""
    name: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything that a verdict may look at."""

    definition: str
    metrics: tuple[Metric, ...]
    counts: tuple[Counts, ...]
    memory: tuple[MemoryUse, ...] = ()
    mixture: Mixture | None = None
    fidelity: Fidelity | None = None
    boundary: tuple[BoundaryResult, ...] = ()
    break_even: tuple[tuple[int, float], ...] = ()
    plan: AcceptancePlan | None = None
    early_stop: EarlyStop | None = None
    carry_over: CarryOver | None = None

    def find(self, name: str, scope: Scope = OVERALL, arm: Arm = Arm.SPEC) -> Estimate | Missing:
        """The metric's value, or a `Missing` that names what was asked for."""
        for metric in self.metrics:
            if metric.name == name and metric.scope == scope and metric.arm == arm:
                return metric.value
        return Missing(reason=f"{name} ({scope}, {arm}) was not measured")

    def scopes(self, name: str, kind: str, arm: Arm = Arm.SPEC) -> tuple[Scope, ...]:
        return tuple(
            m.scope
            for m in self.metrics
            if m.name == name and m.scope.kind == kind and m.arm == arm
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine says of itself; `resolved` is its full configuration as canonical JSON."""

    name: str
    version: str
    hardware_class: str
    device: str
    dtype: str
    definition: str
    resolved: str = "{}"
    packages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Enough to run the evaluation again."""

    engine: EngineInfo
    pairgate_version: str
    seed: int
    command: str
    host: str
    started_at: str
    finished_at: str
    trace_files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a verdict is valid for; promote compares every part (settled.md, Registry)."""

    pair_digest: str
    target_digest: str
    policy_digest: str
    slice_digest: str
    profile_digest: str
    engine: str
    engine_version: str
    hardware_class: str
    incumbent_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The evidence of one attempt. Its digest is what an approval binds to."""

    line: str
    version: int
    attempt: int
    alpha: float
    binding: Binding
    measurements: Measurements
    provenance: Provenance

    @property
    def digest(self) -> str:
        return digest_of(self)
