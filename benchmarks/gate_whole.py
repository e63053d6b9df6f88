"""Whole policies on simulated evaluations: looks on the way, `measure`, `judge`, one outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.gate_traffic import (
    simulate_batch,
)
from pairgate.app.early import Looks
from pairgate.app.evidence import Candidate
from pairgate.app.setting import LineSetting
from pairgate.domain.evidence import (
    BoundaryResult,
    EarlyStop,
    EngineInfo,
    Fidelity,
    MemoryUse,
    ZScore,
)
from pairgate.domain.pair import (
    Architecture,
    DecodingConfig,
    FileEntry,
    Method,
    ModelRef,
    Pair,
    PairVersion,
)
from pairgate.domain.policy import (
    AcceptanceRule,
    Policy,
)
from pairgate.domain.profile import ServingProfile
from pairgate.domain.recorded import Recorded
from pairgate.domain.release import Head
from pairgate.domain.trace import Arm, Phase, RoundState, TraceBatch
from pairgate.domain.traffic import Request, Sampling, TrafficSlice
from pairgate.domain.verdict import Outcome
from pairgate.judge import judge
from pairgate.measure import measure
from pairgate.replay import acceptance_plan

CONCURRENCY = 8
ENGINE = EngineInfo(
    name="simulated",
    version="1",
    hardware_class="simulated",
    device="none",
    dtype="float32",
    definition="pairgate.rounds.v1",
)
BOUNDARY = tuple(
    BoundaryResult(name="empty prompt", arm=arm, ok=True) for arm in (Arm.TARGET, Arm.SPEC)
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
    concurrency=CONCURRENCY,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One evaluation before it begins: the acceptance pass in full, in the order of submission, cut
    into blocks of `block`, and what the machine does (the draft's true `speedup` and `round_cost`).
    """

    policy: Policy
    acceptance: TraceBatch
    longest: int = 256
    block: int = 64
    speedup: float = 1.5
    round_cost: float = 1.4
    incumbent: TraceBatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The verdict, and how many requests of the acceptance pass it took."""

    outcome: Outcome
    n: int


def run(simulated: Simulated, rng: np.random.Generator) -> Ended:
    """As `app.evaluate` does it: looks at block ends, speed blocks while undecided, one verdict."""
    policy, batch = simulated.policy, simulated.acceptance
    candidate = candidate_of(policy, with_incumbent=simulated.incumbent is not None)
    traffic = slice_of(batch, simulated.longest)
    looks = Looks(candidate, traffic, policy.alpha, incumbent=lambda: simulated.incumbent)
    screened = any(isinstance(r, AcceptanceRule) and r.needs_break_even for r in policy.rules)
    blocks = _SpeedBlocks(simulated, rng)
    speed = blocks.drawn(policy.replay.min_blocks) if screened else ()
    looks.screened(BOUNDARY, speed)
    rows, n = np.arange(len(batch)), len(batch)
    for end in range(simulated.block, len(batch), simulated.block):
        if looks.stop(batch.where(rows < end)):
            n = end
            break
    ran = batch.where(rows < n)
    left_out: tuple[str, ...] = ()
    if looks.goes_on(ran, speed):
        while len(speed) < 2 * policy.replay.max_blocks and (
            not speed or looks.more_blocks(CONCURRENCY, speed)
        ):
            speed += blocks.drawn(policy.replay.min_blocks)
    else:
        left_out = (f"speed at {CONCURRENCY}", "memory")
    stop = EarlyStop(
        why=looks.why, n_requests=n, n_planned=len(batch), request_s=1.0, left_out=left_out
    )
    recorded = Recorded(
        boundary=BOUNDARY,
        acceptance=ran,
        speed=speed,
        control=(),
        engine=ENGINE,
        max_model_len=512,
        incumbent=simulated.incumbent,
        memory=() if left_out else (MEMORY,),
        early_stop=stop if n < len(batch) or left_out else None,
        planned=acceptance_plan(traffic),
    )
    verdict = judge(
        measure(recorded, policy=policy, alpha=policy.alpha, fidelity=FIDELITY),
        policy,
        incumbent_same_target=candidate.same_target,
        incumbent_has_draft=candidate.incumbent_has_draft,
        concurrencies=candidate.setting.profile.concurrencies,
        engine=ENGINE.name,
    )
    return Ended(outcome=verdict.outcome, n=n)


class _SpeedBlocks:
    """ABBA blocks on a machine that wanders by 1 % per run, with 0.5 % of noise in each."""

    def __init__(self, simulated: Simulated, rng: np.random.Generator) -> None:
        self._simulated, self._rng, self._number, self._machine = simulated, rng, 0, 0.0
        self._drafted = simulate_batch(np.full(4, 0.7), np.full(4, 40), rng)
        self._alone = target_alone(self._drafted)

    def drawn(self, n: int) -> tuple[TraceBatch, ...]:
        found: list[TraceBatch] = []
        for _ in range(n):
            arms = (Arm.TARGET, Arm.SPEC)
            for arm in arms if self._number % 2 == 0 else arms[::-1]:
                found.append(self._one(arm))
            self._number += 1
        return tuple(found)

    def _one(self, arm: Arm) -> TraceBatch:
        self._machine += self._rng.normal(0.0, 0.01)
        slow = float(np.exp(self._machine + self._rng.normal(0.0, 0.005)))
        with_draft = arm is Arm.SPEC
        batch = self._drafted if with_draft else self._alone
        step = slow * (self._simulated.round_cost if with_draft else 1.0)
        return replace(
            batch,
            arm=arm,
            phase=Phase.SPEED,
            concurrency=CONCURRENCY,
            block=self._number,
            wall_s=slow / (self._simulated.speedup if with_draft else 1.0),
            round_ms=np.full(len(batch.proposed), step, np.float32),
        )


def target_alone(drafted: TraceBatch) -> TraceBatch:
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
        round_ms=np.full(total, 1.0, np.float32),
    )


def _version(number: int, digest: str) -> PairVersion:
    return PairVersion(
        line="code",
        number=number,
        pair_digest=digest,
        target_digest="sha256:" + "a" * 64,
        method=Method.DRAFT_MODEL,
        state="READY",
        created_at="2026-01-01T00:00:00+00:00",
        created_by="tests",
    )


def candidate_of(policy: Policy, *, with_incumbent: bool = False) -> Candidate:
    """A version under a policy; production, if there is one, has the same target."""
    architecture = Architecture(
        model_type="llama", class_name="LlamaForCausalLM", n_parameters=1, vocab_size=96,
        max_position_embeddings=4096, hidden_size=8, n_layers=1, n_heads=1, n_kv_heads=1,
        head_dim=8, dtype="float32",
    )  # fmt: skip
    files = (FileEntry(path="config.json", size=1, sha256="sha256:" + "0" * 64),)
    target = ModelRef(role="target", files=files, architecture=architecture)
    pair = Pair(
        target=target,
        draft=replace(target, role="draft"),
        decoding=DecodingConfig(method=Method.DRAFT_MODEL, num_speculative_tokens=5),
    )
    profile = ServingProfile(
        name="p",
        engine=ENGINE.name,
        engine_version="1",
        hardware_class="x",
        concurrencies=(CONCURRENCY,),
    )
    return Candidate(
        version=_version(2, pair.digest),
        pair=pair,
        incumbent=_version(1, "sha256:" + "b" * 64) if with_incumbent else None,
        setting=LineSetting(head=Head(line="code"), policy=policy, profile=profile),
    )


def slice_of(batch: TraceBatch, longest: int = 256) -> TrafficSlice:
    """The slice that a batch is the replay of; every request may take `longest` tokens."""
    return TrafficSlice(
        name="s",
        requests=tuple(
            Request(
                id=str(i),
                domain=str(d),
                session=str(s) or None,
                body="{}",
                max_tokens=longest,
                sampling=Sampling(temperature=1.0),
                text="x",
            )
            for i, d, s in zip(batch.request_id, batch.domain, batch.session, strict=True)
        ),
    )
