"""verdict.json against its schema, JUnit as CI systems read it, and the markdown summary."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pairgate.domain.evidence import Evaluation, Missing
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.review.ci import junit_xml, markdown_summary, verdict_document, verdict_schema

jsonschema = pytest.importorskip("jsonschema", reason="the extra [dev] has jsonschema")


@pytest.fixture
def schema() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(verdict_schema())
    return jsonschema.Draft202012Validator(verdict_schema())


def test_the_document_follows_its_schema(
    evaluation: Evaluation, verdict: Verdict, schema: jsonschema.Draft202012Validator
) -> None:
    checks = (replace(verdict.checks[0], observed=Missing(reason="too short")), *verdict.checks[1:])
    document = verdict_document(evaluation, replace(verdict, checks=checks))
    schema.validate(json.loads(json.dumps(document, allow_nan=False)))
    assert document["exit_code"] == 10
    assert document["evaluation"] == evaluation.digest


@pytest.mark.parametrize("path", [("outcome",), ("evaluation",), ("checks", 0, "outcome")])
def test_the_schema_refuses_other_values(
    path: tuple[str | int, ...],
    evaluation: Evaluation,
    verdict: Verdict,
    schema: jsonschema.Draft202012Validator,
) -> None:
    document = copy.deepcopy(verdict_document(evaluation, verdict))
    *parents, last = path
    place = document
    for key in parents:
        place = place[key]
    place[last] = "MAYBE"
    assert not schema.is_valid(document)


def test_junit_has_a_case_per_check_and_advice_never_fails(
    evaluation: Evaluation, verdict: Verdict
) -> None:
    root = ElementTree.fromstring(junit_xml(evaluation, verdict))
    suite = root.find("testsuite")
    assert suite is not None
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert len(cases) == len(verdict.checks) == int(suite.get("tests", ""))
    assert suite.get("failures") == "1"
    failure = cases["acceptance, domain sql: token_acceptance.request_mean"].find("failure")
    assert failure is not None
    assert failure.get("type") == "FAIL"
    advice = cases["bimodality (advises): share_below_floor"]
    assert advice.find("failure") is None
    assert (advice.findtext("system-out") or "").startswith("FAIL: fails: 24.0 %")


@pytest.mark.parametrize(
    ("outcome", "tag"), [(Outcome.INCONCLUSIVE, "failure"), (Outcome.ERROR, "error")]
)
def test_junit_tells_outcomes_apart(
    outcome: Outcome, tag: str, evaluation: Evaluation, make_verdict: Callable[..., Verdict]
) -> None:
    root = ElementTree.fromstring(junit_xml(evaluation, make_verdict(evaluation, outcome)))
    assert [e.get("type") for e in root.iter(tag)] == [outcome.value]


def test_hostile_names_break_neither_xml_nor_markdown(
    make_evaluation: Callable[..., Evaluation], make_verdict: Callable[..., Verdict]
) -> None:
    name = "a|b`<script>\x00\x1b]]>\udc80\n# head"
    evaluation = make_evaluation({name: 0.4})
    verdict = make_verdict(evaluation)
    root = ElementTree.fromstring(junit_xml(evaluation, verdict))
    assert any("a|b`<script>��]]>" in c.get("name", "") for c in root.iter("testcase"))
    text = markdown_summary(evaluation, verdict)
    row = next(line for line in text.splitlines() if "script" in line)
    assert "<script>" not in row
    assert "a\\|b\\`&lt;script&gt;" in row
    assert row.count(" | ") == 2
    assert "\n# head" not in text


def test_markdown_names_the_next_command(
    evaluation: Evaluation, make_verdict: Callable[..., Verdict]
) -> None:
    verdict = make_verdict(evaluation, Outcome.PASS)
    text = markdown_summary(evaluation, verdict)
    assert text.startswith("## PASS: code-assistant@2 may go out")
    assert "`pairgate promote code-assistant@2`" in text
