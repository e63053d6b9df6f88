"""The audit finds what triggers cannot stop."""

from __future__ import annotations

import re
import sqlite3

import pytest

from pairgate.app import audit
from pairgate.app.workspace import Workspace
from pairgate.errors import InvalidInput
from tests.release.story import LINE


def tamper(ws: Workspace, *statements: str) -> None:
    """As the owner of the file can: without the triggers, which are put back afterwards."""
    connection = sqlite3.connect(ws.home / "pairgate.db", isolation_level=None)
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = connection.execute(query).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, sql in triggers:
        connection.execute(sql)
    connection.close()


def test_an_honest_history_adds_up(released: Workspace) -> None:
    exported = audit.heads(released)
    found = audit.verify(released, exported=exported)
    assert found.problems == ()
    assert (found.n_lines, found.n_decisions) == (1, 4)
    assert [audit.parse_head(str(h)) for h in exported] == list(exported)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE decision SET reason = 'x' WHERE sequence = 3", "decision 3 was altered"),
        ("DELETE FROM decision WHERE sequence = 2", "decision 2 is missing"),
        ("UPDATE line SET production_version = 1", "the stored production is 1, the log says 3"),
        ("UPDATE line SET disabled_version = 1", "the stored disabled is 1"),
        ("UPDATE version SET withdrawn = 1 WHERE number = 2", r"the stored withdrawn is \[2\]"),
        ("UPDATE evaluation SET document = '{}'", "evaluation sha256:.* was altered"),
        ("UPDATE pair SET document = replace(document, 'llama', 'lama')", "pair .* was altered"),
        ("UPDATE profile SET document = replace(document, '1.2.3', '9')", "profile .* altered"),
    ],
)
def test_tampering_is_found(released: Workspace, statement: str, says: str) -> None:
    tamper(released, statement)
    problems = "\n".join(audit.verify(released).problems)

    assert re.search(says, problems), problems


def test_a_cut_off_tail_is_found_by_an_exported_head(released: Workspace) -> None:
    exported = audit.heads(released)
    tamper(
        released,
        "DELETE FROM decision WHERE sequence = 4",
        "UPDATE line SET revision = 3, production_version = 2, previous_version = 1, "
        "head_hash = (SELECT hash FROM decision WHERE sequence = 3)",
        "UPDATE version SET state = 'ready', been_production = 0 WHERE number = 3",
    )
    assert audit.verify(released).problems == ()
    problems = audit.verify(released, exported=exported).problems
    assert problems == (f"line {LINE}: decision 4 is not the exported one, or was cut off",)


def test_a_line_that_is_gone(released: Workspace) -> None:
    gone = audit.AuditHead(line="gone", sequence=3, hash="sha256:x")
    assert audit.verify(released, exported=(gone,)).problems == ("line gone is gone",)


@pytest.mark.parametrize("text", ["", "code", "code:x:y", "code:3:"])
def test_another_text_is_no_head(text: str) -> None:
    with pytest.raises(InvalidInput):
        audit.parse_head(text)
