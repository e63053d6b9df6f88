"""The verdict on F2 and F3, and on a version without a draft."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from pairgate.domain.canonical import digest_of
from pairgate.domain.evidence import Estimate, Fidelity, LawTests, Measurements, ZScore
from pairgate.domain.policy import FidelityRule, Policy
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import Case
from pairgate.judge.fidelity import fidelity_checks

PASS, FAIL, UNDECIDED = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
RULE = FidelityRule(min_level="F3")


def _mean(value: float, half: float) -> Estimate:
    return Estimate(
        value=value,
        low=value - half,
        high=value + half,
        n=20000,
        unit="tokens",
        alpha=0.05,
        method="martingale",
    )


LAW = LawTests(
    level="F3",
    n_requests=210,
    n_tokens=20000,
    n_certain=3000,
    n_outside=0,
    n_after_end=0,
    n_recovered_below=0,
    n_excused=0,
    scores=(ZScore(name="draft score", z=0.7, n=20000),),
    surprisal=_mean(0.004, 0.02),
    draft_score=_mean(0.001, 0.004),
    smallest_defect="a mean draft score off by 0.012",
)
FOUND = Fidelity(
    level="F3",
    n_greedy_requests=60,
    n_greedy_tokens=5000,
    n_divergent=0,
    n_near_tie=0,
    n_control_requests=16,
    n_control_divergent=0,
    n_sampled_tokens=3000,
    n_support_violations=0,
    n_control_tokens=1500,
    law=LAW,
    control_law=LAW,
)


def _judged(found: Fidelity, rule: FidelityRule = RULE, *, has_draft: bool = True) -> Check:
    case = Case(
        measurements=Measurements(definition="d", metrics=(), counts=(), fidelity=found),
        policy=Policy(name="p", rules=(rule,)),
        same_target=None,
        incumbent_has_draft=False,
        concurrencies=(1,),
        engine="native",
        has_draft=has_draft,
        prefix_cache=False,
        version="LINE@1",
    )
    (check,) = fidelity_checks(rule, case)
    return check


def test_a_kept_law_passes_and_names_level_means_and_defect() -> None:
    check = _judged(FOUND)
    assert check.outcome is PASS
    for part in ("fidelity F3", "20000 sampled tokens", "+0.0010", "a mean draft score off by"):
        assert part in check.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_outside": 1}, "1 emitted tokens lie outside"),
        ({"n_after_end": 4}, "4 tokens were emitted after an end token"),
        ({"n_recovered_below": 2}, "2 recovered tokens are likelier under the draft"),
        ({"scores": (ZScore(name="surprisal", z=-3.5, n=9000),)}, "surprisal z = -3.5"),
    ],
)
def test_a_violation_fails_unless_the_target_alone_has_it_too(
    change: dict[str, object], says: str
) -> None:
    bent = replace(LAW, **change)  # type: ignore[arg-type]
    check = _judged(replace(FOUND, law=bent))
    assert check.outcome is FAIL and says in check.reason
    both = _judged(replace(FOUND, law=bent, control_law=bent))
    assert both.outcome is UNDECIDED and "the target alone" in both.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"surprisal": _mean(0.02, 0.04)}, "mean surprisal +0.0200"),
        ({"draft_score": _mean(-0.008, 0.004)}, "not certainly within ±0.01"),
        ({"draft_score": None}, "too few sampled tokens for the mean draft score"),
    ],
)
def test_means_must_lie_inside_the_tolerance(change: dict[str, object], says: str) -> None:
    check = _judged(replace(FOUND, law=replace(LAW, **change)))  # type: ignore[arg-type]
    assert check.outcome is UNDECIDED and says in check.reason


def test_the_level_that_the_policy_demands() -> None:
    f1 = replace(FOUND, level="F1", law=None, control_law=None)
    assert _judged(f1).outcome is UNDECIDED
    assert _judged(f1, FidelityRule()).outcome is PASS
    # Wanting more than what is demanded does not hold a version back where it is impossible.
    assert _judged(f1, FidelityRule(level="F3")).outcome is PASS


def test_greedy_traffic_alone_reaches_the_level() -> None:
    law = replace(LAW, n_tokens=0, surprisal=None, draft_score=None, scores=())
    assert _judged(replace(FOUND, law=law)).outcome is PASS


ALONE = replace(
    FOUND,
    level="F2",
    n_greedy_requests=0,
    n_greedy_tokens=0,
    n_sampled_tokens=0,
    law=replace(LAW, level="F2", draft_score=None),
    control_law=None,
)


def test_a_version_without_a_draft_is_held_to_the_minimum_too() -> None:
    f1 = replace(ALONE, level="F1", law=None)
    assert _judged(f1, FidelityRule(), has_draft=False).outcome is PASS
    few = replace(f1, n_control_tokens=999)
    check = _judged(few, FidelityRule(), has_draft=False)
    assert check.outcome is UNDECIDED and "999 tokens, 1000 are needed" in check.reason
    assert _judged(f1, FidelityRule(min_level="F2"), has_draft=False).outcome is UNDECIDED
    # F3 needs a draft's law; without a draft F2 is all there is.
    assert _judged(ALONE, RULE, has_draft=False).outcome is PASS


def test_a_target_that_breaks_its_own_law_is_the_engines_fault() -> None:
    bent = replace(ALONE, law=replace(LAW, n_outside=3))
    assert _judged(bent, RULE, has_draft=False).outcome is UNDECIDED
    differs = replace(ALONE, n_control_divergent=1)
    assert _judged(differs, FidelityRule(), has_draft=False).outcome is UNDECIDED
    assert _judged(replace(ALONE, n_control_requests=0), has_draft=False).outcome is UNDECIDED


def test_wanting_no_more_than_the_default_leaves_the_digest() -> None:
    plain, wanting = (Policy(name="p", rules=(FidelityRule(level=x),)) for x in ("F1", "F3"))
    assert plain.digest != wanting.digest
    old = {"mode": "gate", "min_level": "F1", "max_abs_z": 3.48, "min_tokens": 1000}
    document = asdict(plain)
    for key in ("name", "show_texts"):
        document.pop(key)
    document["approvals"].pop("names")
    document["rules"] = {"fidelity": old}
    assert plain.digest == digest_of(document)
