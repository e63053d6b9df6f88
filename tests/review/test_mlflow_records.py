"""Names and lengths that MLflow takes, without MLflow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from pairgate.domain.evidence import Evaluation, Scope
from pairgate.domain.policy import Policy
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.review import mlflow_records as records

LEGAL = re.compile(r"[/\w.\- ]{1,250}\Z")


@pytest.mark.parametrize(
    "key", ["sql", "a/b", "..", ".", "", "数学", "x" * 400, "a:b$c\n", " padded ", "c++", "c--"]
)
def test_every_scope_gets_a_legal_name(key: str) -> None:
    name = records.metric_name("token_acceptance.pooled", Scope(kind="domain", key=key), Arm.SPEC)
    assert LEGAL.match(name)
    parts = name.split("/")
    assert len(parts) == 3
    assert not {"", ".", ".."} & set(parts)


def test_names_that_look_alike_stay_apart() -> None:
    keys = ["a/b", "a:b", "a_b", "数学", "英語", "x" * 400, "x" * 401]
    names = {records.metric_name("m", Scope(kind="domain", key=k), Arm.SPEC) for k in keys}
    assert len(names) == len(keys)


def test_bounds_are_keys_of_their_own(evaluation: Evaluation) -> None:
    found = records.metrics(evaluation.measurements)
    name = "domain/sql/token_acceptance.request_mean"
    assert found[name] == pytest.approx(0.41)
    assert found[f"{name}.low"] == pytest.approx(0.38)
    assert found[f"{name}.high"] == pytest.approx(0.44)
    assert found["concurrency/8/tokens_per_s.target"] > 0
    assert "plain_token_share" not in found  # it is Missing
    assert found["memory/8/peak_bytes"] == 90 * 2**20


def test_the_description_stays_short_and_leads_to_the_promotion(
    make_evaluation: Callable[..., Evaluation], make_verdict: Callable[..., Verdict]
) -> None:
    evaluation = make_evaluation({f"domain {i} " + "x" * 80: 0.7 for i in range(200)})
    text = records.description(evaluation, make_verdict(evaluation, Outcome.PASS), "#/runs/1")
    assert len(text) < 5000
    assert text.startswith("**PASS**")
    assert "`pairgate promote code-assistant@2`" in text
    assert "more checks in the report" in text
    assert evaluation.digest.removeprefix("sha256:")[:12] in text


def test_params_and_tags_keep_within_their_limits(
    evaluation: Evaluation, verdict: Verdict, policy: Policy
) -> None:
    long = replace(verdict, recommendation="x" * 20_000)
    assert all(len(v) < 8000 for v in records.tags(evaluation, long).values())
    named = replace(policy, name="p" * 20_000)
    assert all(len(v) < 6000 for v in records.params(evaluation, named, None).values())
