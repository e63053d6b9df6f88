"""The prefix cache's hit share in both arms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_traffic import simulate_batch
from pairgate.domain.evidence import Estimate, Missing
from pairgate.domain.policy import CacheRule, FidelityRule, Policy
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Outcome
from pairgate.judge import judge
from pairgate.measure import measure


@pytest.fixture
def acceptance():
    rng = np.random.default_rng(0)
    return simulate_batch(rng.beta(32, 8, 60), rng.integers(30, 90, 60), rng)


POLICY = Policy(name="cache", rules=(CacheRule(), FidelityRule()))


def _recorded(make_recorded, acceptance, *, spec_share: float, target_share: float):
    def cached(batch):
        share = spec_share if batch.arm is Arm.SPEC else target_share
        return replace(batch, cached_tokens=(batch.prompt_tokens * share).astype(np.int32))

    recorded = make_recorded(acceptance)
    return replace(recorded, speed=tuple(map(cached, recorded.speed)))


@pytest.mark.parametrize(("spec_share", "outcome"), [(0.90, Outcome.PASS), (0.50, Outcome.FAIL)])
def test_a_draft_that_halves_the_hits_fails(make_recorded, acceptance, spec_share, outcome) -> None:
    recorded = _recorded(make_recorded, acceptance, spec_share=spec_share, target_share=0.90)
    found = measure(recorded, policy=POLICY)
    assert found.find("cache_hit", arm=Arm.TARGET).value == pytest.approx(0.90)
    assert found.find("cache_hit").value == pytest.approx(spec_share)
    difference = found.find("cache_hit_difference")
    assert isinstance(difference, Estimate)
    assert difference.value == pytest.approx(spec_share - 0.90)
    verdict = judge(
        found,
        POLICY,
        incumbent_same_target=None,
        concurrencies=(1, 8),
        engine="vllm",
        prefix_cache=True,
    )
    (check,) = [c for c in verdict.checks if c.rule == "cache"]
    assert check.outcome is outcome, check.reason


def test_an_engine_that_does_not_tell_is_not_a_share_of_nothing(make_recorded, acceptance) -> None:
    found = measure(make_recorded(acceptance), policy=POLICY)
    assert isinstance(found.find("cache_hit_difference"), Missing)
