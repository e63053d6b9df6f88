"""Verdicts on traces that were made to be awkward, through `measure` and `judge`, word for word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_traffic import simulate_batch
from benchmarks.gate_whole import BOUNDARY, ENGINE, MEMORY
from pairgate.domain.evidence import AcceptancePlan
from pairgate.domain.policy import AcceptanceRule, Mode, Policy
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.judge import judge
from pairgate.measure import measure


def verdict_of(batch: TraceBatch) -> Verdict:
    policy = Policy(name="p", rules=(AcceptanceRule(threshold=0.6, advise_threshold=None),))
    recorded = Recorded(
        boundary=BOUNDARY,
        acceptance=batch,
        speed=(),
        control=(),
        engine=ENGINE,
        max_model_len=512,
        memory=(MEMORY,),
        planned=AcceptancePlan(
            n_requests=len(batch),
            domains=tuple(map(str, np.unique(batch.domain))),
            longest_unit_tokens=int(batch.completion_tokens.max()),
        ),
    )
    return judge(
        measure(recorded, policy=policy),
        policy,
        incumbent_same_target=None,
        concurrencies=(8,),
        engine=ENGINE.name,
        version="code@3",
    )


def said(found: Verdict, outcome: Outcome) -> list[str]:
    """The reasons of the gating checks with an outcome."""
    return [c.reason for c in found.checks if c.mode is Mode.GATE and c.outcome is outcome]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_all_accepted(rng: np.random.Generator) -> None:
    """Perfect and still not certain: 120 requests leave room for 4 %."""
    found = verdict_of(simulate_batch(np.ones(120), np.full(120, 60), rng))
    assert found.outcome is Outcome.PASS
    assert said(found, Outcome.PASS)[2:4] == [
        "passes: token acceptance overall 1.00 [0.96, 1.00] >= 0.60 (n=120 requests)",
        "passes: pooled token acceptance overall 1.00 [0.96, 1.00] >= 0.60 (n=120 requests)",
    ]
    assert found.recommendation == "ship it: `pairgate promote code@3`"


def test_all_rejected(rng: np.random.Generator) -> None:
    found = verdict_of(simulate_batch(np.full(120, 1e-12), np.full(120, 60), rng))
    assert found.outcome is Outcome.ERROR
    assert said(found, Outcome.ERROR) == [
        "invalid: none of 35400 proposed tokens was accepted: a broken pair, not a low rate"
    ]
    assert found.recommendation == (
        "the evaluation is invalid: mend what the errors name and evaluate again"
    )


def test_one_domain_is_bad(rng: np.random.Generator) -> None:
    """Overall it passes; the domain does not."""
    third = np.arange(300) % 3
    batch = simulate_batch(
        np.where(third == 0, 0.35, 0.85),
        np.full(300, 60),
        rng,
        domain=np.array(["sql", "chat", "code"])[third],
    )
    found = verdict_of(batch)
    assert found.outcome is Outcome.FAIL
    failing = [c for c in found.checks if c.outcome is Outcome.FAIL]
    assert [str(c.scope) for c in failing] == ["domain sql", "domain sql"]
    mean, pooled = (c.reason for c in failing)
    assert mean.startswith('fails: token acceptance in "sql" 0.3')
    assert mean.endswith("] < 0.60 (n=100 requests)")
    assert pooled.startswith('fails: pooled token acceptance in "sql" 0.3')
    passing = said(found, Outcome.PASS)
    assert any(r.startswith("passes: token acceptance overall 0.6") for r in passing)
    assert found.warnings == (
        "two kinds of requests: 33% with a token acceptance around 0.34, the others around 0.85",
    )
    assert found.recommendation.startswith("ship without a draft: the new target can go out alone")


def test_one_giant_request(rng: np.random.Generator) -> None:
    """20,000 tokens at 0.2 among 149 short answers at 0.8: what the machine pays is not known."""
    lengths, own = np.full(150, 30), np.full(150, 0.8)
    lengths[70], own[70] = 20_000, 0.2
    found = verdict_of(simulate_batch(own, lengths, rng))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert said(found, Outcome.INCONCLUSIVE)[0] == (
        "undecided: pooled token acceptance overall was not measured: 150 requests are worth 1.4 "
        "of equal length, under 20: a few long ones would decide alone"
    )
    # No number of further requests would mend that, and none is promised.
    assert [c.n_more for c in found.blocking] == [None, None]
    assert found.recommendation == "not decided: see what acceptance still needs"


@pytest.mark.parametrize(
    ("n_sessions", "sentence", "more"),
    [
        (8, "undecided: token acceptance overall 0.", 92),
        (40, "undecided: pooled token acceptance overall 0.", 60),
    ],
)
def test_sessions_of_50(
    rng: np.random.Generator, n_sessions: int, sentence: str, more: int
) -> None:
    """400 and 2,000 requests are 8 and 40 sessions."""
    session = np.repeat(np.arange(n_sessions), 50)
    batch = simulate_batch(
        np.repeat(rng.beta(8, 2, n_sessions), 50),
        np.full(len(session), 40),
        rng,
        session=np.char.add("s", session.astype(str)),
    )
    found = verdict_of(batch)
    assert found.outcome is Outcome.INCONCLUSIVE
    first = said(found, Outcome.INCONCLUSIVE)[0]
    assert first.startswith(sentence)
    assert f" from {n_sessions} sessions, at least " in first
    assert found.recommendation == f"not decided yet: about {more} more sessions would decide"


def test_one_request_only(rng: np.random.Generator) -> None:
    found = verdict_of(simulate_batch(np.array([0.9]), np.array([80]), rng))
    assert found.outcome is Outcome.INCONCLUSIVE
    mean, pooled, _ = said(found, Outcome.INCONCLUSIVE)
    assert mean.endswith(" from 1 requests, at least 30 are needed")
    assert pooled == (
        "undecided: pooled token acceptance overall was not measured: a pooled ratio needs two "
        "requests at least"
    )
    assert found.recommendation == "not decided yet: about 99 more requests would decide"


def test_counters_that_do_not_add_up(rng: np.random.Generator) -> None:
    """A good pair, and one request that accepted more than was proposed, or three that wrote a
    token more than their rounds."""
    batch = simulate_batch(np.full(200, 0.8), np.full(200, 60), rng)
    accepted = batch.accepted.copy()
    accepted[5] = 99
    longer = (batch.completion_tokens + (np.arange(200) < 3)).astype(np.int32)
    for broken, n in (
        (replace(batch, accepted=accepted), 1),
        (replace(batch, completion_tokens=longer), 3),
    ):
        found = verdict_of(broken)
        assert found.outcome is Outcome.ERROR
        assert said(found, Outcome.ERROR) == [
            f"invalid: the counters of {n} of 200 requests do not add up"
        ]
        assert not said(found, Outcome.FAIL)
