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
    """(a) `rate` overall and in every gated domain; `other` domains are only shown.

    `advise_threshold` is a second number that is judged and shown but never decides."""

    name: ClassVar[str] = "acceptance"
    mode: Mode = Mode.GATE
    rate: Rate = Rate.TOKEN_ACCEPTANCE
    threshold: float | str = BREAK_EVEN
    advise_threshold: float | None = 0.6
    other: tuple[str, ...] = ()


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

    `concurrencies` None means all that the profile names; `advise_at` are measured and shown."""

    name: ClassVar[str] = "speedup"
    mode: Mode = Mode.GATE
    min_ratio: float = 1.0
    concurrencies: tuple[int, ...] | None = None
    advise_at: tuple[int, ...] = ()


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
    """(g) the output is the target's own; `min_level` is F1, F2 or F3."""

    name: ClassVar[str] = "fidelity"
    mode: Mode = Mode.GATE
    min_level: str = "F1"
    max_abs_z: float = 3.48
    min_tokens: int = 1000


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
    """When a request leaves speculation (gate.md, Fallback rule).

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
    """How many people must approve. `distinct`: none of them is the promoter; `count_tags`: a tag
    set in MLflow, which has no author, counts."""

    required: int = 0
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
        return digest_of(document)
