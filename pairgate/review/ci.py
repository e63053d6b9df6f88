"""What a CI job leaves behind: `verdict.json`, JUnit XML and a markdown summary."""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict
from importlib import resources
from xml.etree import ElementTree

from pairgate.domain.evidence import Evaluation
from pairgate.domain.policy import Mode
from pairgate.domain.verdict import Check, Outcome, Verdict
from pairgate.ports import Json
from pairgate.review.answers import headline_of, ordered_checks, reason, rule_name
from pairgate.review.wording import clipped, printable, short

SCHEMA_VERSION = 1
# XML 1.0, section 2.2: everything else cannot stand in a document, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def verdict_document(evaluation: Evaluation, verdict: Verdict) -> Json:
    """The verdict as a JSON object; its form is `verdict_schema()`.

    Keys are added within a schema version, never renamed or removed.
    """
    origin = evaluation.provenance
    return {
        "schema": SCHEMA_VERSION,
        "line": evaluation.line,
        "version": evaluation.version,
        "outcome": verdict.outcome.value,
        "exit_code": verdict.outcome.exit_code,
        "evaluation": evaluation.digest,
        "attempt": evaluation.attempt,
        "alpha": evaluation.alpha,
        "binding": asdict(evaluation.binding),
        "checks": [_check_document(c) for c in ordered_checks(verdict.checks)],
        "recommendation": verdict.recommendation,
        "warnings": list(verdict.warnings),
        "early_stop": verdict.early_stop,
        "saved": _saved(evaluation),
        "comparison": verdict.comparison,
        "definition": evaluation.measurements.definition,
        "seed": origin.seed,
        "command": origin.command,
        "pairgate_version": origin.pairgate_version,
        "started_at": origin.started_at,
        "finished_at": origin.finished_at,
    }


def verdict_schema() -> Json:
    """The JSON Schema (2020-12) of `verdict_document`."""
    text = resources.files(__package__).joinpath("verdict.schema.json").read_text("utf-8")
    schema: Json = json.loads(text)
    return schema


def junit_xml(evaluation: Evaluation, verdict: Verdict) -> str:
    """One test case per check: ERROR is an error, FAIL and INCONCLUSIVE are failures with that
    type; an advisory check always passes and says its outcome in `system-out`."""
    gating = [c for c in verdict.checks if c.mode is Mode.GATE]
    n_errors = sum(c.outcome is Outcome.ERROR for c in gating)
    n_failures = sum(c.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE) for c in gating)
    name = f"pairgate {evaluation.line}@{evaluation.version}"
    totals = {
        "name": name,
        "tests": str(len(verdict.checks)),
        "failures": str(n_failures),
        "errors": str(n_errors),
    }
    root = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {**totals, "skipped": "0", "timestamp": evaluation.provenance.finished_at},
    )
    for check in ordered_checks(verdict.checks):
        _testcase(suite, check)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def markdown_summary(evaluation: Evaluation, verdict: Verdict) -> str:
    """The verdict for a CI job's summary page; names of users cannot become markup."""
    version = f"{evaluation.line}@{evaluation.version}"
    lines = [f"## {verdict.outcome}: {headline_of(version, verdict.outcome)}", ""]
    if verdict.recommendation:
        lines += [f"**Recommendation:** {escaped(verdict.recommendation)}", ""]
    lines += [*checks_markdown(verdict.checks), ""]
    lines += [f"- {escaped(text)}" for text in (*verdict.warnings, verdict.comparison) if text]
    if verdict.early_stop:
        lines.append(f"- {escaped(verdict.early_stop)}")
    lines += [
        f"- attempt {evaluation.attempt}, evaluation `{short(evaluation.digest)}`, pair "
        f"`{short(evaluation.binding.pair_digest)}`",
        f"- again: `{_flat(evaluation.provenance.command).replace('`', '')}`",
    ]
    if verdict.outcome is Outcome.PASS:
        lines.append(f"- promote: `pairgate promote {version}`")
    return "\n".join(lines) + "\n"


def checks_markdown(checks: tuple[Check, ...]) -> list[str]:
    """The table of checks as markdown lines."""
    rows = [
        f"| {c.outcome} | {escaped(rule_name(c))} | {escaped(reason(c))} |"
        for c in ordered_checks(checks)
    ]
    return ["| outcome | rule | reason |", "| --- | --- | --- |", *rows]


def _flat(text: str) -> str:
    return " ".join(printable(text).split())


def escaped(text: str) -> str:
    """One line of markdown that shows `text` as it is."""
    flat = _flat(clipped(text, 600))
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", html.escape(flat, quote=False))


def _saved(evaluation: Evaluation) -> Json | None:
    """What an early stop left undone of the acceptance pass; null where nothing was."""
    stop = evaluation.measurements.early_stop
    if stop is None:
        return None
    return {
        "requests": stop.n_saved,
        "share": stop.n_saved / stop.n_planned,
        "hours": stop.saved_hours,
        "stages": list(stop.left_out),
    }


def _check_document(check: Check) -> Json:
    observed = None if check.observed is None else asdict(check.observed)
    return {
        "rule": check.rule,
        "scope": asdict(check.scope),
        "mode": check.mode.value,
        "outcome": check.outcome.value,
        "reason": check.reason,
        "metric": check.metric,
        "observed": observed,
        "threshold": check.threshold,
        "n_more": check.n_more,
    }


def _testcase(suite: ElementTree.Element, check: Check) -> None:
    text = _xml(reason(check))
    # Two checks can share rule and scope; CI systems keep one result per name.
    name = rule_name(check) + (f": {check.metric}" if check.metric else "")
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": f"pairgate.{check.rule}", "name": _xml(name), "time": "0"},
    )
    if check.mode is Mode.GATE and check.outcome is not Outcome.PASS:
        tag = "error" if check.outcome is Outcome.ERROR else "failure"
        failed = ElementTree.SubElement(
            case, tag, {"type": check.outcome.value, "message": text[:300]}
        )
        failed.text = text
    else:
        ElementTree.SubElement(case, "system-out").text = f"{check.outcome}: {text}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
