"""Measurements + Policy -> Verdict: pure, one Check per rule and scope, worst of the gating ones.

Absence of evidence is INCONCLUSIVE, never PASS. A PASS needs every rule, so its error rate is at
most the largest single alpha without a correction (intersection-union test); a FAIL of one domain
is a claim of its own and is corrected for the number of domains. An evaluation that is broken is
ERROR, which claims nothing about the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pairgate.domain.evidence import OVERALL, Measurements
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
from pairgate.domain.verdict import Check, Outcome, Verdict, worst
from pairgate.judge.acceptance import acceptance_checks
from pairgate.judge.case import Case
from pairgate.judge.comparison import comparison
from pairgate.judge.fidelity import fidelity_checks
from pairgate.judge.integrity import INTEGRITY_RULES, boundary_checks, replay_checks
from pairgate.judge.machine import cache_checks, latency_checks, memory_checks, speedup_checks
from pairgate.judge.rates import (
    bimodality_checks,
    fallback_checks,
    non_inferiority_checks,
)
from pairgate.judge.recommend import recommendation
from pairgate.judge.sentences import not_applicable

__all__ = ["judge"]

_DRAFT_ONLY: tuple[type[Rule], ...] = (
    AcceptanceRule,
    NonInferiorityRule,
    BimodalityRule,
    FallbackRateRule,
    SpeedupRule,
    LatencyRule,
    CacheRule,
)


def judge(
    measurements: Measurements,
    policy: Policy,
    *,
    incumbent_same_target: bool | None,
    incumbent_has_draft: bool = True,
    concurrencies: tuple[int, ...],
    engine: str = "native",
    method: str = "draft_model",
    prefix_cache: bool = False,
    warnings: tuple[str, ...] = (),
    version: str = "LINE@N",
) -> Verdict:
    """Judge one evaluation.

    `incumbent_same_target` is None without an incumbent, which may serve its target alone
    (`incumbent_has_draft` false); `concurrencies` are the profile's;
    `method` none means that the version has no draft; `prefix_cache` whether the engine has one;
    `version` is how the recommendation names what was judged.
    """
    case = Case(
        measurements=measurements,
        policy=policy,
        same_target=incumbent_same_target,
        incumbent_has_draft=incumbent_has_draft,
        concurrencies=concurrencies,
        engine=engine,
        has_draft=str(method) != "none",
        prefix_cache=prefix_cache,
        version=version,
    )
    checks = [*replay_checks(case), *boundary_checks(case)]
    for rule in policy.rules:
        if isinstance(rule, _DRAFT_ONLY) and not case.has_draft:
            checks.append(not_applicable(rule.name, "this version has no draft"))
        else:
            checks += _checks(rule, case)
    outcome = worst(c.outcome for c in checks if c.mode is Mode.GATE)
    if outcome is Outcome.PASS and not _measured_something(checks):
        checks.append(_nothing_measured())
        outcome = Outcome.INCONCLUSIVE
    stop = measurements.early_stop
    return Verdict(
        outcome=outcome,
        checks=tuple(checks),
        policy_digest=policy.digest,
        recommendation=recommendation(case, outcome, checks),
        warnings=(*warnings, *_warnings(case)),
        early_stop="" if stop is None else stop.sentence,
        comparison=comparison(case),
    )


def _checks(rule: Rule, case: Case) -> Iterator[Check]:
    for kind, make in _MAKERS:
        if isinstance(rule, kind):
            return make(rule, case)
    raise TypeError(f"no judge for {type(rule).__name__}")


_Maker = Callable[..., Iterator[Check]]
_MAKERS: tuple[tuple[type[Rule], _Maker], ...] = (
    (AcceptanceRule, acceptance_checks),
    (NonInferiorityRule, non_inferiority_checks),
    (BimodalityRule, bimodality_checks),
    (FallbackRateRule, fallback_checks),
    (SpeedupRule, speedup_checks),
    (MemoryRule, memory_checks),
    (FidelityRule, fidelity_checks),
    (LatencyRule, latency_checks),
    (CacheRule, cache_checks),
)


def _measured_something(checks: list[Check]) -> bool:
    """A replay that merely ran is not evidence: one rule of the policy must have been met."""
    return any(
        c.mode is Mode.GATE and c.outcome is Outcome.PASS and c.rule not in INTEGRITY_RULES
        for c in checks
    )


def _nothing_measured() -> Check:
    return Check(
        rule="policy",
        scope=OVERALL,
        mode=Mode.GATE,
        outcome=Outcome.INCONCLUSIVE,
        reason="undecided: no gating rule of the policy applies to this version",
    )


def _warnings(case: Case) -> Iterator[str]:
    mixture = case.measurements.mixture
    if mixture is not None and mixture.strong:
        yield (
            f"two kinds of requests: {mixture.weight_low:.0%} with a token acceptance around "
            f"{mixture.mean_low:.2f}, the others around {mixture.mean_high:.2f}"
        )
