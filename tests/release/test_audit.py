"""The audit finds what triggers cannot stop."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from pairgate.app import audit
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.domain.canonical import sha256_digest
from pairgate.errors import IntegrityError, InvalidInput
from tests.release.story import LINE


def tamper(ws: Workspace, *statements: str) -> None:
    """As the owner of the database can: without the triggers, which are put back afterwards."""
    if not ws.database_url.startswith("sqlite"):
        with ws.registry.engine.begin() as session:
            session.execute(text("SET LOCAL session_replication_role = replica"))
            for statement in statements:
                session.execute(text(statement))
        return
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
        ("UPDATE version SET withdrawn = true WHERE number = 2", r"the stored withdrawn is \[2\]"),
        ("UPDATE evaluation SET document = '{}'", "evaluation sha256:.* was altered"),
        ("UPDATE pair SET document = replace(document, 'llama', 'lama')", "pair .* was altered"),
        ("UPDATE profile SET document = replace(document, '1.2.3', '9')", "profile .* altered"),
        ("UPDATE policy SET document = replace(document, '0.05', '0.5')", "policy .* altered"),
        ("UPDATE version SET state = 'ready' WHERE number = 3", "code@3 is stored as ready"),
        ("UPDATE version SET collected_at = 'x' WHERE number = 2", "code@2 is protected, but"),
        ("DELETE FROM version WHERE number = 1", "rows of decision refer to a version that"),
        ("UPDATE evaluation SET outcome = 'FAIL'", "outcome is stored as FAIL, and is PASS"),
        ("UPDATE evaluation SET engine = 'other'", "engine is stored as other"),
        ('UPDATE "check" SET threshold = 0.1', "its checks are not those of its verdict"),
        ('DELETE FROM "check" WHERE position = 1', "its checks are not those"),
        ("DELETE FROM attempt", "its attempt 1 does not count any more"),
        ("UPDATE attempt SET released = true", "its attempt 1 does not count any more"),
        ("INSERT INTO pin VALUES ('code', 1, 'x', 'x', 'x')", r"the stored pinned is \[1\]"),
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
        "UPDATE version SET state = 'ready', been_production = false WHERE number = 3",
        "UPDATE version SET state = 'production' WHERE number = 2",
        "UPDATE version SET state = 'previous' WHERE number = 1",
    )
    assert audit.verify(released).problems == ()
    problems = audit.verify(released, exported=exported).problems
    assert problems == (f"line {LINE}: decision 4 is not the exported one, or was cut off",)


def test_a_line_that_is_gone(released: Workspace) -> None:
    gone = audit.AuditHead(line="gone", sequence=3, hash="sha256:x")
    assert audit.verify(released, exported=(gone,)).problems == ("line gone is gone",)


@pytest.mark.parametrize(
    "text", ["", "code", "code:x:y", "code:3:", "x" * 5000, f"code:{'9' * 5000}:x"]
)
def test_another_text_is_no_head(text: str) -> None:
    with pytest.raises(InvalidInput):
        audit.read_heads(text)


def test_another_file_holds_no_heads(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    with pytest.raises(InvalidInput, match="is not a file of audit heads"):
        audit.read_heads(str(tmp_path / "picture"))


def test_a_promotion_without_a_pass_is_found(released: Workspace) -> None:
    """A decision that raw SQL appended by the rules of the chain, but without evidence."""
    with released.registry.lock(LINE) as transaction:
        last = transaction.decisions()[-1]
        transaction.append(
            replace(last, sequence=5, production=1, version=1, evaluation_digest=None)
        )
    assert audit.verify(released).problems == (
        f"line {LINE}: decision 5 promotes 1 without a PASS",
    )


def test_deleted_files_of_protected_versions_are_found(released: Workspace) -> None:
    released.blobs.delete_blob(sha256_digest(b"draft-2"))
    problems = audit.verify(released).problems
    assert len(problems) == 1 and "1 files of code@3 are missing" in problems[0]


def test_a_replaced_tail_is_found_by_an_exported_head(released: Workspace) -> None:
    """The last decision rewritten with a hash that fits: only somebody else's copy can tell."""
    exported = audit.heads(released)
    last = released.registry.decisions(LINE)[-1]
    forged = replace(last, actor="mallory").sealed(last.previous_hash)
    tamper(
        released,
        f"UPDATE decision SET actor = 'mallory', hash = '{forged.hash}' WHERE sequence = 4",
        f"UPDATE line SET head_hash = '{forged.hash}'",
    )
    assert audit.verify(released).problems == ()
    assert audit.verify(released, exported=exported).problems == (
        f"line {LINE}: decision 4 is not the exported one, or was cut off",
    )


def test_the_command_takes_a_file_or_a_head(released: Workspace, tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        where = ["--home", str(released.home), "--database-url", released.database_url]
        return CliRunner().invoke(cli, [*where, "audit", *arguments])

    head = run("head", LINE).stdout.strip()
    (tmp_path / "heads.txt").write_text(run("head").stdout)
    assert run("verify", "--head", head, "--head", str(tmp_path / "heads.txt")).exit_code == 0
    other = run("verify", "--head", f"{LINE}:4:sha256:{'0' * 64}")
    assert isinstance(other.exception, IntegrityError)
    assert "decision 4 is not the exported one" in other.stdout
    assert isinstance(run("verify", "--head", "no such file").exception, InvalidInput)


def test_two_decisions_in_another_order_are_found(released: Workspace) -> None:
    tamper(
        released,
        "UPDATE decision SET sequence = sequence + 10 WHERE sequence IN (2, 3)",
        "UPDATE decision SET sequence = 15 - sequence WHERE sequence > 10",
    )
    assert any("decision 2 was altered" in p for p in audit.verify(released).problems)
