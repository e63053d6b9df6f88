"""What may go, and what may not: the rules of garbage collection, free of databases and files.

A thing that no root reaches is condemned by one run and deleted by a later one, after the grace;
whatever became reachable again in between is pardoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pairgate.domain.pair import PairVersion
from pairgate.domain.records import EvidenceRow
from pairgate.domain.release import Decision, Head, advance


class GarbageKind(StrEnum):
    """In the order of deletion: what refers goes before what it refers to."""

    VERSION = "version"  # loses its files, keeps its row: `collected`
    EVALUATION = "evaluation"  # a folder of traces and reports; the verdict stays
    SLICE = "slice"  # texts; digest and counts stay
    INDEX = "index"  # an entry of the store's OCI index
    BLOB = "blob"
    WORK = "work"  # what killed processes left


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """Something that can be deleted; `name` is unique within its kind."""

    kind: GarbageKind
    name: str
    n_bytes: int = 0

    @property
    def key(self) -> tuple[GarbageKind, str]:
        return (self.kind, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlob:
    """A blob as a store lists it; `stored_at` is ISO 8601 in UTC."""

    digest: str
    n_bytes: int
    stored_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A registration or a run under way. `claims` are the digests of the blobs that it needs."""

    id: str
    kind: str
    subject: str
    claims: frozenset[str]
    started_at: str
    expires_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Until when things are kept: versions, evidence and slices that were used since `since`,
    the evidence and slice of every decision since `audit_since` (ISO 8601)."""

    since: str
    audit_since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRecord:
    """All that decides what is a root of one line. `attempted` is (version, start) of attempts."""

    head: Head
    decisions: tuple[Decision, ...]
    versions: tuple[PairVersion, ...]
    evidence: tuple[EvidenceRow, ...]
    attempted: tuple[tuple[int, str], ...]


def rooted_versions(line: LineRecord, kept: Kept, flights: Iterable[Flight]) -> frozenset[int]:
    """Production, previous, disabled, withdrawn, pinned, used within the retention, in flight."""
    claimed = frozenset(digest for flight in flights for digest in flight.claims)
    used = _last_used(line)
    return line.head.protected | {
        v.number for v in line.versions if used[v.number] >= kept.since or v.pair_digest in claimed
    }


def rooted_evidence(line: LineRecord, kept: Kept, versions: frozenset[int]) -> frozenset[str]:
    """Digests of evaluations: of a rooted version, young, or named by a decision that an auditor
    may still ask for."""
    named = {d.evaluation_digest for d in line.decisions if d.at >= kept.audit_since}
    return frozenset(
        e.digest
        for e in line.evidence
        if e.version in versions or e.created_at >= kept.since or e.digest in named
    )


def rooted_slices(line: LineRecord, kept: Kept, evidence: frozenset[str]) -> frozenset[str]:
    """The line's slice, those of its decisions within the audit retention and of kept evidence."""
    named = {d.slice_digest for d in line.decisions if d.at >= kept.audit_since}
    judged = {e.slice_digest for e in line.evidence if e.digest in evidence}
    return frozenset(d for d in named | judged | {line.head.slice_digest} if d is not None)


def _last_used(line: LineRecord) -> Mapping[int, str]:
    """When each version was last registered, evaluated, decided on, or left a role of the head."""
    used = {v.number: max(v.created_at, v.renewed_at or "") for v in line.versions}

    def touch(number: int | None, at: str) -> None:
        if number is not None:
            used[number] = max(used.get(number, ""), at)

    for number, at in line.attempted:
        touch(number, at)
    for row in line.evidence:
        touch(row.version, row.created_at)
    head = Head(line=line.head.line)
    for decision in line.decisions:
        after = advance(head, decision)
        touch(decision.version, decision.at)
        for number in head.protected | after.protected:
            touch(number, decision.at)
        head = after
    return used
