from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_traffic import simulate_batch
from pairgate.domain.evidence import EngineInfo
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import Arm, Phase, RoundState, TraceBatch

ENGINE = EngineInfo(
    name="native",
    version="1",
    hardware_class="x86_64-avx512",
    device="cpu",
    dtype="float32",
    definition="pairgate.rounds.v1",
)
MakeRecorded = Callable[..., Recorded]


@pytest.fixture
def make_recorded() -> MakeRecorded:
    """A recording around an acceptance pass: speed blocks where draft rounds cost `cost_ratio`
    plain steps and the draft arm is `speedup` times as fast."""

    def make(
        acceptance: TraceBatch,
        *,
        speedup: float = 1.5,
        cost_ratio: float = 2.0,
        concurrencies: tuple[int, ...] = (1, 8),
        incumbent: TraceBatch | None = None,
    ) -> Recorded:
        rng = np.random.default_rng(11)
        speed: list[TraceBatch] = []
        for concurrency in concurrencies:
            for block in range(3):
                drift = 1.0 + 0.3 * rng.random()
                drafted = simulate_batch(rng.beta(16, 4, 16), rng.integers(30, 60, 16), rng)
                common = {"phase": Phase.SPEED, "concurrency": concurrency, "block": block}
                speed.append(
                    replace(
                        drafted,
                        wall_s=drift / speedup * (1.0 + 0.01 * rng.random()),
                        round_ms=np.full(len(drafted.proposed), 10.0 * cost_ratio, np.float32),
                        **common,
                    )
                )
                speed.append(replace(plain_batch(drafted), wall_s=drift, **common))
        return Recorded(
            boundary=(),
            acceptance=acceptance,
            speed=tuple(speed),
            control=(),
            engine=ENGINE,
            max_model_len=512,
            incumbent=incumbent,
        )

    return make


def plain_batch(drafted: TraceBatch) -> TraceBatch:
    """The same requests by the target alone: one token per step of 10 ms."""
    rng = np.random.default_rng(0)
    never = simulate_batch(
        np.full(len(drafted), 1e-12), drafted.completion_tokens.astype(np.int64), rng
    )
    zeros = np.zeros_like(never.proposed)
    return replace(
        never,
        arm=Arm.TARGET,
        proposed=zeros,
        accepted=zeros,
        round_state=np.full(len(zeros), RoundState.TARGET_ONLY, np.uint8),
        round_ms=np.full(len(zeros), 10.0, np.float32),
    )
