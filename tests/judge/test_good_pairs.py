"""The default policy lets pairs through that pay, and none that does not.

Published per-position acceptance of EAGLE-3 heads (vLLM, tests/v1/spec_decode/
test_acceptance_length.py, MT-Bench, K = 3): a share of the rounds whose j-th token was accepted.
Token acceptance of such heads is 0.58 to 0.71, so a fixed floor of 0.6 would refuse some of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.gate_traffic import simulate_batch
from pairgate.domain.evidence import (
    AcceptancePlan,
    BoundaryResult,
    EngineInfo,
    Fidelity,
    MemoryUse,
    ZScore,
)
from pairgate.domain.pair import Method
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import Arm, Phase, RoundState, TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.judge import judge
from pairgate.measure import measure, speed_looks
from pairgate.policyfile import preset

HEADS = {
    "Llama-3.1-8B, K=3": (0.7296, 0.5208, 0.3545),
    "gpt-oss-20b, K=3": (0.7165, 0.5120, 0.3337),
    # The first three as published for Llama; further ones at the third's own rate.
    "Llama-3.1-8B, K=5": (0.7296, 0.5208, 0.3545, 0.2413, 0.1642),
}
STEP_MS = 10.0
ENGINE = EngineInfo(
    name="vllm",
    version="0.32.0",
    hardware_class="H200 x 1",
    device="cuda",
    dtype="bfloat16",
    definition="pairgate.rounds.v1",
)
FIDELITY = Fidelity(
    level="F1",
    n_greedy_requests=60,
    n_greedy_tokens=5000,
    n_divergent=0,
    n_near_tie=0,
    n_control_requests=16,
    n_control_divergent=0,
    n_sampled_tokens=3000,
    n_support_violations=0,
    scores=(ZScore(name="label-swap n-grams", z=0.4, n=60),),
)
MEMORY = MemoryUse(
    arm=Arm.SPEC,
    concurrency=8,
    kind="server",
    weights_target_bytes=1,
    weights_draft_bytes=1,
    kv_target_bytes=1,
    kv_draft_bytes=1,
    workspace_bytes=1,
    peak_bytes=5,
    predicted_bytes=5,
    budget_bytes=100,
    worst_case_reached=True,
)


def _drafted(positions: tuple[float, ...], n: int, rng: np.random.Generator) -> TraceBatch:
    """Requests of two domains whose rounds accept as published, each with a level of its own."""
    given = np.array([1.0, *positions])
    conditional = given[1:] / given[:-1]
    lengths = np.clip(rng.lognormal(5.0, 0.6, n), 16, 256).astype(np.int64)
    # One rate per request reproduces the spread; the rounds are then drawn position by position.
    batch = simulate_batch(
        np.full(n, 1e-12), lengths, rng, k=len(positions), domain=np.array(["chat", "code"])[
            np.arange(n) % 2
        ],
    )  # fmt: skip
    levels = rng.normal(0.0, 0.3, n)
    return _rounds(batch, conditional, levels, lengths, rng)


def _rounds(
    batch: TraceBatch,
    conditional: NDArray[np.float64],
    levels: NDArray[np.float64],
    lengths: NDArray[np.int64],
    rng: np.random.Generator,
) -> TraceBatch:
    """The batch with rounds drawn anew: position j is accepted with its own conditional rate."""
    k, accepted, emitted, n_rounds = len(conditional), [], [], []
    logits = np.log(conditional / (1 - conditional))
    for level, length in zip(levels, lengths, strict=True):
        rates = 1 / (1 + np.exp(-(logits + level)))
        left, count = int(length) - 1, 0
        while left > 0:
            hits = int(np.logical_and.accumulate(rng.random(k) < rates).sum())
            accepted.append(hits)
            emitted.append(min(hits + 1, left))
            left -= hits + 1
            count += 1
        n_rounds.append(count)
    total = len(accepted)
    return replace(
        batch,
        round_offsets=np.concatenate(([0], np.cumsum(n_rounds))),
        proposed=np.full(total, k, np.int16),
        accepted=np.array(accepted, np.int16),
        emitted=np.array(emitted, np.int16),
        round_state=np.full(total, RoundState.DRAFTED, np.uint8),
        round_ms=np.full(total, STEP_MS, np.float32),
    )


def _speed_blocks(
    positions: tuple[float, ...], speedup: float, rng: np.random.Generator
) -> tuple[TraceBatch, ...]:
    """ABBA blocks: the machine drifts, and a draft round costs what gives the speedup. As many as
    the policy asks for while they decide nothing."""
    tau = 1.0 + sum(positions)
    policy = preset("default")
    more = speed_looks(policy, alpha=policy.alpha / 2, engine=ENGINE.name)
    blocks: list[TraceBatch] = []
    for number in range(policy.replay.max_blocks):
        if number and number % policy.replay.min_blocks == 0 and not more(8, tuple(blocks)):
            break
        drift = 1.0 + 0.2 * rng.random()
        drafted = _drafted(positions, 48, rng)
        tokens = drafted.completion_tokens.astype(float)
        common = {"phase": Phase.SPEED, "concurrency": 8, "block": number}
        for arm, step_ms in ((Arm.SPEC, STEP_MS * tau / speedup), (Arm.TARGET, STEP_MS)):
            noise = drift * (1.0 + 0.005 * rng.standard_normal())
            batch = drafted if arm is Arm.SPEC else _alone(drafted)
            rounds = np.diff(batch.round_offsets)
            took_ms = rounds * step_ms * noise
            blocks.append(
                replace(
                    batch,
                    arm=arm,
                    ttft_ms=np.full(len(batch), 50.0 * drift),
                    latency_ms=50.0 * drift + took_ms,
                    wall_s=float(tokens.sum() / 8 * step_ms * noise / 1e3)
                    / (tau if arm is Arm.SPEC else 1.0),
                    round_ms=np.full(len(batch.proposed), step_ms * noise, np.float32),
                    **common,
                )
            )
    return tuple(blocks)


def _alone(drafted: TraceBatch) -> TraceBatch:
    """The same requests, one token per step."""
    steps = drafted.completion_tokens.astype(np.int64) - 1
    total = int(steps.sum())
    return replace(
        drafted,
        round_offsets=np.concatenate(([0], np.cumsum(steps))),
        proposed=np.zeros(total, np.int16),
        accepted=np.zeros(total, np.int16),
        emitted=np.ones(total, np.int16),
        round_state=np.full(total, RoundState.TARGET_ONLY, np.uint8),
        round_ms=np.full(total, STEP_MS, np.float32),
    )


def _verdict(positions: tuple[float, ...], speedup: float) -> Verdict:
    rng, policy = np.random.default_rng(8), preset("default")
    recorded = Recorded(
        boundary=tuple(
            BoundaryResult(name="empty prompt", arm=arm, ok=True) for arm in (Arm.TARGET, Arm.SPEC)
        ),
        acceptance=_drafted(positions, 400, rng),
        speed=_speed_blocks(positions, speedup, rng),
        control=(),
        engine=ENGINE,
        max_model_len=512,
        memory=(MEMORY,),
        planned=AcceptancePlan(n_requests=400, domains=("chat", "code"), longest_unit_tokens=256),
    )
    # The first attempt is judged at half of alpha.
    found = measure(recorded, policy=policy, alpha=policy.alpha / 2, fidelity=FIDELITY)
    return judge(
        found,
        policy,
        incumbent_same_target=None,
        concurrencies=(8,),
        engine="vllm",
        method=Method.EAGLE3,
        version="code@1",
    )


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_pays_passes_the_default_policy(name: str) -> None:
    positions = HEADS[name]
    found = _verdict(positions, 1.5)
    assert found.outcome is Outcome.PASS, [c.reason for c in found.blocking]
    overall = next(c for c in found.checks if c.metric == "token_acceptance.request_mean")
    assert 0.55 <= overall.observed.value <= 0.75  # type: ignore[union-attr]
    # Break-even is shown with its interval.
    assert "break-even at concurrency 8 0." in overall.reason
    assert overall.reason.rstrip("]").rpartition("[")[2].count(", ") == 1


@pytest.mark.parametrize("name", HEADS)
def test_the_same_head_fails_where_it_costs_more_than_it_gives(name: str) -> None:
    found = _verdict(HEADS[name], 0.97)
    assert found.outcome is Outcome.FAIL
    assert "speedup" in {c.rule for c in found.blocking if c.outcome is Outcome.FAIL}
