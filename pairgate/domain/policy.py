"""The release policy: typed rules, each of which gates or advises.

A rule names the rate it judges, because a bare "acceptance" means another number at every draft
length. Files are parsed by `pairgate.policyfile`; this module only knows valid policies.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import ClassVar

from pairgate.domain.canonical import digest_of
from pairgate.errors import PolicyError

BREAK_EVEN = "break-even"


class Mode(StrEnum):
    GATE = "gate"
    ADVISE = "advise"


class Rate(StrEnum):
    """The three numbers that are called acceptance (docs/measures.md)."""

    TOKEN_ACCEPTANCE = "token_acceptance"  # accepted / tested
    ACCEPTANCE_RATE = "acceptance_rate"  # accepted / proposed
    ACCEPTANCE_LENGTH = "acceptance_length"  # emitted tokens per round


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRule:
    """(a) `rate` overall and in every gated domain; `other` domains are only shown, `domains` have
    thresholds of their own.

    `advise_threshold` is a second number that is judged and shown but never decides."""

    name: ClassVar[str] = "acceptance"
    mode: Mode = Mode.GATE
    rate: Rate = Rate.TOKEN_ACCEPTANCE
    threshold: float | str = BREAK_EVEN
    advise_threshold: float | None = 0.6
    other: tuple[str, ...] = ()
    domains: tuple[tuple[str, float | str], ...] = ()

    def threshold_in(self, domain: str | None) -> float | str:
        """The threshold of a domain, or overall (None)."""
        return self.threshold if domain is None else dict(self.domains).get(domain, self.threshold)

    @property
    def needs_break_even(self) -> bool:
        thresholds = (self.threshold, *(threshold for _, threshold in self.domains))
        return any(isinstance(t, str) for t in thresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiorityRule:
    """(b) paired per-request token acceptance against production, where the target is the same."""

    name: ClassVar[str] = "non_inferiority"
    mode: Mode = Mode.GATE
    margin: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class BimodalityRule:
    """(c) share of requests whose own acceptance lies under the floor."""

    name: ClassVar[str] = "bimodality"
    mode: Mode = Mode.ADVISE
    floor: float = 0.6
    max_share: float = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackRateRule:
    """(d) share of requests that would leave speculation."""

    name: ClassVar[str] = "fallback"
    mode: Mode = Mode.ADVISE
    max_share: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRule:
    """(e) output tokens per second with / without draft, lower bound, at each concurrency.

    `concurrencies` None means all that the profile names; `advise_at` are measured and shown, `at`
    are ratios of their own for single concurrencies."""

    name: ClassVar[str] = "speedup"
    mode: Mode = Mode.GATE
    min_ratio: float = 1.0
    concurrencies: tuple[int, ...] | None = None
    advise_at: tuple[int, ...] = ()
    at: tuple[tuple[int, float], ...] = ()

    def ratio_at(self, concurrency: int) -> float:
        return dict(self.at).get(concurrency, self.min_ratio)

    def gated(self, profile: tuple[int, ...]) -> tuple[int, ...]:
        """The concurrencies that decide, of a profile's."""
        named = self.concurrencies or profile
        return tuple(c for c in named if c not in self.advise_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """(f) the forced worst case and the analytic bound fit `budget_bytes` less `margin`.

    `budget_bytes` None means the machine's memory."""

    name: ClassVar[str] = "memory"
    mode: Mode = Mode.GATE
    budget_bytes: int | None = None
    margin: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRule:
    """(g) the output is the target's own, tested at `min_level` (F1, F2, F3) at least.

    `level` is tested where engine and method allow it, also where it is not demanded."""

    name: ClassVar[str] = "fidelity"
    mode: Mode = Mode.GATE
    min_level: str = "F1"
    max_abs_z: float = 3.48
    min_tokens: int = 1000
    level: str = "F1"

    @property
    def wanted(self) -> str:
        """The level that an evaluation tries to reach."""
        return max(self.level, self.min_level)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRule:
    """(h) ratio with / without draft of TTFT p95 and time per output token p95.

    `on_native` is the mode on pairgate's own engine, whose latency is not what production has."""

    name: ClassVar[str] = "latency"
    mode: Mode = Mode.GATE
    on_native: Mode = Mode.ADVISE
    max_ttft_ratio: float = 1.10
    max_tpot_ratio: float = 1.00
    concurrencies: tuple[int, ...] | None = None
    advise_at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRule:
    """(h) prefix-cache hit share, not lower than without the draft by more than `max_drop`."""

    name: ClassVar[str] = "cache"
    mode: Mode = Mode.GATE
    max_drop: float = 0.02


Rule = (
    AcceptanceRule
    | NonInferiorityRule
    | BimodalityRule
    | FallbackRateRule
    | SpeedupRule
    | MemoryRule
    | FidelityRule
    | LatencyRule
    | CacheRule
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackSettings:
    """When a request leaves speculation (docs/policy.md).

    Over the last `window` tested tokens, at least `minimum` of them: fall back when the upper
    Wilson bound at `z` lies under `floor`. `reprobe` lets it return after doubling gaps."""

    floor: float | str = 0.6
    window: int = 128
    minimum: int = 48
    z: float = 1.645
    reprobe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """How much is replayed. None means: derived (concurrency: the profile's largest)."""

    acceptance_concurrency: int | None = None
    speed_concurrencies: tuple[int, ...] | None = None
    requests_per_block: int | None = None
    min_blocks: int = 3
    max_blocks: int = 9
    warmup_requests: int = 2
    max_failed_share: float = 0.02
    early_stopping: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """How many people must approve, and to which `names`. `distinct`: none of them is the promoter,
    nor another one; `count_tags`: a tag set in MLflow, which has no author, counts."""

    required: int = 0
    names: tuple[str, ...] = ()
    distinct: bool = True
    count_tags: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a pair must show before it may go to production."""

    name: str
    rules: tuple[Rule, ...]
    alpha: float = 0.05
    seed: int = 20230530
    max_age_days: float = 14.0
    verify_max_age_days: float = 30.0
    strict_engine_patch: bool = False
    profiles: tuple[str, ...] = ()
    show_texts: bool = False
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    fallback: FallbackSettings = field(default_factory=FallbackSettings)
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)

    def __post_init__(self) -> None:
        if not self.rules:
            raise PolicyError(f"policy {self.name} has no rules, so it would pass everything")
        if not any(r.mode is Mode.GATE for r in self.rules):
            raise PolicyError(
                f"policy {self.name} only advises; at least one rule needs mode = 'gate'"
            )
        names = [r.name for r in self.rules]
        if len(set(names)) != len(names):
            raise PolicyError(f"policy {self.name} names a rule twice: {names}")
        if not 0.0 < self.alpha <= 0.2:
            raise PolicyError(f"policy {self.name}: alpha {self.alpha} is not in (0, 0.2]")

    @property
    def gates(self) -> tuple[Rule, ...]:
        return tuple(r for r in self.rules if r.mode is Mode.GATE)

    @property
    def digest(self) -> str:
        """Digest of what decides: comments, order, name and advisory rules do not count."""
        document = asdict(self)
        document.pop("name")
        document.pop("show_texts")
        document["rules"] = {r.name: asdict(r) for r in self.gates}
        for rule in document["rules"].values():
            rule.pop("advise_threshold", None)
            for own in ("domains", "at"):  # none of its own is no difference
                if not rule.get(own):
                    rule.pop(own, None)
        fidelity = document["rules"].get(FidelityRule.name)
        if fidelity is not None and fidelity["level"] == FidelityRule().level:
            fidelity.pop("level")  # wanting no more than the default is no difference
        if not self.approvals.names:
            document["approvals"].pop("names")
        return digest_of(document)
