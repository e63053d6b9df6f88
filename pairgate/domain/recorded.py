"""What one replay is asked to do (`ReplayPlan`) and what it brings back (`Recorded`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from pairgate.domain.evidence import (
    AcceptancePlan,
    BoundaryResult,
    CarryOver,
    EarlyStop,
    EngineInfo,
    LawTests,
    MemoryUse,
)
from pairgate.domain.policy import FallbackSettings
from pairgate.domain.trace import TraceBatch
from pairgate.errors import require

REQUESTS_PER_SPEED_BLOCK = 16
REQUESTS_PER_SPEED_BLOCK_ALONE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The passes of one replay; settled.md, "Two passes with different purposes".

    `seed` decides the submission order, the speed blocks and the seed of every request that has
    none. `max_model_len` is prompt + output in tokens, None means: the longest prompt + the
    longest output + K + 1. Fallback acts in the speed pass only. Speed blocks are looked at
    after `min_blocks`, 2 × `min_blocks`, … and end at `max_blocks`. `acceptance_block` requests
    make one stored block, which is what a killed replay loses at most. At the concurrencies of
    `screen` the first speed blocks run before the acceptance pass. `budget_s` ends the replay at
    the end of a block.
    """

    seed: int
    acceptance_concurrency: int
    speed_concurrencies: tuple[int, ...]
    max_model_len: int | None = None
    requests_per_block: int | None = None
    min_blocks: int = 3
    max_blocks: int = 9
    warmup_requests: int = 2
    acceptance_block: int = 64
    fallback: FallbackSettings = field(default_factory=FallbackSettings)
    with_boundary: bool = True
    with_speed: bool = True
    with_control: bool = True
    control_blocks: int = 1
    memory: bool = True
    memory_budget_bytes: int | None = None
    watchdog_s: float = 300.0
    screen: tuple[int, ...] = ()
    budget_s: float | None = None

    def __post_init__(self) -> None:
        for c in (self.acceptance_concurrency, *self.speed_concurrencies):
            require(c >= 1, f"concurrency {c} is not positive")
        require(self.acceptance_block >= 1, f"acceptance_block is {self.acceptance_block}")
        require(
            1 <= self.min_blocks <= self.max_blocks,
            f"blocks: need 1 <= min_blocks ({self.min_blocks}) <= max_blocks ({self.max_blocks})",
        )

    def block_size(self, concurrency: int) -> int:
        """Requests in one speed block: the policy's value, or 16, and 4 at concurrency 1."""
        if self.requests_per_block is not None:
            return self.requests_per_block
        return REQUESTS_PER_SPEED_BLOCK_ALONE if concurrency == 1 else REQUESTS_PER_SPEED_BLOCK

    @property
    def max_concurrency(self) -> int:
        return max(self.acceptance_concurrency, *self.speed_concurrencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Everything that one replay saw.

    `acceptance`: with draft, every request at most once, fallback off: the only source of
    acceptance. `speed`: one batch per block, arm and concurrency; both arms of a block hold the
    same requests and share its `block` number. `control`: the target alone twice on the same
    requests, an even and an odd `block` per pair of runs with different keys. `incumbent`: the
    acceptance pass of the production pair. `carry_over`, `carry_over_speed`: production's draft on
    the new target, its blocks in both arms, and `carry_over_note` where they come from. `law` and
    `control_law`: the acceptance pass and the target alone, teacher-forced. `planned`
    is the acceptance pass in full, `early_stop` how it ended before; `notes` say what could not be
    measured and why. The rows of an acceptance pass stand in the order of submission.
    """

    boundary: tuple[BoundaryResult, ...]
    acceptance: TraceBatch
    speed: tuple[TraceBatch, ...]
    control: tuple[TraceBatch, ...]
    engine: EngineInfo
    max_model_len: int
    incumbent: TraceBatch | None = None
    memory: tuple[MemoryUse, ...] = ()
    early_stop: EarlyStop | None = None
    planned: AcceptancePlan | None = None
    carry_over: TraceBatch | None = None
    carry_over_speed: tuple[TraceBatch, ...] = ()
    carry_over_note: CarryOver | None = None
    law: LawTests | None = None
    control_law: LawTests | None = None
    notes: tuple[str, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether the acceptance pass is a prefix of what was planned."""
        return self.early_stop is not None and self.early_stop.n_saved > 0
