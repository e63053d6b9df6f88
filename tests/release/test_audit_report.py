"""The report for an auditor: complete, and harmless whatever people wrote."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pairgate.app import approvals, audit, release
from pairgate.app.auditreport import ReportRow, as_csv, as_html, audit_report
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.domain.pair import VersionRef
from pairgate.domain.release import Kind
from pairgate.errors import IntegrityError
from tests.release.story import ALICE, BOB, LINE
from tests.release.test_audit import tamper

V1 = VersionRef(line=LINE, selector="1")
V3 = VersionRef(line=LINE, selector="3")
HOSTILE = '=HYPERLINK("http://x","y")\n<script>alert(1)</script>\x1b[31m\u202e'


def run(ws: Workspace, *arguments: str) -> Result:
    where = ["--home", str(ws.home), "--database-url", ws.database_url]
    return CliRunner().invoke(cli, [*where, *arguments])


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_decision_with_who_and_why(released: Workspace) -> None:
    approvals.approve(released, V3, "safety", actor=BOB)
    release.promote(released, V1, override="incident 4711", actor=BOB)
    report = audit_report(released)
    rows = rows_of(as_csv(report))
    decisions = released.registry.decisions(LINE)
    assert [int(r["sequence"]) for r in rows] == [d.sequence for d in decisions]
    assert list(rows[0]) == list(ReportRow.__dataclass_fields__)
    assert [r["kind"] for r in rows] == ["set", "promote", "promote", "promote", "promote"]
    third, last = rows[3], rows[4]
    assert (third["verdict"], third["attempt"], third["actor"]) == ("PASS", "1", "alice")
    assert third["approvals"] == "safety by bob (os-user)"
    assert (last["override"], last["actor"], last["identity_source"]) == ("yes", "bob", "os-user")
    assert last["reason"] == "override: incident 4711"
    assert last["hash"] == released.registry.head(LINE).hash
    assert report.heads == audit.heads(released)


def test_free_text_is_no_formula_and_no_markup(released: Workspace) -> None:
    """Also what older rows or raw SQL brought in, which today would be refused."""
    release.pin(released, V1, reason=" @SUM(1)", actor=ALICE)
    report = audit_report(released)
    report = replace(
        report, rows=(*report.rows, replace(report.rows[-1], reason=HOSTILE, actor=HOSTILE))
    )
    text = as_csv(report)
    for cell in (c for row in csv.reader(io.StringIO(text)) for c in row):
        assert not cell.lstrip(' "').startswith(("=", "+", "-", "@"))
        assert cell.isprintable()
    assert rows_of(text)[-2]["reason"] == "' @SUM(1)"
    page = as_html(report)
    tags: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.add(tag)

    Reader().feed(page)
    structure = "html head meta title style body h1 h2 p ul li table thead tbody tr th td"
    assert tags <= set(structure.split())
    assert "&lt;script&gt;" in page and "\x1b" not in page and "\u202e" not in page
    assert "everything adds up" in page


def test_the_command_filters_and_writes(released: Workspace, tmp_path: Path) -> None:
    decisions = released.registry.decisions(LINE)
    at = decisions[2].at
    assert len(rows_of(run(released, "audit", "report", "--since", at).stdout)) == 2
    assert len(rows_of(run(released, "audit", "report", LINE, "--until", at).stdout)) == 3
    assert len(json.loads(run(released, "audit", "report", "--json").stdout)["rows"]) == 4
    file = tmp_path / "audit.html"
    done = run(released, "audit", "report", "--format", "html", "--out", str(file))
    assert done.exit_code == 0 and done.stdout == ""
    page = file.read_text("utf-8")
    assert "<h2>4 decisions</h2>" in page and decisions[-1].hash in page


def test_a_report_of_an_altered_history_says_so(released: Workspace) -> None:
    tamper(released, "UPDATE decision SET reason = 'x' WHERE sequence = 3")
    done = run(released, "audit", "report", "--format", "html")
    assert isinstance(done.exception, IntegrityError)
    assert "decision 3 was altered" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "n"),
    [
        ("--since", "2000-01-01", 4),
        ("--until", "2000-01-01", 0),
        ("--since", "2999-01-01T00:00:00+02:00", 0),
        ("--until", "2999-01-01", 4),
        ("--kind", "set", 1),
        ("--kind", "rollback", 0),
        ("--by", "alice", 4),
        ("--by", "bob", 0),
    ],
)
def test_history_filters(released: Workspace, option: str, value: str, n: int) -> None:
    done = run(released, "history", LINE, option, value, "--json")
    assert len(json.loads(done.stdout)) == n


def test_a_second_and_a_date_are_included_whole(released: Workspace) -> None:
    first = released.registry.decisions(LINE)[0]
    for until in (first.at, first.at[:10], first.at[:19] + "Z", first.at[:19] + "+00:00"):
        done = run(released, "history", LINE, "--until", until, "--json")
        assert json.loads(done.stdout)[0]["sequence"] == 1, until
    for since in (first.at[:10], first.at[:19]):
        done = run(released, "history", LINE, "--since", since, "--json")
        assert json.loads(done.stdout)[0]["sequence"] == 1, since
    assert run(released, "history", LINE, "--since", "yesterday").exit_code == 2


def test_where_a_line_stood(released: Workspace) -> None:
    second = released.registry.decisions(LINE)[1]
    assert second.kind is Kind.PROMOTE
    done = run(released, "status", LINE, "--at", second.at, "--json")
    found = json.loads(done.stdout)
    assert (found["production"], found["previous"], found["hash"]) == (1, None, second.hash)
    before = run(released, "status", LINE, "--at", "2000-01-01").stdout
    assert "production none" in before
