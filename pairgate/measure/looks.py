"""Looking while a replay still runs, without spending more error than the policy allows."""

from __future__ import annotations

from collections.abc import Callable

from pairgate.domain.evidence import Missing
from pairgate.domain.policy import LatencyRule, Mode, Policy, ReplaySettings, SpeedupRule
from pairgate.domain.trace import TraceBatch
from pairgate.measure.counts import usable
from pairgate.measure.speed import block_ratio_of


def speed_alpha(alpha: float, replay: ReplaySettings) -> float:
    """Level of one look at the speed blocks: alpha spent evenly over the planned looks.

    Looks happen after min_blocks, 2 × min_blocks, … up to max_blocks.
    """
    return alpha / -(-replay.max_blocks // replay.min_blocks)


def speed_looks(
    policy: Policy, *, alpha: float, engine: str = "native"
) -> Callable[[int, tuple[TraceBatch, ...]], bool]:
    """Asks for more blocks at a concurrency while its speedup or latency gates and is undecided."""
    speed = next((r for r in policy.gates if isinstance(r, SpeedupRule)), None)
    latency = next((r for r in policy.gates if isinstance(r, LatencyRule)), None)
    if latency is not None and engine == "native" and latency.on_native is Mode.ADVISE:
        latency = None
    level = speed_alpha(alpha, policy.replay)

    def more_blocks(concurrency: int, blocks: tuple[TraceBatch, ...]) -> bool:
        asked = [_speed_limit(speed, concurrency)] if _gates(speed, concurrency) else []
        asked += _latency_limits(latency) if _gates(latency, concurrency) else []
        usable_blocks = [usable(b) for b in blocks]
        for name, limit in asked:
            found = block_ratio_of(name, concurrency, usable_blocks, alpha=level)
            # What is missing now would not be measured by more of the same either.
            if not isinstance(found, Missing) and found.low <= limit <= found.high:
                return True
        return False

    return more_blocks


def _gates(rule: SpeedupRule | LatencyRule | None, concurrency: int) -> bool:
    if rule is None or concurrency in rule.advise_at:
        return False
    return rule.concurrencies is None or concurrency in rule.concurrencies


def _speed_limit(rule: SpeedupRule | None, concurrency: int) -> tuple[str, float]:
    assert rule is not None
    return "speedup", rule.ratio_at(concurrency)


def _latency_limits(rule: LatencyRule | None) -> list[tuple[str, float]]:
    assert rule is not None
    return [("ttft_ratio.p95", rule.max_ttft_ratio), ("tpot_ratio.p95", rule.max_tpot_ratio)]
