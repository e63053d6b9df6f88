"""Verify the history: the log against itself, against the stored heads, and the database."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.domain.pair import VersionRef
from pairgate.domain.release import Head, Kind, fold
from pairgate.errors import IntegrityError, InvalidInput, PairgateError

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.garbage import LineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead:
    """Enough to find a cut-off tail later: keep it where this registry cannot write."""

    line: str
    sequence: int
    hash: str

    def __str__(self) -> str:
        return f"{self.line}:{self.sequence}:{self.hash}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was read and what is wrong; no problems means that everything adds up."""

    n_lines: int
    n_decisions: int
    problems: tuple[str, ...]


def heads(ws: Workspace, line: str | None = None) -> tuple[AuditHead, ...]:
    """The end of the hash chain of one line, or of all; keep it elsewhere to detect truncation."""
    found = ws.registry.lines() if line is None else [ws.registry.head(line)]
    return tuple(AuditHead(line=h.line, sequence=h.revision, hash=h.hash) for h in found)


def parse_head(text: str) -> AuditHead:
    """What `audit head` and `promote` print: LINE:SEQUENCE:sha256:…"""
    line, _, rest = text.partition(":")
    sequence, _, digest = rest.partition(":")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 19 and digest):
        raise InvalidInput(
            f"{text!r:.200} is neither a file nor an audit head",
            hint="pass what `pairgate audit head` or promote printed: LINE:SEQUENCE:sha256:…",
        )
    return AuditHead(line=line, sequence=int(sequence), hash=digest)


def read_heads(given: str) -> tuple[AuditHead, ...]:
    """Heads from a file of lines that `audit head` printed, or one such line itself."""
    if not os.path.isfile(given):  # unlike a Path it takes any text, however long
        return (parse_head(given),)
    try:
        words = Path(given).read_text("utf-8").split()
    except UnicodeDecodeError:
        raise InvalidInput(f"{given} is not a file of audit heads") from None
    return tuple(map(parse_head, words))


def verify(ws: Workspace, line: str | None = None, exported: tuple[AuditHead, ...] = ()) -> Audited:
    """Find an edit, a deletion, a reordering, a moved head, a changed schema, document or state, a
    promotion without a PASS, protected files that are gone; with `exported` heads also a cut-off
    tail."""
    names = [head.line for head in ws.registry.lines()] if line is None else [line]
    records = [ws.registry.line_record(name) for name in names]  # each of one moment
    problems: list[str] = []
    n_decisions = 0
    for record in records:
        head, decisions = record.head, record.decisions
        n_decisions += len(decisions)
        try:
            folded = fold(head.line, decisions)
        except IntegrityError as error:
            problems.append(error.message)
            continue
        problems += _head_problems(head, folded)
        hashes = {d.sequence: d.hash for d in decisions}
        problems += [
            f"line {e.line}: decision {e.sequence} is not the exported one, or was cut off"
            for e in exported
            if e.line == head.line and e.sequence > 0 and hashes.get(e.sequence) != e.hash
        ]
    known = set(names)
    problems += [f"line {e.line} is gone" for e in exported if e.line not in known and line is None]
    problems += ws.registry.schema_problems()
    problems += ws.registry.document_problems()
    problems += ws.registry.reference_problems()
    problems += ws.registry.version_problems()
    problems += ws.registry.evidence_problems()
    problems += _policy_problems(ws)
    for record in records:
        problems += [*_promotion_problems(record), *_file_problems(ws, record.head)]
    return Audited(n_lines=len(records), n_decisions=n_decisions, problems=tuple(problems))


def _policy_problems(ws: Workspace) -> list[str]:
    """Policies whose rules no longer have the digest that names them."""
    from pairgate.policyfile import policy_from_document

    problems = []
    for digest in ws.registry.policy_digests():
        try:
            intact = policy_from_document(ws.registry.policy_document(digest)).digest == digest
        except (PairgateError, ValueError):
            intact = False
        if not intact:
            problems.append(f"policy {digest} was altered")
    return problems


def _promotion_problems(record: LineRecord) -> list[str]:
    """Promotions that no PASS of their own pair carries, though no override is recorded."""
    pairs = {v.number: v.pair_digest for v in record.versions}
    passed = {e.digest: e.pair_digest for e in record.evidence if e.outcome == "PASS"}
    return [
        f"line {d.line}: decision {d.sequence} promotes {d.version} without a PASS"
        for d in record.decisions
        if d.kind is Kind.PROMOTE
        and not d.override
        and (d.version is None or passed.get(d.evaluation_digest or "") != pairs.get(d.version))
    ]


def _file_problems(ws: Workspace, head: Head) -> list[str]:
    """Files of protected versions that somebody deleted; their contents are for `verify`."""
    from pairgate.app.presence import check_present

    problems: list[str] = []
    for number in sorted(head.protected):
        try:
            version = ws.registry.version(VersionRef(line=head.line, selector=str(number)))
            problems += check_present(ws, version, None)
        except PairgateError as error:
            problems.append(error.message)
    return problems


def _head_problems(stored: Head, folded: Head) -> list[str]:
    """Which fields of the stored head are not what the log says."""
    return [
        f"line {stored.line}: the stored {name} is {_plain(getattr(stored, name))}, the log says "
        f"{_plain(getattr(folded, name))}"
        for name in Head.__dataclass_fields__
        if getattr(stored, name) != getattr(folded, name)
    ]


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else value
