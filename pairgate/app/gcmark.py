"""The mark phase: everything that exists and could go, and what a root reaches of it.

Changes nothing. Any error means that the marks cannot be trusted, and then nothing is deleted.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.flights import STORING, later
from pairgate.app.runs import idle_run
from pairgate.domain.canonical import is_digest
from pairgate.domain.garbage import (
    Flight,
    Garbage,
    GarbageKind,
    Kept,
    LineRecord,
    rooted_evidence,
    rooted_slices,
    rooted_versions,
)
from pairgate.domain.release import fold
from pairgate.errors import PairgateError

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import Pair, PairVersion

TRASH = ".gc-"
"""Folders of this name were condemned, and renamed before they were deleted."""
_YOUNG = timedelta(hours=1)  # left-overs that may still be in the making are left alone
_CACHED = timedelta(days=7)  # a fetched file stays for so long after its last use


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """`found` is all that could go, `rooted` the keys of what a root reaches. `blobs_of` are the
    blobs of each version that has files, by `line@number`; `claimed` those of flights."""

    found: tuple[Garbage, ...]
    rooted: frozenset[tuple[GarbageKind, str]]
    blobs_of: dict[str, frozenset[str]]
    claimed: frozenset[str]
    errors: tuple[str, ...]


@dataclass(slots=True)
class _Marking:
    found: list[Garbage] = field(default_factory=list)
    rooted: set[tuple[GarbageKind, str]] = field(default_factory=set)
    blobs_of: dict[str, frozenset[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, kind: GarbageKind, name: str, n_bytes: int, *, rooted: bool) -> None:
        self.found.append(Garbage(kind=kind, name=name, n_bytes=n_bytes))
        if rooted:
            self.rooted.add((kind, name))

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """An error is noted, and marking goes on: a person wants to see them all."""
        try:
            yield
        except (PairgateError, OSError, ValueError, KeyError, TypeError) as error:
            said = error.message if isinstance(error, PairgateError) else error
            self.errors.append(f"{what}: {said}")


def mark(ws: Workspace, kept: Kept, at: str) -> Marks:
    """What exists and what is rooted at this moment, errors included."""
    marking = _Marking()
    flights: tuple[Flight, ...] = ws.registry.flights(at)
    records = []
    for head in ws.registry.lines():
        with marking.attempt(f"line {head.line}"):
            records.append(_checked_line(ws, head.line, marking))
    _mark_versions(ws, records, kept, flights, marking)
    with marking.attempt("the store"):
        _mark_store(ws, flights, marking)
    with marking.attempt("the evaluations"):
        _mark_evaluations(ws, records, kept, marking)
    with marking.attempt("the slices"):
        _mark_slices(ws, records, kept, marking)
    with marking.attempt("the work folder"):
        _mark_work(ws, later(at, -_YOUNG), marking)
        _mark_cache(ws, flights, later(at, -_CACHED), marking)
    return Marks(
        found=tuple(marking.found),
        rooted=frozenset(marking.rooted),
        blobs_of=marking.blobs_of,
        claimed=frozenset(digest for flight in flights for digest in flight.claims),
        errors=tuple(marking.errors),
    )


def _checked_line(ws: Workspace, line: str, marking: _Marking) -> LineRecord:
    """The line with the log's own head. A stored head that says otherwise is an error: pins or
    production may have been taken away by hand."""
    record = ws.registry.line_record(line)
    folded = fold(line, record.decisions)
    if folded != record.head:
        marking.errors.append(
            f"line {line}: the stored head is not what its decisions say (pairgate audit verify)"
        )
    return record


def _mark_versions(
    ws: Workspace,
    records: Iterable[LineRecord],
    kept: Kept,
    flights: tuple[Flight, ...],
    marking: _Marking,
) -> None:
    from pairgate.store.blobs import pair_blobs

    for record in records:
        rooted = rooted_versions(record, kept, flights)
        for version in record.versions:
            if version.collected_at is not None:
                if version.number in record.head.protected:
                    marking.errors.append(f"{version} is protected, but was collected")
                continue
            marking.add(GarbageKind.VERSION, str(version), 0, rooted=version.number in rooted)
            with marking.attempt(str(version)):
                pair = _intact_pair(ws, version)
                marking.blobs_of[str(version)] = frozenset(pair_blobs(pair))


def _intact_pair(ws: Workspace, version: PairVersion) -> Pair:
    """Raises what is wrong with the stored pair, or with its files."""
    pair = ws.registry.pair(version.pair_digest)
    if pair.digest != version.pair_digest:
        raise ValueError(f"the stored pair {version.pair_digest} was altered")
    missing = ws.blobs.lost(pair)  # what others deleted of their own must not stop gc
    if missing:
        raise ValueError(f"{len(missing)} blobs are missing from the store, first {missing[0]}")
    return pair


def _mark_store(ws: Workspace, flights: tuple[Flight, ...], marking: _Marking) -> None:
    rooted_blobs = {
        digest
        for version, digests in marking.blobs_of.items()
        if (GarbageKind.VERSION, version) in marking.rooted
        for digest in digests
    } | {digest for flight in flights for digest in flight.claims}
    storing = [flight.started_at for flight in flights if flight.kind == STORING]
    for digest in ws.blobs.list_index():
        rooted = digest in rooted_blobs
        marking.add(GarbageKind.INDEX, digest, 0, rooted=rooted)
        with marking.attempt(f"the manifest {digest}"):
            json.loads(ws.blobs.read(digest))["layers"]
    for blob in ws.blobs.list_blobs():
        if not is_digest(blob.digest):
            marking.errors.append(f"{blob.digest} in the store is not the name of a blob")
            continue
        arriving = bool(storing) and blob.stored_at >= min(storing)
        rooted = blob.digest in rooted_blobs or arriving
        marking.add(GarbageKind.BLOB, blob.digest, blob.n_bytes, rooted=rooted)
    for left in ws.blobs.list_leftovers():
        marking.add(GarbageKind.WORK, f"store/staging/{left.digest}", left.n_bytes, rooted=False)


def _mark_evaluations(
    ws: Workspace, records: Iterable[LineRecord], kept: Kept, marking: _Marking
) -> None:
    keep: set[str] = set()
    known: set[str] = set()
    for record in records:
        digests = rooted_evidence(record, kept, _rooted_numbers(record, marking))
        known |= {row.folder for row in record.evidence}
        keep |= {row.folder for row in record.evidence if row.digest in digests}
    root = ws.evaluations_dir
    folders = [p for p in sorted(root.iterdir()) if p.is_dir()] if root.is_dir() else []
    for folder in folders:  # a verdict on the traces of another evaluation links to them
        if folder.name in keep:
            keep |= {link.resolve().parent.name for link in folder.iterdir() if link.is_symlink()}
    for folder in folders:
        if folder.name.startswith(TRASH):
            name = f"evaluations/{folder.name}"
            marking.add(GarbageKind.WORK, name, tree_bytes(folder), rooted=False)
            continue
        rooted = folder.name in keep
        with suppress(FileNotFoundError):  # given up meanwhile, because nothing was stored
            if folder.name not in known:  # a run that was not finished, and may still be resumed
                with idle_run(folder) as idle:
                    rooted = not idle or newest(folder) >= kept.since
            marking.add(GarbageKind.EVALUATION, folder.name, tree_bytes(folder), rooted=rooted)


def _mark_slices(
    ws: Workspace, records: Iterable[LineRecord], kept: Kept, marking: _Marking
) -> None:
    from pairgate.traffic.texts import SliceTexts

    keep = {row.digest for row in ws.registry.slices() if row.created_at >= kept.since}
    for record in records:
        evidence = rooted_evidence(record, kept, _rooted_numbers(record, marking))
        keep |= rooted_slices(record, kept, evidence)
    texts = SliceTexts(ws.slices_dir)
    for digest in texts.digests():
        path = texts.path(digest)
        with suppress(FileNotFoundError):
            found = path.stat()
            rooted = digest in keep or iso(found.st_mtime) >= kept.since
            marking.add(GarbageKind.SLICE, digest, found.st_size, rooted=rooted)


def _mark_work(ws: Workspace, young: str, marking: _Marking) -> None:
    """Folders of links that no process holds, and half-written files of slices."""
    pairs = ws.work_dir / "pairs"
    for folder in sorted(pairs.iterdir()) if pairs.is_dir() else ():
        with suppress(FileNotFoundError), abandoned(folder) as free:
            rooted = not free or newest(folder) >= young
            name = f"work/pairs/{folder.name}"
            marking.add(GarbageKind.WORK, name, tree_bytes(folder), rooted=rooted)
    for path in sorted(ws.slices_dir.glob(".*.tmp")):
        with suppress(FileNotFoundError):
            found = path.stat()
            rooted = iso(found.st_mtime) >= young
            marking.add(GarbageKind.WORK, f"slices/{path.name}", found.st_size, rooted=rooted)


def _mark_cache(ws: Workspace, flights: tuple[Flight, ...], young: str, marking: _Marking) -> None:
    """Copies of what lies elsewhere, by their last use."""
    storing = any(flight.kind == STORING for flight in flights)
    claimed = {digest for flight in flights for digest in flight.claims}
    for blob in ws.cache.list_blobs():
        rooted = storing or blob.digest in claimed or blob.stored_at >= young
        marking.add(GarbageKind.WORK, f"cache/{blob.digest}", blob.n_bytes, rooted=rooted)


def _rooted_numbers(record: LineRecord, marking: _Marking) -> frozenset[int]:
    return frozenset(
        v.number for v in record.versions if (GarbageKind.VERSION, str(v)) in marking.rooted
    )


@contextmanager
def abandoned(folder: Path) -> Iterator[bool]:
    """Whether no process holds the folder; while this lasts none can begin to."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(handle)


def tree_bytes(folder: Path) -> int:
    """Bytes of the files below a folder; links are not followed."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(parent, name))
                total += found.st_size if not os.path.islink(os.path.join(parent, name)) else 0
    return total


def newest(folder: Path) -> str:
    """When something below the folder was last written, ISO 8601."""
    times = [folder.stat().st_mtime]
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                times.append(os.lstat(os.path.join(parent, name)).st_mtime)
    return iso(max(times))


def iso(seconds: float) -> str:
    """A time of the file system in the form that the registry keeps."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
