"""What one replay is asked to do (`ReplayPlan`) and what it brings back (`Recorded`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from pairgate.domain.evidence import BoundaryResult, EngineInfo, MemoryUse
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
    make one stored block, which is what a killed replay loses at most.
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
    acceptance pass of the production pair. `early_stop` says what was left out, or ""; `notes` what
    could not be measured and why.
    """

    boundary: tuple[BoundaryResult, ...]
    acceptance: TraceBatch
    speed: tuple[TraceBatch, ...]
    control: tuple[TraceBatch, ...]
    engine: EngineInfo
    max_model_len: int
    incumbent: TraceBatch | None = None
    memory: tuple[MemoryUse, ...] = ()
    early_stop: str = ""
    notes: tuple[str, ...] = ()
