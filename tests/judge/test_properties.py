"""What holds for every verdict, whatever was measured: drawn measurements, drawn policies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.gate_traffic import simulate_batch
from benchmarks.gate_whole import BOUNDARY, ENGINE, FIDELITY, MEMORY
from pairgate.domain.canonical import digest_of
from pairgate.domain.evidence import (
    OVERALL,
    AcceptancePlan,
    Counts,
    Estimate,
    Measurements,
    Metric,
    Missing,
    Scope,
)
from pairgate.domain.policy import (
    AcceptanceRule,
    BimodalityRule,
    CacheRule,
    FallbackRateRule,
    FidelityRule,
    LatencyRule,
    MemoryRule,
    Mode,
    NonInferiorityRule,
    Policy,
    Rule,
    SpeedupRule,
)
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Outcome, Verdict, worst
from pairgate.errors import InvalidEvaluation
from pairgate.judge import judge
from pairgate.measure import measure

AT_8 = Scope(kind="concurrency", key="8")
SQL = Scope(kind="domain", key="sql")
ORDER = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS)
COUNTS = Counts(
    arm=Arm.SPEC,
    phase="acceptance",
    concurrency=8,
    n_requests=200,
    n_failed=0,
    n_excluded=0,
    n_rounds=1000,
    n_skipped_rounds=0,
    n_proposed=5000,
    n_accepted=3000,
    n_tested_committed=4000,
    n_accepted_committed=3000,
    n_emitted=4000,
    n_completion_tokens=4200,
    n_plain_tokens=0,
    n_fallen_back=0,
    wall_s=10.0,
)
# Name, scope, and the sign of "better".
QUANTITIES = (
    ("token_acceptance.request_mean", OVERALL, 1.0),
    ("token_acceptance.pooled", OVERALL, 1.0),
    ("token_acceptance.request_mean", SQL, 1.0),
    ("token_acceptance.pooled", SQL, 1.0),
    ("token_acceptance.request_mean.corrected", SQL, 1.0),
    ("non_inferiority", OVERALL, 1.0),
    ("share_below_floor", OVERALL, -1.0),
    ("fallback_share", OVERALL, -1.0),
    ("speedup", AT_8, 1.0),
    ("break_even", AT_8, -1.0),
    ("ttft_ratio.p95", AT_8, -1.0),
    ("tpot_ratio.p95", AT_8, -1.0),
    ("cache_hit_difference", OVERALL, 1.0),
)
RULES: tuple[Rule, ...] = (
    AcceptanceRule(threshold=0.6, advise_threshold=None),
    NonInferiorityRule(),
    BimodalityRule(),
    FallbackRateRule(),
    SpeedupRule(),
    MemoryRule(),
    FidelityRule(),
    LatencyRule(),
    CacheRule(),
)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate | Missing:
    if draw(st.integers(0, 5)) == 0:
        return Missing(reason="nothing ran", n=draw(st.integers(0, 5)))
    middle, half = draw(st.floats(-1.0, 2.0)), draw(st.sampled_from((0.01, 0.2, 1.0)))
    value, low, high = middle, middle - half * draw(st.floats(0.0, 1.0)), middle + half
    n = draw(st.sampled_from((1, 3, 29, 30, 99, 100, 400)))
    return Estimate(value=value, low=low, high=high, n=n, unit="units", alpha=0.05, method="drawn")


@st.composite
def measurements(draw: st.DrawFn) -> Measurements:
    metrics = tuple(
        Metric(name=name, arm=Arm.SPEC, scope=scope, value=draw(estimates()))
        for name, scope, _ in QUANTITIES
        if draw(st.integers(0, 7))
    )
    return Measurements(
        definition="pairgate.rounds.v1",
        metrics=metrics,
        counts=(COUNTS,),
        boundary=BOUNDARY,
        fidelity=draw(st.sampled_from((FIDELITY, None, replace(FIDELITY, n_divergent=3)))),
        memory=draw(st.sampled_from(((MEMORY,), (), (replace(MEMORY, peak_bytes=500),)))),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    chosen = draw(st.lists(st.sampled_from(RULES), min_size=1, unique=True))
    threshold = draw(st.sampled_from((0.3, 0.6, "break-even")))
    rules = [
        replace(
            replace(rule, threshold=threshold) if isinstance(rule, AcceptanceRule) else rule,
            mode=draw(st.sampled_from((Mode.GATE, Mode.GATE, Mode.ADVISE))),
        )
        for rule in chosen
    ]
    if all(rule.mode is Mode.ADVISE for rule in rules):
        rules[0] = replace(rules[0], mode=Mode.GATE)
    return Policy(name="drawn", rules=tuple(rules))


def judged(found: Measurements, policy: Policy) -> Verdict:
    return judge(
        found,
        policy,
        incumbent_same_target=True,
        concurrencies=(8,),
        engine="simulated",
        prefix_cache=True,
    )


many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(measurements(), policies())
def test_the_same_evidence_gives_the_same_verdict_bit_for_bit(found, policy) -> None:
    first, second = judged(found, policy), judged(replace(found), replace(policy))
    assert first == second
    assert digest_of(first) == digest_of(second)
    turned = replace(found, metrics=found.metrics[::-1])
    assert digest_of(judged(turned, policy)) == digest_of(first)


@many
@given(measurements(), policies())
def test_the_verdict_is_the_worst_of_its_gating_checks(found, policy) -> None:
    verdict = judged(found, policy)
    assert verdict.outcome is worst(c.outcome for c in verdict.checks if c.mode is Mode.GATE)
    for check in verdict.checks:
        assert check.reason
        if check.n_more is not None:
            assert check.outcome is Outcome.INCONCLUSIVE and check.n_more >= 1


@many
@given(measurements(), policies())
def test_rules_that_advise_never_change_the_outcome(found, policy) -> None:
    gates = replace(policy, rules=policy.gates)
    advised = tuple(
        replace(rule, mode=Mode.ADVISE)
        for rule in RULES
        if rule.name not in {gate.name for gate in policy.gates}
    )
    alone, with_all = (
        judged(found, gates),
        judged(found, replace(gates, rules=(*gates.rules, *advised))),
    )
    assert judged(found, policy).outcome is alone.outcome is with_all.outcome

    def deciding(verdict: Verdict) -> list[object]:
        return [c for c in verdict.checks if c.mode is Mode.GATE]

    assert deciding(alone) == deciding(with_all)
    assert gates.digest == policy.digest


@many
@given(measurements(), policies(), st.floats(0.0, 1.0))
def test_better_evidence_never_makes_it_worse(found, policy, shift) -> None:
    """Every interval moved to its better side, with the same width and n."""
    better = {(name, scope): sign for name, scope, sign in QUANTITIES}

    def moved(metric: Metric) -> Metric:
        value, by = metric.value, shift * better[metric.name, metric.scope]
        if isinstance(value, Missing):
            return metric
        return replace(
            metric,
            value=replace(value, value=value.value + by, low=value.low + by, high=value.high + by),
        )

    before = judged(found, policy).outcome
    after = judged(replace(found, metrics=tuple(map(moved, found.metrics))), policy).outcome
    assert ORDER.index(after) >= ORDER.index(before)


@many
@given(policies())
def test_nothing_is_never_a_pass(policy) -> None:
    nothing = Measurements(definition="pairgate.rounds.v1", metrics=(), counts=())
    assert judged(nothing, policy).outcome is Outcome.ERROR  # not even a request ran
    ran = replace(nothing, counts=(COUNTS,), boundary=BOUNDARY)
    assert judged(ran, policy).outcome is Outcome.INCONCLUSIVE


@many
@given(measurements(), policies(), st.integers(0, len(QUANTITIES) - 1))
def test_taking_a_number_away_never_makes_a_pass(found, policy, index) -> None:
    name, scope, _ = QUANTITIES[index]
    kept = tuple(m for m in found.metrics if (m.name, m.scope) != (name, scope))
    without = judged(replace(found, metrics=kept), policy).outcome
    if ".corrected" not in name and scope == OVERALL and without is Outcome.PASS:
        assert judged(found, policy).outcome is not Outcome.PASS or not _judges(policy, name)


def _judges(policy: Policy, metric: str) -> bool:
    """Whether a gating rule of the policy looks at an overall metric."""
    by_rule = {
        "acceptance": "token_acceptance",
        "non_inferiority": "non_inferiority",
        "bimodality": "share_below_floor",
        "fallback": "fallback_share",
        "cache": "cache_hit_difference",
    }
    return any(metric.startswith(by_rule.get(rule.name, "-")) for rule in policy.gates)


@pytest.mark.parametrize("field", ["value", "low", "high", "alpha"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_is_an_error_wherever_it_stands(field: str, bad: float) -> None:
    fields = {"value": 0.5, "low": 0.4, "high": 0.6, "alpha": 0.05} | {field: bad}
    with pytest.raises(InvalidEvaluation, match="not finite") as caught:
        Estimate(**fields, n=10, unit="requests", method="test")
    assert caught.value.exit_code == Outcome.ERROR.exit_code


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_requests_is_irrelevant(seed: int) -> None:
    """In a pass that was not looked at: the same values and n, and the same outcome."""
    rng = np.random.default_rng(seed)
    n = 160
    own = rng.beta(16, 4, n) if seed % 2 else rng.beta(8, 12, n)
    domains = np.array(["chat", "sql"])[np.arange(n) % 2]
    batch = simulate_batch(own, rng.integers(30, 90, n), rng, domain=domains)
    order = rng.permutation(n)
    rows = [batch.row(int(i)) for i in order]
    shuffled = type(batch).from_rows(
        [replace(row, index=i) for i, row in enumerate(rows)],
        arm=batch.arm,
        phase=batch.phase,
        concurrency=batch.concurrency,
        block=0,
        wall_s=1.0,
        definition=batch.definition,
    )
    policy = Policy(name="p", rules=(RULES[0],))
    first, second = (_measured(b, policy) for b in (batch, shuffled))
    for one, other in zip(first.metrics, second.metrics, strict=True):
        assert (one.name, one.scope) == (other.name, other.scope)
        if one.name == "fallback_misfire":  # simulated
            continue
        if isinstance(one.value, Estimate) and isinstance(other.value, Estimate):
            assert one.value.n == other.value.n
            assert one.value.value == pytest.approx(other.value.value, abs=1e-6)
        else:
            assert one.value == other.value
    assert judged(first, policy).outcome is judged(second, policy).outcome
    assert judged(first, policy).outcome is (Outcome.PASS if seed % 2 else Outcome.FAIL)


def _measured(batch, policy: Policy) -> Measurements:
    planned = replace(policy, replay=replace(policy.replay, early_stopping=False))
    recorded = Recorded(
        boundary=BOUNDARY,
        acceptance=batch,
        speed=(),
        control=(),
        engine=ENGINE,
        max_model_len=512,
        memory=(MEMORY,),
        planned=AcceptancePlan(
            n_requests=len(batch), domains=("chat", "sql"), longest_unit_tokens=90
        ),
    )
    return measure(recorded, policy=planned)
