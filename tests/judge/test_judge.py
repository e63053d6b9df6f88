"""Every rule of a policy as a table: measurements in, outcome and sentence out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairgate.domain.evidence import (
    OVERALL,
    BoundaryResult,
    CarryOver,
    Counts,
    EarlyStop,
    Estimate,
    Fidelity,
    Measurements,
    MemoryUse,
    Metric,
    Missing,
    Mixture,
    Scope,
    ZScore,
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
    Rate,
    Rule,
    SpeedupRule,
)
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Check, Outcome, Verdict
from pairgate.judge import judge

PASS, FAIL, UNDECIDED, ERROR = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.ERROR
AT_8 = Scope(kind="concurrency", key="8")
SQL = Scope(kind="domain", key="sql")
GIB = 1 << 30


def estimate(
    value: float, low: float, high: float, n: int = 212, unit: str = "requests"
) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=n, unit=unit, alpha=0.05, method="test")


def metric(name: str, value: Estimate | Missing, scope: Scope = OVERALL) -> Metric:
    return Metric(name=name, arm=Arm.SPEC, scope=scope, value=value)


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
BOUNDARY = (
    BoundaryResult(name="empty prompt", arm=Arm.TARGET, ok=True),
    BoundaryResult(name="empty prompt", arm=Arm.SPEC, ok=True),
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
    kind="rss",
    weights_target_bytes=0,
    weights_draft_bytes=0,
    kv_target_bytes=0,
    kv_draft_bytes=0,
    workspace_bytes=0,
    peak_bytes=2 * GIB,
    predicted_bytes=3 * GIB,
    budget_bytes=4 * GIB,
    worst_case_reached=True,
)
SPEEDUP = metric("speedup", estimate(1.5, 1.4, 1.6, 3, "blocks"), AT_8)


def measured(*metrics: Metric, **fields: object) -> Measurements:
    found = Measurements(
        definition="pairgate.rounds.v1",
        metrics=metrics,
        counts=(COUNTS,),
        boundary=BOUNDARY,
        fidelity=FIDELITY,
        memory=(MEMORY,),
        break_even=((8, 0.55),),
    )
    return replace(found, **fields)


def break_even(points: dict[int, float], half: float = 0.01) -> tuple[Metric, ...]:
    """Break-even at each concurrency, known to ± `half`."""
    return tuple(
        metric(
            "break_even",
            estimate(value, value - half, value + half, 3, "blocks"),
            Scope(kind="concurrency", key=str(c)),
        )
        for c, value in points.items()
    )


def verdict(found: Measurements, *rules: Rule, **arguments: object) -> Verdict:
    options: dict[str, object] = {"incumbent_same_target": None, "concurrencies": (8,)}
    policy = Policy(name="test", rules=rules or (SpeedupRule(),))
    return judge(found, policy, **(options | arguments))  # type: ignore[arg-type]


def checks(found: Verdict, rule: str) -> list[Check]:
    return [c for c in found.checks if c.rule == rule]


def acceptance(
    overall: Estimate, pooled: Estimate | Missing, sql: Estimate, sql_pooled: Estimate | Missing
) -> Measurements:
    name = "token_acceptance"
    return measured(
        metric(f"{name}.request_mean", overall),
        metric(f"{name}.pooled", pooled),
        metric(f"{name}.request_mean", sql, SQL),
        metric(f"{name}.pooled", sql_pooled, SQL),
    )


FLOOR = AcceptanceRule(threshold=0.6, advise_threshold=None)
GOOD = estimate(0.7, 0.65, 0.75)
FEW = replace(GOOD, n=99)
LONG = Missing(reason="212 requests are worth 3.1 of equal length", n=212)


def test_the_sentence_of_a_failing_domain() -> None:
    found = verdict(acceptance(GOOD, GOOD, estimate(0.41, 0.38, 0.44), GOOD), FLOOR)
    assert found.outcome is FAIL
    failing = checks(found, "acceptance")[2]
    assert failing.reason == (
        'fails: token acceptance in "sql" 0.41 [0.38, 0.44] < 0.60 (n=212 requests)'
    )
    assert (failing.scope, failing.metric) == (SQL, "token_acceptance.request_mean")


@pytest.mark.parametrize(
    ("overall", "pooled", "sql", "sql_pooled", "outcomes"),
    [
        (GOOD, GOOD, GOOD, GOOD, [PASS] * 4),
        (estimate(0.6, 0.6, 0.7), GOOD, GOOD, GOOD, [PASS] * 4),  # the floor itself is enough
        (estimate(0.62, 0.58, 0.66), GOOD, GOOD, GOOD, [UNDECIDED, PASS, PASS, PASS]),
        (GOOD, estimate(0.5, 0.4, 0.55), GOOD, GOOD, [PASS, FAIL, PASS, PASS]),
        (GOOD, LONG, GOOD, GOOD, [PASS, UNDECIDED, PASS, PASS]),
        # Under 30 requests nothing is claimed, neither good nor bad.
        (GOOD, GOOD, estimate(0.1, 0.0, 0.2, 29), GOOD, [PASS, PASS, UNDECIDED]),
        (GOOD, GOOD, estimate(0.9, 0.8, 1.0, 29), GOOD, [PASS, PASS, UNDECIDED]),
        # From 30 to 99 the request mean alone decides a domain.
        (GOOD, GOOD, estimate(0.7, 0.61, 0.8, 30), estimate(0.1, 0.0, 0.2, 30), [PASS] * 3),
        (GOOD, GOOD, estimate(0.7, 0.61, 0.8, 99), estimate(0.1, 0.0, 0.2, 99), [PASS] * 3),
        (GOOD, GOOD, GOOD, estimate(0.1, 0.0, 0.2, 100), [PASS, PASS, PASS, FAIL]),
        # Overall the pooled bound is needed as well.
        (FEW, FEW, GOOD, GOOD, [PASS, UNDECIDED, PASS, PASS]),
    ],
)
def test_acceptance(overall, pooled, sql, sql_pooled, outcomes) -> None:
    found = verdict(acceptance(overall, pooled, sql, sql_pooled), FLOOR)
    assert [c.outcome for c in checks(found, "acceptance")] == outcomes


def test_a_domains_fail_is_corrected_for_the_number_of_domains() -> None:
    low = estimate(0.55, 0.5, 0.59)
    chat = Scope(kind="domain", key="chat")
    name = "token_acceptance.request_mean"
    base = acceptance(GOOD, GOOD, replace(low, n=50), GOOD)
    extra = (metric(name, replace(GOOD, n=50), chat),)
    for corrected, outcome in ((0.61, UNDECIDED), (0.595, FAIL)):
        bound = replace(estimate(0.55, 0.48, corrected, 50), alpha=0.025)
        wide = metric(f"{name}.corrected", bound, SQL)
        found = verdict(replace(base, metrics=(*base.metrics, *extra, wide)), FLOOR)
        failing = next(c for c in checks(found, "acceptance") if c.scope == SQL)
        assert failing.outcome is outcome
        assert ("correcting for 2 domains" in failing.reason) == (outcome is UNDECIDED)


def test_other_domains_are_only_shown() -> None:
    bad = acceptance(GOOD, GOOD, estimate(0.1, 0.05, 0.2), GOOD)
    found = verdict(bad, replace(FLOOR, other=("sql",)))
    assert found.outcome is PASS
    assert all(c.scope == OVERALL for c in checks(found, "acceptance"))


def test_undecided_says_how_many_more_would_decide() -> None:
    found = verdict(acceptance(estimate(0.64, 0.58, 0.70, 100), GOOD, GOOD, GOOD), FLOOR)
    check = checks(found, "acceptance")[0]
    # 0.06 wide, 0.04 away: (0.06/0.04)² = 2.25 times as many.
    assert check.n_more == 125
    assert "about 125 requests more would decide" in check.reason
    assert "125 more requests" in found.recommendation


def test_break_even_is_the_threshold_where_the_pair_has_to_pay() -> None:
    base = acceptance(GOOD, GOOD, GOOD, GOOD)
    points = replace(base, metrics=(*base.metrics, *break_even({1: 0.3, 8: 0.55, 64: 0.9})))
    rule = AcceptanceRule(advise_threshold=None)
    speed = SpeedupRule(mode=Mode.ADVISE, concurrencies=(1, 8, 64), advise_at=(64,))
    found = verdict(points, rule, speed)
    assert {c.threshold for c in checks(found, "acceptance")} == {0.55}
    assert "break-even at concurrency 8" in checks(found, "acceptance")[0].reason
    assert verdict(base, rule).outcome is UNDECIDED  # no speed blocks, no threshold


def test_a_measured_threshold_has_an_interval_of_its_own() -> None:
    """A PASS clears its upper bound, a FAIL stays under the lower; in between it is open."""
    rule = AcceptanceRule(advise_threshold=None)
    for value, outcome in ((0.60, PASS), (0.66, UNDECIDED), (0.72, UNDECIDED), (0.80, FAIL)):
        base = acceptance(GOOD, GOOD, GOOD, GOOD)
        near = replace(base, metrics=(*base.metrics, *break_even({8: value}, 0.04)))
        assert verdict(near, rule).outcome is outcome, value


def test_holm_rejects_more_than_bonferroni_and_less_than_no_correction() -> None:
    """Bounds of four domains at alpha, alpha/2, alpha/3 and alpha/4; the floor is 0.6."""
    name = "token_acceptance.request_mean"
    uppers = {  # by domain: at alpha / 4, / 3, / 2, / 1
        "a": (0.59, 0.58, 0.57, 0.56),
        "b": (0.61, 0.59, 0.58, 0.57),
        "c": (0.63, 0.61, 0.59, 0.58),
        "d": (0.66, 0.65, 0.64, 0.62),
    }
    metrics = [metric(name, GOOD), metric("token_acceptance.pooled", GOOD)]
    for domain, highs in uppers.items():
        scope = Scope(kind="domain", key=domain)
        for divisor, high in zip((4, 3, 2, 1), highs, strict=True):
            bound = replace(estimate(0.55, 0.5, high, 60), alpha=0.05 / divisor)
            suffix = "" if divisor == 1 else ".corrected"
            metrics.append(metric(name + suffix, bound, scope))
    found = verdict(measured(*metrics), FLOOR)
    failed = [c.scope.key for c in checks(found, "acceptance") if c.outcome is FAIL]
    assert failed == ["a", "b", "c"]  # Bonferroni would stop after a
    weaker = [m for m in metrics if m.scope.key != "a"]
    weaker.append(metric(name, replace(GOOD, n=60), Scope(kind="domain", key="a")))
    found = verdict(measured(*weaker), FLOOR)
    # The strongest of the rest misses alpha / 4, so none of them fails.
    assert not [c for c in checks(found, "acceptance") if c.outcome is FAIL]


def test_domains_and_concurrencies_have_thresholds_of_their_own() -> None:
    base = acceptance(GOOD, GOOD, estimate(0.55, 0.52, 0.58), GOOD)
    assert verdict(base, FLOOR).outcome is FAIL
    own = replace(FLOOR, domains=(("sql", 0.5),))
    assert verdict(base, own).outcome is PASS
    slow = measured(metric("speedup", estimate(0.98, 0.96, 0.99, 3, "blocks"), AT_8))
    assert verdict(slow, SpeedupRule()).outcome is FAIL
    assert verdict(slow, SpeedupRule(at=((8, 0.95),))).outcome is PASS


def test_a_stop_is_no_way_around_the_pooled_rule_of_a_domain() -> None:
    """Of 1,000 planned requests 120 ran; the domain has 40 of them by now."""
    stop = EarlyStop(why="it passed", n_requests=120, n_planned=1000, request_s=1.0)
    few = acceptance(GOOD, GOOD, replace(GOOD, n=40), estimate(0.55, 0.4, 0.7, 40))
    assert verdict(few, FLOOR).outcome is PASS
    stopped = verdict(replace(few, early_stop=stop), FLOOR)
    assert stopped.outcome is UNDECIDED
    assert stopped.early_stop == (
        "Stopped early, because it passed: 120 of 1000 requests of the acceptance pass were run, "
        "880 (88%, 0.2 hours) were not needed."
    )


def test_a_budget_that_ended_is_no_verdict() -> None:
    stop = EarlyStop(
        why="the budget of 5 minutes had ended",
        n_requests=64,
        n_planned=100,
        request_s=1.0,
        left_out=("speed at 8",),
        undecided=True,
    )
    found = verdict(replace(measured(SPEEDUP), early_stop=stop), SpeedupRule())
    assert found.outcome is UNDECIDED
    assert "not run: speed at 8" in found.blocking[0].reason


def _after_a_new_target(carried: float, new: float, **fields: object) -> Measurements:
    tau = "acceptance_length.pooled"
    arm = Arm.CARRY_OVER
    old = estimate(carried, carried - 0.05, carried + 0.05, 3, "blocks")
    return measured(
        metric("speedup", estimate(new, new - 0.05, new + 0.05, 3, "blocks"), AT_8),
        replace(metric("speedup", old, AT_8), arm=arm),
        metric(tau, estimate(2.61, 2.5, 2.7)),
        replace(metric(tau, estimate(1.94, 1.9, 2.0)), arm=arm),
        carry_over=CarryOver(kind="measured", draft_of="code@1"),
        **fields,
    )


@pytest.mark.parametrize(
    ("carried", "new", "advice"),
    [
        (1.18, 1.52, "ship it"),
        (1.52, 1.18, "ship carried over, which is faster"),
        (1.18, 0.80, "ship carried over: the old draft still pays"),
        (0.90, 0.80, "ship without a draft"),
    ],
)
def test_after_a_new_target_one_of_three_is_recommended(carried, new, advice) -> None:
    found = verdict(_after_a_new_target(carried, new), SpeedupRule(), incumbent_same_target=False)
    assert found.comparison == (
        "tokens per round: none 1.00, carried over 1.94, new 2.61; "
        f"speedup at 8: 1.00, {carried:.2f}, {new:.2f}"
    )
    assert found.recommendation.startswith(advice)


def test_a_version_that_is_the_carried_over_draft_says_so() -> None:
    tau = metric("acceptance_length.pooled", estimate(1.94, 1.9, 2.0))
    itself = measured(tau, SPEEDUP, carry_over=CarryOver(kind="self", draft_of="code@1"))
    found = verdict(itself, SpeedupRule(), incumbent_same_target=False)
    assert found.comparison.startswith("tokens per round: none 1.00, carried over 1.94; ")
    assert "this version is the carried-over draft" in found.comparison


def test_break_even_of_other_rates() -> None:
    cost = metric("round_cost_ratio", estimate(2.5, 2.4, 2.6, 3, "blocks"), AT_8)
    k = metric("draft_tokens_per_round", estimate(5.0, 5.0, 5.0))
    for rate, wanted in ((Rate.ACCEPTANCE_LENGTH, 2.5), (Rate.ACCEPTANCE_RATE, 0.3)):
        tau = metric(f"{rate}.request_mean", estimate(2.0, 1.9, 2.1))
        found = verdict(measured(cost, k, tau, *break_even({8: 0.6})), AcceptanceRule(rate=rate))
        assert checks(found, "acceptance")[0].threshold == pytest.approx(wanted)


def test_the_advisory_threshold_is_judged_and_does_not_decide() -> None:
    low = estimate(0.57, 0.56, 0.58)
    rule = replace(FLOOR, threshold=0.5, advise_threshold=0.6)
    found = verdict(acceptance(low, low, low, low), rule)
    assert found.outcome is PASS
    advice = [c for c in checks(found, "acceptance") if c.mode is Mode.ADVISE]
    assert [c.outcome for c in advice] == [FAIL, FAIL]


@pytest.mark.parametrize(
    ("same", "observed", "mode", "outcome"),
    [
        (True, estimate(0.0, -0.01, 0.01), Mode.GATE, PASS),
        (True, estimate(-0.05, -0.07, -0.03), Mode.GATE, FAIL),
        (True, estimate(-0.02, -0.03, 0.0), Mode.GATE, UNDECIDED),
        (True, Missing(reason="not replayed"), Mode.GATE, UNDECIDED),
        (False, estimate(-0.05, -0.07, -0.03), Mode.ADVISE, UNDECIDED),
        (None, Missing(reason="not replayed"), Mode.ADVISE, UNDECIDED),
    ],
)
def test_non_inferiority(same, observed, mode, outcome) -> None:
    found = verdict(
        measured(metric("non_inferiority", observed), SPEEDUP),
        NonInferiorityRule(),
        SpeedupRule(),
        incumbent_same_target=same,
    )
    (check,) = checks(found, "non_inferiority")
    assert (check.mode, check.outcome) == (mode, outcome)
    if same is None:
        assert "no incumbent" in check.reason


MIXTURE = Mixture(
    n=200,
    weight_low=0.2,
    mean_low=0.4,
    mean_high=0.8,
    delta_bic=40.0,
    valley_ratio=0.1,
    strong=True,
)


@pytest.mark.parametrize(
    ("share", "mixture", "outcome"),
    [
        (estimate(0.02, 0.0, 0.09), None, PASS),
        (estimate(0.02, 0.0, 0.09), MIXTURE, PASS),  # a flag alone is a warning
        (estimate(0.12, 0.08, 0.16), MIXTURE, FAIL),  # flag and share over the cap
        (estimate(0.12, 0.08, 0.16), None, UNDECIDED),
        (estimate(0.2, 0.15, 0.3), None, FAIL),
        (estimate(0.2, 0.15, 0.3, 99), None, UNDECIDED),
        (Missing(reason="12 requests have 15 tested tokens", n=12), None, UNDECIDED),
    ],
)
def test_bimodality(share, mixture, outcome) -> None:
    found = verdict(
        measured(metric("share_below_floor", share), SPEEDUP, mixture=mixture),
        BimodalityRule(mode=Mode.GATE),
    )
    assert checks(found, "bimodality")[0].outcome is outcome
    assert bool(found.warnings) == (mixture is not None)


def test_no_event_still_needs_59_requests() -> None:
    zero = metric("fallback_share", estimate(0.0, 0.0, 0.14, 20))
    (check,) = checks(verdict(measured(zero), FallbackRateRule(mode=Mode.GATE)), "fallback")
    assert (check.outcome, check.n_more) == (UNDECIDED, 39)


@pytest.mark.parametrize(
    ("speedup", "outcome"),
    [
        (estimate(1.5, 1.2, 1.8, 3, "blocks"), PASS),
        (estimate(1.2, 1.0, 1.4, 3, "blocks"), UNDECIDED),  # 1.0 itself is no speedup
        (estimate(0.8, 0.7, 0.9, 3, "blocks"), FAIL),
        (estimate(0.8, 0.7, 0.9, 2, "blocks"), UNDECIDED),
        (Missing(reason="a ratio needs two blocks"), UNDECIDED),
    ],
)
def test_speedup(speedup, outcome) -> None:
    found = verdict(measured(metric("speedup", speedup, AT_8)), SpeedupRule())
    assert found.outcome is outcome


def test_speedup_gates_where_asked_and_is_shown_elsewhere() -> None:
    slow = metric("speedup", estimate(0.8, 0.7, 0.9, 3, "blocks"), AT_8)
    fast = metric(
        "speedup", estimate(1.5, 1.4, 1.6, 3, "blocks"), Scope(kind="concurrency", key="1")
    )
    found = verdict(measured(slow, fast), SpeedupRule(advise_at=(8,)), concurrencies=(1, 8))
    assert found.outcome is PASS
    assert [(c.mode, c.outcome) for c in checks(found, "speedup")] == [
        (Mode.GATE, PASS),
        (Mode.ADVISE, FAIL),
    ]
    assert "slows it down at concurrency 8" in found.recommendation


@pytest.mark.parametrize(
    ("engine", "on_native", "mode"),
    [
        ("native", Mode.ADVISE, Mode.ADVISE),
        ("native", Mode.GATE, Mode.GATE),
        ("vllm", Mode.ADVISE, Mode.GATE),
    ],
)
def test_latency_gates_on_serving_engines(engine, on_native, mode) -> None:
    late = estimate(1.3, 1.2, 1.4, 3, "blocks")
    found = verdict(
        measured(
            metric("ttft_ratio.p95", late, AT_8),
            metric("tpot_ratio.p95", estimate(0.7, 0.6, 0.8, 3, "blocks"), AT_8),
            SPEEDUP,
        ),
        LatencyRule(on_native=on_native),
        SpeedupRule(),
        engine=engine,
    )
    assert [(c.mode, c.outcome) for c in checks(found, "latency")] == [(mode, FAIL), (mode, PASS)]


def test_the_cache_rule_never_passes_silently() -> None:
    (check,) = checks(verdict(measured(SPEEDUP), CacheRule(), SpeedupRule()), "cache")
    assert (check.mode, check.outcome) == (Mode.ADVISE, UNDECIDED)
    assert "no prefix cache" in check.reason
    with_cache = verdict(measured(SPEEDUP), CacheRule(), SpeedupRule(), prefix_cache=True)
    assert with_cache.outcome is UNDECIDED


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, PASS),
        ({"peak_bytes": 4 * GIB}, FAIL),
        ({"predicted_bytes": 4 * GIB}, FAIL),
        ({"worst_case_reached": False}, UNDECIDED),
        ({"worst_case_reached": False, "peak_bytes": 5 * GIB}, FAIL),
        ({"budget_bytes": 0}, UNDECIDED),
    ],
)
def test_memory(change, outcome) -> None:
    assert verdict(measured(memory=(replace(MEMORY, **change),)), MemoryRule()).outcome is outcome


def test_unmeasured_memory_is_not_a_pass() -> None:
    assert verdict(measured(memory=()), MemoryRule()).outcome is UNDECIDED


def test_memory_has_to_be_known_at_the_largest_concurrency() -> None:
    found = verdict(measured(), MemoryRule(), concurrencies=(1, 8, 32))
    assert found.outcome is UNDECIDED
    assert "memory at concurrency 32" in checks(found, "memory")[0].reason


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, PASS),
        ({"n_divergent": 2}, FAIL),
        ({"n_divergent": 2, "n_near_tie": 2}, PASS),
        ({"n_divergent": 2, "n_unclassified": 2}, UNDECIDED),
        ({"n_divergent": 2, "n_control_divergent": 1}, UNDECIDED),
        ({"n_divergent": 2, "n_control_requests": 0}, UNDECIDED),
        ({"n_support_violations": 1}, FAIL),
        ({"scores": (ZScore(name="white-box acceptance", z=-3.6, n=9000),)}, FAIL),
        ({"n_greedy_tokens": 100, "n_sampled_tokens": 100}, UNDECIDED),
    ],
)
def test_fidelity(change, outcome) -> None:
    found = verdict(measured(fidelity=replace(FIDELITY, **change)), FidelityRule())
    assert found.outcome is outcome


def test_fidelity_level_and_absence() -> None:
    assert verdict(measured(), FidelityRule(min_level="F3")).outcome is UNDECIDED
    assert verdict(measured(fidelity=None), FidelityRule()).outcome is UNDECIDED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_accepted": 0, "n_accepted_committed": 0}, "a broken pair, not a low rate"),
        ({"n_proposed": 0, "n_accepted": 0}, "proposed no token"),
        ({"n_failed": 3, "n_excluded": 2}, "5 of 200 requests failed"),
        ({"n_failed": 200}, "no request finished"),
    ],
)
def test_a_broken_replay_is_an_error(change, reason) -> None:
    found = verdict(measured(SPEEDUP, counts=(replace(COUNTS, **change),)))
    assert found.outcome is ERROR
    assert reason in " ".join(c.reason for c in found.blocking)
    assert "invalid" in found.recommendation


def test_counters_that_do_not_add_up_are_an_error() -> None:
    bad = metric("inconsistent_requests", estimate(1 / 212, 0.0, 0.02))
    assert verdict(measured(SPEEDUP, bad)).outcome is ERROR


@pytest.mark.parametrize(
    ("target_ok", "spec_ok", "outcome"),
    [(True, True, PASS), (True, False, FAIL), (False, False, ERROR), (False, True, ERROR)],
)
def test_boundary(target_ok, spec_ok, outcome) -> None:
    results = (
        BoundaryResult(name="longest prompt", arm=Arm.TARGET, ok=target_ok),
        BoundaryResult(name="longest prompt", arm=Arm.SPEC, ok=spec_ok, detail="index error"),
    )
    assert verdict(measured(SPEEDUP, boundary=results)).outcome is outcome


def test_boundary_requests_that_never_ran_are_not_a_pass() -> None:
    assert verdict(measured(SPEEDUP, boundary=())).outcome is UNDECIDED


def test_a_failing_draft_does_not_hold_back_its_target() -> None:
    found = verdict(
        acceptance(estimate(0.4, 0.3, 0.5), GOOD, GOOD, GOOD), FLOOR, MemoryRule(), FidelityRule()
    )
    assert found.outcome is FAIL
    assert found.recommendation == (
        "ship without a draft: the new target can go out alone: "
        "`pairgate register LINE --target TARGET --method none`"
    )


def test_a_target_that_fails_by_itself_is_not_recommended() -> None:
    low = acceptance(estimate(0.4, 0.3, 0.5), GOOD, GOOD, GOOD)
    big = replace(MEMORY, arm=Arm.TARGET, peak_bytes=9 * GIB)
    found = verdict(replace(low, memory=(MEMORY, big)), FLOOR, MemoryRule())
    assert found.recommendation.startswith("do not ship")
    bent = verdict(replace(low, fidelity=replace(FIDELITY, n_divergent=3)), FLOOR, FidelityRule())
    assert bent.recommendation.startswith("do not ship")


def test_a_version_without_a_draft() -> None:
    none = replace(COUNTS, arm=Arm.TARGET, n_proposed=0, n_accepted=0)
    alone = replace(MEMORY, arm=Arm.TARGET)
    found = measured(counts=(none,), memory=(alone,))
    judged = verdict(found, FLOOR, SpeedupRule(), MemoryRule(), method="none")
    assert judged.outcome is PASS
    assert all("no draft" in c.reason for c in checks(judged, "acceptance"))
    assert all(c.mode is Mode.ADVISE for c in checks(judged, "speedup"))
    # Nothing that gates was measured: a replay that merely ran is no evidence.
    empty = verdict(found, FLOOR, SpeedupRule(), method="none")
    assert empty.outcome is UNDECIDED


def test_numbers_are_shown_with_the_digits_that_decide() -> None:
    close = estimate(0.598, 0.5961, 0.59991)
    found = verdict(acceptance(close, GOOD, GOOD, GOOD), FLOOR)
    assert "0.5999] < 0.6000" in checks(found, "acceptance")[0].reason


def test_production_without_a_draft_has_no_acceptance_to_compare_with() -> None:
    found = verdict(
        measured(SPEEDUP),
        NonInferiorityRule(),
        SpeedupRule(),
        incumbent_same_target=True,
        incumbent_has_draft=False,
    )
    assert found.outcome is PASS
    (check,) = checks(found, "non_inferiority")
    assert (check.mode, check.outcome) == (Mode.ADVISE, UNDECIDED)


def test_failures_of_the_acceptance_pass_are_not_diluted_by_the_others() -> None:
    failing = replace(COUNTS, n_failed=5)
    others = replace(COUNTS, phase="speed", n_requests=800)
    found = verdict(measured(SPEEDUP, counts=(failing, others)))
    assert found.outcome is ERROR
    assert "5 of 200 requests of the acceptance pass failed" in checks(found, "replay")[0].reason


def test_an_advising_rule_never_moves_a_gate() -> None:
    """The policy's digest does not cover it, so it must not choose where break-even is taken."""
    good = acceptance(GOOD, GOOD, GOOD, GOOD)
    base = replace(good, metrics=(*good.metrics, *break_even({1: 0.3, 8: 0.95})))
    gate = AcceptanceRule(threshold="break-even", advise_threshold=None)
    shown = SpeedupRule(mode=Mode.ADVISE, advise_at=(8,))
    outcomes = {
        verdict(base, *rules, concurrencies=(1, 8)).outcome for rules in ((gate,), (gate, shown))
    }
    assert outcomes == {FAIL}
