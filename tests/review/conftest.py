"""A synthetic evaluation with every part filled in, made with a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pairgate.domain.evidence import (
    OVERALL,
    Binding,
    BoundaryResult,
    Counts,
    EngineInfo,
    Estimate,
    Evaluation,
    Fidelity,
    Measurements,
    MemoryUse,
    Metric,
    Missing,
    Mixture,
    Provenance,
    Scope,
    ZScore,
)
from pairgate.domain.policy import AcceptanceRule, Mode, Policy, SpeedupRule
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, TraceBatch
from pairgate.domain.verdict import Check, Outcome, Verdict, worst

MIB = 2**20
DOMAINS = {"code": 0.82, "chat": 0.74, "law": 0.7, "sql": 0.41}


def digest(letter: str) -> str:
    return "sha256:" + letter * 64


def estimate(value: float, spread: float, n: int = 120, unit: str = "requests") -> Estimate:
    return Estimate(
        value=value, low=value - spread, high=value + spread, n=n, unit=unit, alpha=0.05, method="t"
    )


def metric(
    name: str, value: Estimate | Missing, scope: Scope = OVERALL, arm: Arm = Arm.SPEC
) -> Metric:
    return Metric(name=name, arm=arm, scope=scope, value=value)


def acceptance_metrics(domains: dict[str, float]) -> list[Metric]:
    found = []
    for arm, shift in ((Arm.SPEC, 0.0), (Arm.INCUMBENT, -0.08)):
        for name in ("token_acceptance.request_mean", "token_acceptance.pooled"):
            found.append(metric(name, estimate(0.68 + shift, 0.02, 480), arm=arm))
        found.append(metric("acceptance_length.pooled", estimate(2.6 + shift, 0.1, 480), arm=arm))
    for name, mean in domains.items():
        scope = Scope(kind="domain", key=name)
        for kind in ("request_mean", "pooled"):
            found.append(metric(f"token_acceptance.{kind}", estimate(mean, 0.03), scope))
    for i in range(5):
        scope = Scope(kind="position", key=str(i + 1))
        value = estimate(0.8 - 0.05 * i, 0.01, 5000, "tokens")
        found.append(metric("token_acceptance.position", value, scope))
    for kind, keys in (
        ("prompt_length", ("0-63", "64-127", "128-511")),
        ("temperature", ("0", "0.7", "1")),
    ):
        for i, key in enumerate(keys):
            value = estimate(0.75 - 0.06 * i, 0.03)
            found.append(metric("token_acceptance.request_mean", value, Scope(kind=kind, key=key)))
    return found


def speed_metrics() -> list[Metric]:
    found = []
    for i, c in enumerate(("1", "8", "32")):
        scope = Scope(kind="concurrency", key=c)
        found.append(metric("speedup", estimate(1.5 - 0.28 * i, 0.05, 6, "blocks"), scope))
        found.append(
            metric("predicted_speedup", estimate(1.55 - 0.3 * i, 0.02, 6, "blocks"), scope)
        )
        for arm, factor in ((Arm.SPEC, 1.0), (Arm.TARGET, 1.3)):
            speed = estimate(400 / factor * (i + 1), 12, 6, "blocks")
            found.append(metric("tokens_per_s", speed, scope, arm))
            for name, base in (("ttft_ms", 30.0), ("tpot_ms", 8.0)):
                for j, p in enumerate(("p50", "p95", "p99")):
                    value = estimate(base * factor * (1 + i) * (1 + 0.4 * j), 1.0)
                    found.append(metric(f"{name}.{p}", value, scope, arm))
        found.append(metric("ttft_ratio.p95", estimate(1.05, 0.03, 6, "blocks"), scope))
        found.append(metric("tpot_ratio.p95", estimate(0.8, 0.03, 6, "blocks"), scope))
    return found


def measurements(domains: dict[str, float]) -> Measurements:
    other = [
        metric("non_inferiority", estimate(0.08, 0.01, 480)),
        metric("share_below_floor", estimate(0.24, 0.04, 480)),
        metric("fallback_share", estimate(0.21, 0.03, 480)),
        metric("fallback_misfire", estimate(0.01, 0.005, 480)),
        metric("plain_token_share", Missing(reason="no request fell back in the speed pass")),
    ]
    counts = Counts(
        arm=Arm.SPEC, phase=Phase.SPEED, concurrency=8, n_requests=96, n_failed=1, n_excluded=0,
        n_rounds=3000, n_skipped_rounds=0, n_proposed=15000, n_accepted=8200,
        n_tested_committed=11000, n_accepted_committed=8000, n_emitted=11000,
        n_completion_tokens=11100, n_plain_tokens=700, n_fallen_back=9, wall_s=12.5,
    )  # fmt: skip
    memory = tuple(
        MemoryUse(
            arm=arm, concurrency=c, kind="rss", weights_target_bytes=24 * MIB,
            weights_draft_bytes=(4 if arm is Arm.SPEC else 0) * MIB, kv_target_bytes=4 * c * MIB,
            kv_draft_bytes=(c // 2 if arm is Arm.SPEC else 0) * MIB, workspace_bytes=20 * MIB,
            peak_bytes=(50 + 5 * c) * MIB, predicted_bytes=(60 + 6 * c) * MIB,
            budget_bytes=512 * MIB, worst_case_reached=c > 1,
        )
        for c in (1, 8)
        for arm in (Arm.SPEC, Arm.TARGET)
    )  # fmt: skip
    return Measurements(
        definition="pairgate.rounds.v1",
        metrics=(*acceptance_metrics(domains), *speed_metrics(), *other),
        counts=(counts,),
        memory=memory,
        mixture=Mixture(
            n=480, weight_low=0.25, mean_low=0.4, mean_high=0.77, delta_bic=210.0,
            valley_ratio=0.2, strong=True,
        ),
        fidelity=Fidelity(
            level="F3", n_greedy_requests=240, n_greedy_tokens=20000, n_divergent=0, n_near_tie=0,
            n_control_requests=40, n_control_divergent=0, n_sampled_tokens=21000,
            n_support_violations=0, scores=(ZScore(name="draft score", z=0.4, n=21000),),
            control_scores=(ZScore(name="surprisal", z=-1.1, n=9000),),
            smallest_defect="0.01 of the mean draft score",
        ),
        boundary=(BoundaryResult(name="empty prompt", arm=Arm.SPEC, ok=True, detail="1 token"),),
        break_even=((1, 0.45), (8, 0.62), (32, 0.71)),
    )  # fmt: skip


def _evaluation(domains: dict[str, float] | None = None, version: int = 2) -> Evaluation:
    engine = EngineInfo(
        name="native", version="0.1", hardware_class="x86_64-avx512", device="cpu",
        dtype="float32", definition="pairgate.rounds.v1", packages=(("torch", "2.13.0"),),
    )  # fmt: skip
    return Evaluation(
        line="code-assistant",
        version=version,
        attempt=1,
        alpha=0.025,
        binding=Binding(
            pair_digest=digest("a"), target_digest=digest("b"), policy_digest=digest("c"),
            slice_digest=digest("d"), profile_digest=digest("e"), engine="native",
            engine_version="0.1", hardware_class="x86_64-avx512", incumbent_digest=digest("f"),
        ),
        measurements=measurements(domains or DOMAINS),
        provenance=Provenance(
            engine=engine, pairgate_version="0.1.0", seed=7,
            command=f"pairgate evaluate code-assistant@{version}", host="builder",
            started_at="2026-01-05T10:00:00.000000Z", finished_at="2026-01-05T10:04:00.000000Z",
            trace_files=(("acceptance.parquet", digest("9")),),
        ),
    )  # fmt: skip


def _verdict(evaluation: Evaluation, outcome: Outcome = Outcome.FAIL) -> Verdict:
    found = evaluation.measurements
    checks = []
    for scope in (OVERALL, *found.scopes("token_acceptance.request_mean", "domain")):
        value = found.find("token_acceptance.request_mean", scope)
        assert isinstance(value, Estimate)
        result = outcome if value.high < 0.6 else Outcome.PASS
        word = "fails" if result is not Outcome.PASS else "passes"
        checks.append(
            Check(
                rule="acceptance", scope=scope, mode=Mode.GATE, outcome=result,
                reason=f"{word}: token acceptance {value.value:.2f} [{value.low:.2f}, "
                f"{value.high:.2f}] against 0.60 (n={value.n} {value.unit})",
                metric="token_acceptance.request_mean", observed=value, threshold=0.6,
                n_more=80 if result is Outcome.INCONCLUSIVE else None,
            )
        )  # fmt: skip
    advice = Check(
        rule="bimodality", scope=OVERALL, mode=Mode.ADVISE, outcome=Outcome.FAIL,
        reason="fails: 24.0 % of requests lie under 0.6, not 10 %", metric="share_below_floor",
        observed=found.find("share_below_floor"), threshold=0.1,
    )  # fmt: skip
    return Verdict(
        outcome=worst(c.outcome for c in checks),
        checks=(*checks, advice),
        policy_digest=evaluation.binding.policy_digest,
        recommendation="ship the new target without a draft",
        warnings=("the engine's patch version differs from the profile's",),
    )


def _batch(n: int = 480, domains: dict[str, float] | None = None, k: int = 5) -> TraceBatch:
    """An acceptance pass whose requests scatter around their domain's acceptance."""
    means = domains or DOMAINS
    names = list(means)
    rng = np.random.default_rng(3)
    rows = []
    for i in range(n):
        domain = names[i % len(names)]
        alpha = rng.beta(means[domain] * 20, (1 - means[domain]) * 20)
        accepted = np.minimum(rng.geometric(1 - alpha, size=24) - 1, k).astype(np.int16)
        emitted = (accepted + 1).astype(np.int16)
        rows.append(
            RequestTrace(
                index=i, request_id=f"req-{i:05d}", domain=domain,
                temperature=(0.0, 0.7, 1.0)[i % 3],
                prompt_tokens=20 + i % 200, completion_tokens=1 + int(emitted.sum()), ttft_ms=12.0,
                latency_ms=200.0, finish=Finish.ERROR if i == 5 else Finish.LENGTH,
                error="out of memory" if i == 5 else "", proposed=np.full(24, k, np.int16),
                accepted=accepted, emitted=emitted, round_state=np.zeros(24, np.uint8),
                round_ms=np.full(24, 8.0, np.float32),
            )
        )  # fmt: skip
    return TraceBatch.from_rows(
        rows, arm=Arm.SPEC, phase=Phase.ACCEPTANCE, concurrency=8, block=0, wall_s=30.0,
        definition="pairgate.rounds.v1",
    )  # fmt: skip


@pytest.fixture(scope="session")
def make_evaluation() -> Callable[..., Evaluation]:
    return _evaluation


@pytest.fixture(scope="session")
def make_verdict() -> Callable[..., Verdict]:
    return _verdict


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., TraceBatch]:
    return _batch


@pytest.fixture(scope="session")
def evaluation() -> Evaluation:
    return _evaluation()


@pytest.fixture(scope="session")
def verdict(evaluation: Evaluation) -> Verdict:
    return _verdict(evaluation)


@pytest.fixture(scope="session")
def batch() -> TraceBatch:
    return _batch()


@pytest.fixture(scope="session")
def policy() -> Policy:
    return Policy(name="default", rules=(AcceptanceRule(threshold=0.6), SpeedupRule()))


@pytest.fixture(scope="session")
def showing_policy(policy: Policy) -> Policy:
    return replace(policy, show_texts=True)
