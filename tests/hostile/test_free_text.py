"""What people write (reasons, names, identities, requests) is text, wherever it is shown."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from pairgate.app import approvals, outbox, release, targets
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.cli.output import printable
from pairgate.cli.plain import json_plain, plain
from pairgate.domain.evidence import Scope
from pairgate.domain.pair import VersionRef, check_line_name
from pairgate.domain.records import Approval
from pairgate.domain.release import Actor, Decision, Kind
from pairgate.domain.situation import Ask
from pairgate.domain.text import check_name, check_text
from pairgate.errors import InvalidInput, PairgateError
from pairgate.policyfile import preset
from pairgate.review.ci import junit_xml, markdown_summary
from pairgate.review.mlflow_records import description
from pairgate.review.report import report_html
from pairgate.review.story import Labels
from tests.release.story import ALICE, CHECKS, LINE, add, evidence, new_line

SQL = "'); DROP TABLE decision; --"
MARKUP = '</td></table><script>alert("x")</script><img src=x onerror=alert(1)>&amp;'
FORMULA = "=HYPERLINK(1)"
# Erases the screen, sets the title, turns the direction, hides, moves the cursor back.
STEERING = "a\x1b[2J\x1b]0;owned\x07\x9b31m\u202egpj\u202c\u200b\r\x08\x7f\u2066"
HOSTILE = f"{FORMULA}{SQL}{MARKUP}{STEERING}"
VISIBLE = f"{FORMULA}{SQL}{MARKUP}"
HIDDEN = frozenset("\x1b\x07\x9b\u202e\u202c\u200b\r\x08\x7f\u2066")
NOT_TEXT = ["\0", "\x1b[2J", "a\x07", "\x9b31m", "\u202egpj", "\u2066", "\udc80", "\ud800", "\x7f"]


@pytest.fixture(scope="module")
def poisoned_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history as somebody who edits the database would write it: every text is hostile."""
    folder = tmp_path_factory.mktemp("poisoned") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRGATE_DELIVERY", "off")
        patch.setenv("PAIRGATE_MLFLOW", "off")
        ws = Workspace.open(home=str(folder), create=True)
        new_line(ws)
        version = add(ws, b"base", b"draft")
        digest = evidence(ws, version)
        with ws.registry.lock(LINE) as transaction:
            decision = poisoned_decision(transaction.head.revision + 1, digest, ws)
            sealed = transaction.append(decision)
            transaction.enqueue("head", {"at": sealed.at, "kind": HOSTILE, "reason": HOSTILE})
        ws.registry.add_approval(
            Approval(
                evaluation_digest=digest,
                line=LINE,
                version=1,
                name=HOSTILE,
                actor=HOSTILE,
                identity_source=HOSTILE,
                created_at=decision.at,
            )
        )
        ws.environ[targets.COMMAND_SETTING] = "false"
        outbox.deliver(ws)
        for message in ws.registry.pending():
            for found in message.deliveries:
                poisoned = replace(found, last_error=HOSTILE)
                ws.registry.mark(message.id, poisoned, decision.at)
        ws.close()
    return folder


def poisoned_decision(sequence: int, digest: str, ws: Workspace) -> Decision:
    head = ws.registry.head(LINE)
    return Decision(
        line=LINE,
        sequence=sequence,
        kind=Kind.PROMOTE,
        production=1,
        previous=None,
        version=1,
        at="2026-12-01T12:00:00.000000Z",
        actor=HOSTILE,
        identity_source=HOSTILE,
        reason=HOSTILE,
        evaluation_digest=digest,
        policy_digest=head.policy_digest,
        slice_digest=head.slice_digest,
        profile_digest=head.profile_digest,
        override=True,
        request_id=HOSTILE,
        warnings=(HOSTILE,),
    )


@pytest.fixture
def poisoned(tmp_path: Path, poisoned_home: Path) -> Iterator[Workspace]:
    opened = Workspace.open(home=str(shutil.copytree(poisoned_home, tmp_path / "home")))
    opened.environ.update(PAIRGATE_DELIVERY="off", PAIRGATE_MLFLOW="off")
    yield opened
    opened.close()


def run(ws: Workspace, *args: str) -> Result:
    return CliRunner().invoke(cli, args, env={**ws.environ, "PAIRGATE_HOME": str(ws.home)})


READING = [
    ["status"],
    ["status", LINE],
    ["history", LINE],
    ["history", LINE, "--overrides"],
    ["show", f"{LINE}@1"],
    ["show", f"{LINE}@1", "--report"],
    ["outbox"],
    ["outbox", "list", LINE],
    ["audit", "verify"],
    ["audit", "head"],
    ["audit", "report", LINE],
    ["audit", "report", LINE, "--format", "html"],
    ["slice", "list"],
    ["profile", "list", LINE],
    ["line", "list"],
]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_nothing_steers_the_terminal(poisoned: Workspace, command: list[str]) -> None:
    result = run(poisoned, *command)
    assert result.exit_code == 0, result.output
    lines = result.output.replace("\r\n", "\n")
    assert not HIDDEN & set(lines), [c for c in lines if c in HIDDEN]


@pytest.mark.parametrize(
    "command", [c for c in READING if c[:2] != ["audit", "head"]], ids=" ".join
)
def test_as_json_it_is_what_was_said(poisoned: Workspace, command: list[str]) -> None:
    words = [w for w in command if w not in ("--report", "--format", "html")]
    if words == ["outbox"]:
        words = ["outbox", "list"]
    result = run(poisoned, *words, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert not HIDDEN & set(result.stdout)
    if words[0] in ("history", "outbox") or words[:2] == ["audit", "report"]:
        assert HOSTILE in list(strings(document))


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for nested in value.values():
            yield from strings(nested)
    elif isinstance(value, list):
        for nested in value:
            yield from strings(nested)


def test_the_reason_is_readable(poisoned: Workspace) -> None:
    assert VISIBLE in run(poisoned, "history", LINE).stdout
    assert VISIBLE in run(poisoned, "status", LINE).stdout


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def harmless(text: str) -> None:
    found = Tags()
    found.feed(text)
    assert not {"script", "iframe", "object", "form", "a"} & found.tags
    assert all(source.startswith("data:") for source in found.sources)
    assert not {name for name in found.attributes if name.startswith("on")}


def test_the_auditor_gets_text(poisoned: Workspace) -> None:
    made = run(poisoned, "audit", "report", LINE, "--format", "html")
    harmless(made.stdout)
    assert html.escape(SQL) in made.stdout
    rows = list(csv.reader(io.StringIO(run(poisoned, "audit", "report", LINE).stdout)))
    assert not [cell for row in rows for cell in row if cell[:1] in ("=", "+", "-", "@")]
    assert len({len(row) for row in rows}) == 1


def test_the_tables_are_still_there(poisoned: Workspace) -> None:
    assert len(poisoned.registry.decisions(LINE)) == 2
    assert run(poisoned, "audit", "verify").exit_code == 0


def test_evidence_with_hostile_names_is_text_everywhere(poisoned: Workspace) -> None:
    """Report, MLflow description, JUnit and job summary."""
    stored = poisoned.registry.evaluation(poisoned.registry.evaluations(LINE)[0].digest)
    check = replace(CHECKS[0], reason=HOSTILE, scope=Scope(kind="domain", key=HOSTILE))
    verdict = replace(stored.verdict, checks=(check,), recommendation=HOSTILE, warnings=(HOSTILE,))
    provenance = replace(stored.evaluation.provenance, command=HOSTILE, host=HOSTILE)
    evaluation = replace(stored.evaluation, provenance=provenance)
    labels = Labels(candidate=f"{LINE}@1", incumbent=HOSTILE, pair=HOSTILE, notes=(HOSTILE,))
    policy = replace(preset("default"), name=HOSTILE)
    page = report_html(evaluation, verdict, policy, labels=labels)
    harmless(page)
    shown = HIDDEN - {"\u200b"}  # moves nothing, and some scripts need its like
    assert not shown & set(page)
    ElementTree.fromstring(junit_xml(evaluation, verdict).encode())
    for text in (description(evaluation, verdict), markdown_summary(evaluation, verdict)):
        assert not shown & set(text)
        # In code spans nothing is markup; outside them it is escaped.
        assert "<script" not in re.sub(r"`[^`]*`", "", text)
        assert "<img" not in re.sub(r"`[^`]*`", "", text)


# --- at the border ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", NOT_TEXT)
def test_what_is_not_text_is_refused_when_it_is_given(poisoned: Workspace, text: str) -> None:
    before = poisoned.registry.head(LINE)
    ref = VersionRef.parse(f"{LINE}@1")
    for command in (
        lambda: Actor(name=f"a{text}", source="ci-oidc"),
        lambda: release.rollback(poisoned, LINE, reason=text, actor=ALICE),
        lambda: release.disable(poisoned, LINE, f"x{text}", actor=ALICE),
        lambda: release.pin(poisoned, ref, reason=text, actor=ALICE),
        lambda: release.promote(poisoned, ref, request_id=f"x{text}", actor=ALICE),
        lambda: approvals.approve(poisoned, ref, f"x{text}", actor=ALICE),
        lambda: outbox.drop(poisoned, f"x{text}", target="command", actor=ALICE),
        lambda: check_line_name(f"a{text}"),
        lambda: VersionRef.parse(f"{LINE}@{text}"),
    ):
        with pytest.raises(InvalidInput):
            command()
    second = add(poisoned, b"base", b"draft-2")
    for option in ("override", "reinstate"):
        with pytest.raises(InvalidInput, match=f"--{option} holds the character"):
            release.promote(
                poisoned, VersionRef.parse(str(second)), actor=ALICE, **{option: f"x{text}"}
            )
    assert poisoned.registry.head(LINE) == before


@pytest.mark.parametrize(
    "text", [SQL, MARKUP, FORMULA, "%s %(x)s {0} \\", "日本語 é ß 🙂", "x" * 4000]
)
def test_plain_text_is_kept_as_it_was_said(poisoned: Workspace, text: str) -> None:
    moved = release.pin(poisoned, VersionRef.parse(f"{LINE}@1"), reason=text, actor=ALICE)
    assert moved.decision is not None
    assert poisoned.registry.decisions(LINE)[-1].reason == text
    assert poisoned.registry.decisions(LINE)[-1] == moved.decision


def test_an_identity_from_a_token_is_one_line(poisoned: Workspace) -> None:
    from pairgate.app.actor import current_actor

    for name in ("", " ", "x" * 201, "a\nb", "a\tb"):
        poisoned.environ["PAIRGATE_OIDC_SUBJECT"] = name
        if not name:  # not set: the OS user
            assert current_actor(poisoned).source == "os-user"
            continue
        with pytest.raises(InvalidInput, match="acting identity"):
            current_actor(poisoned)


@pytest.mark.parametrize("text", [SQL, "code@1; rm", "code@sha256:%", "code@sha256:' OR 1=1 --"])
def test_names_of_versions_reach_no_query(poisoned: Workspace, text: str) -> None:
    result = run(poisoned, "show", text)
    assert isinstance(result.exception, PairgateError)
    assert result.exception.exit_code == 2


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_is_made_plain(text: str) -> None:
    for made in (plain(text), json_plain(json.dumps(text, ensure_ascii=False))):
        assert not HIDDEN - {"\r"} & set(made)
        made.encode()
    assert json.loads(json_plain(json.dumps(text, ensure_ascii=False))) == text
    printable(text).encode()


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_is_taken_or_refused(text: str) -> None:
    for check in (check_text, check_name):
        try:
            taken = check("it", text)
        except InvalidInput:
            continue
        assert taken == text
        taken.encode()
        assert not (HIDDEN - {"\u200b"}) & set(taken)
    with suppress(InvalidInput):
        assert Ask(by=ALICE, at="", reason=text).reason == text
