"""Verify the history: the log against itself, against the stored heads, and the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.domain.release import Head, fold
from pairgate.errors import IntegrityError, InvalidInput

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace


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
    if not (sequence.isascii() and sequence.isdigit() and digest):
        raise InvalidInput(
            f"{text!r} is not an audit head", hint="pass a line that `pairgate audit head` printed"
        )
    return AuditHead(line=line, sequence=int(sequence), hash=digest)


def verify(ws: Workspace, line: str | None = None, exported: tuple[AuditHead, ...] = ()) -> Audited:
    """Find an edit, a deletion, a reordering, a moved head, a changed schema or document; with
    `exported` heads also a cut-off tail."""
    stored = ws.registry.lines() if line is None else [ws.registry.head(line)]
    problems: list[str] = []
    n_decisions = 0
    for head in stored:
        decisions = ws.registry.decisions(head.line)
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
    known = {head.line for head in stored}
    problems += [f"line {e.line} is gone" for e in exported if e.line not in known and line is None]
    problems += ws.registry.schema_problems()
    problems += ws.registry.document_problems()
    return Audited(n_lines=len(stored), n_decisions=n_decisions, problems=tuple(problems))


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
