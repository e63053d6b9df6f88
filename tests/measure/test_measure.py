"""From a recording to Measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gate_traffic import simulate_batch
from pairgate.domain.evidence import OVERALL, Estimate, Measurements, Missing, Scope
from pairgate.domain.policy import FallbackSettings
from pairgate.domain.trace import Arm, Finish
from pairgate.measure import measure
from pairgate.policyfile import loads_policy, preset

POLICY = preset("default")


def _value(found: Measurements, name: str, scope: Scope = OVERALL, arm: Arm = Arm.SPEC) -> Estimate:
    value = found.find(name, scope, arm)
    assert isinstance(value, Estimate), value
    return value


@pytest.fixture
def acceptance():
    rng = np.random.default_rng(0)
    domain = np.repeat(["chat", "sql"], [200, 60])
    own = np.where(domain == "sql", rng.beta(20, 20, 260), rng.beta(32, 8, 260))
    return simulate_batch(own, rng.integers(30, 90, 260), rng, domain=domain)


def test_every_named_metric_is_there_and_right(make_recorded, acceptance) -> None:
    found = measure(make_recorded(acceptance), policy=POLICY)
    sql = Scope(kind="domain", key="sql")
    assert _value(found, "token_acceptance.request_mean", sql).value == pytest.approx(0.5, abs=0.05)
    assert _value(found, "token_acceptance.request_mean", sql).n == 60
    assert _value(found, "token_acceptance.pooled").n == 260
    assert _value(found, "draft_tokens_per_round").value == 5.0
    plain, wide = (
        _value(found, f"token_acceptance.request_mean{suffix}", sql)
        for suffix in ("", ".corrected")
    )
    assert wide.alpha == plain.alpha / 2
    assert wide.high > plain.high
    for j in range(1, 6):
        _value(found, "token_acceptance.position", Scope(kind="position", key=str(j)))
    for key in ("1", "8"):
        scope = Scope(kind="concurrency", key=key)
        assert _value(found, "speedup", scope).value == pytest.approx(1.5, rel=0.02)
        assert _value(found, "round_cost_ratio", scope).value == pytest.approx(2.0)
        tau = _value(found, "acceptance_length.pooled").value
        assert _value(found, "predicted_speedup", scope).value == pytest.approx(tau / 2.0)
        for arm in (Arm.SPEC, Arm.TARGET):
            for name in ("ttft_ms.p95", "tpot_ms.p50", "chunk_gap_ms.p99", "tokens_per_s"):
                _value(found, name, scope, arm)
    # (1 − a⁶)/(1 − a) = 2 at a = 0.5087
    assert dict(found.break_even) == pytest.approx({1: 0.5087, 8: 0.5087}, abs=1e-4)
    assert _value(found, "fallback_share").value < 0.4
    assert _value(found, "fallback_misfire").value < 0.05
    assert _value(found, "plain_token_share").value == 0.0
    assert {c.arm for c in found.counts} == {Arm.SPEC, Arm.TARGET}


def test_a_smaller_alpha_widens_every_bound(make_recorded, acceptance) -> None:
    recorded = make_recorded(acceptance)
    first = measure(recorded, policy=POLICY, alpha=0.05)
    third = measure(recorded, policy=POLICY, alpha=0.05 / 4)
    for name in ("token_acceptance.request_mean", "token_acceptance.pooled"):
        assert _value(third, name).low < _value(first, name).low


def test_the_same_recording_gives_the_same_measurements(make_recorded, acceptance) -> None:
    recorded = make_recorded(acceptance)
    assert measure(recorded, policy=POLICY) == measure(recorded, policy=POLICY)


def test_self_acceptance_is_exactly_one(make_recorded) -> None:
    rng = np.random.default_rng(1)
    batch = simulate_batch(np.ones(120), rng.integers(30, 60, 120), rng)
    found = measure(make_recorded(batch), policy=POLICY)
    for name in ("token_acceptance.request_mean", "token_acceptance.pooled"):
        assert _value(found, name).value == 1.0
        assert _value(found, name).low > 0.9


def test_requests_without_tested_tokens_are_left_out_but_counted(make_recorded) -> None:
    rng = np.random.default_rng(2)
    batch = simulate_batch(rng.beta(16, 4, 60), np.full(60, 40), rng)
    one_token = simulate_batch(np.full(40, 0.5), np.ones(40, np.int64), rng)
    both = type(batch).concat([batch, one_token])
    found = measure(make_recorded(both), policy=POLICY)
    assert _value(found, "token_acceptance.request_mean").n == 60
    assert next(c for c in found.counts if c.phase == "acceptance").n_requests == 100


def test_a_domain_whose_requests_all_failed_is_missing_and_not_absent(
    make_recorded, acceptance
) -> None:
    finish = np.where(acceptance.domain == "sql", Finish.ERROR, acceptance.finish).astype(np.uint8)
    found = measure(make_recorded(replace(acceptance, finish=finish)), policy=POLICY)
    sql = Scope(kind="domain", key="sql")
    assert sql in found.scopes("token_acceptance.request_mean", "domain")
    assert isinstance(found.find("token_acceptance.request_mean", sql), Missing)


def test_sessions_give_one_request_each_to_the_mean(make_recorded) -> None:
    rng = np.random.default_rng(3)
    own = np.repeat(rng.beta(8, 4, 50), 4)
    session = np.repeat(np.char.add("s", np.arange(50).astype(str)), 4)
    batch = simulate_batch(own, np.full(200, 60), rng, session=session)
    mean = _value(measure(make_recorded(batch), policy=POLICY), "token_acceptance.request_mean")
    assert (mean.n, mean.unit) == (50, "sessions")


def test_the_incumbent_is_compared_request_by_request(make_recorded) -> None:
    rng = np.random.default_rng(4)
    own, length = rng.beta(16, 4, 150), rng.integers(60, 90, 150)
    candidate = simulate_batch(own, length, rng)
    # Production saw the requests in another order, and was better by 0.1.
    production = simulate_batch(np.minimum(own + 0.1, 0.99), length, rng)
    production = replace(production.where(np.arange(150) < 140), arm=Arm.INCUMBENT)
    found = measure(make_recorded(candidate, incumbent=production), policy=POLICY)
    difference = _value(found, "non_inferiority")
    assert difference.n == 140
    assert -0.13 < difference.value < -0.06
    _value(found, "token_acceptance.request_mean", arm=Arm.INCUMBENT)


def test_contradicting_counters_are_measured_as_such(make_recorded, acceptance) -> None:
    emitted = acceptance.emitted.copy()
    emitted[0] = 9
    found = measure(make_recorded(replace(acceptance, emitted=emitted)), policy=POLICY)
    bad = _value(found, "inconsistent_requests")
    assert round(bad.value * bad.n) == 1


def test_a_version_without_a_draft_measures_no_acceptance(make_recorded, acceptance) -> None:
    alone = make_recorded(acceptance).speed[1]
    assert alone.arm is Arm.TARGET
    found = measure(
        replace(make_recorded(acceptance), acceptance=alone, speed=(alone,)), policy=POLICY
    )
    assert isinstance(found.find("token_acceptance.request_mean"), Missing)
    assert found.break_even == ()


def test_break_even_as_the_fallback_floor(make_recorded, acceptance) -> None:
    text = '[rules.speedup]\n[fallback]\nfloor = "break-even"\n'
    policy = loads_policy(text, name="p.toml", suffix=".toml")
    assert isinstance(
        measure(make_recorded(acceptance), policy=policy).find("fallback_share"), Estimate
    )
    without = replace(make_recorded(acceptance), speed=())
    found = measure(without, policy=policy).find("fallback_share")
    assert isinstance(found, Missing)
    assert "break-even" in found.reason


def test_every_metric_is_documented(make_recorded, acceptance) -> None:
    incumbent = replace(acceptance, arm=Arm.INCUMBENT)
    found = measure(make_recorded(acceptance, incumbent=incumbent), policy=POLICY)
    page = (Path(__file__).parents[2] / "docs" / "measures.md").read_text("utf-8")
    stems = {re.sub(r"\.(request_mean|pooled|corrected|p\d\d)", "", m.name) for m in found.metrics}
    assert {s for s in stems if f"`{s}`" not in page and f"`{s}." not in page} == set()


def test_under_the_floor_there_is_no_misfire(make_recorded, acceptance) -> None:
    policy = replace(POLICY, fallback=FallbackSettings(floor=0.99))
    found = measure(make_recorded(acceptance), policy=policy)
    value = found.find("fallback_misfire")
    assert isinstance(value, Missing)
    assert "under the floor 0.99" in value.reason
