"""Garbage collection: mark, condemn, and in a later run, after the grace, delete.

A run deletes nothing when its marking met an error. What it deletes it looks at once more, in the
transaction that a registration, a promotion or a rollback would have to pass: whoever comes first
wins, and nobody is left with half.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.flights import later
from pairgate.app.gcmark import TRASH, Marks, abandoned, iso, mark
from pairgate.app.runs import idle_run
from pairgate.app.workspace import now
from pairgate.domain.garbage import (
    Garbage,
    GarbageKind,
    Kept,
    LineRecord,
    rooted_evidence,
    rooted_slices,
    rooted_versions,
)
from pairgate.domain.pair import VersionRef
from pairgate.errors import Conflict, IntegrityError, require

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from pairgate.app.workspace import Workspace
    from pairgate.store.sql import Transaction

# What is not in this home may lie in another one on the same database, whose next run deletes it.
_ELSEWHERE = timedelta(days=30)
_BLOBS_AT_ONCE = 50  # the lock that keeps registrations waiting is held for so many deletions


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """How long things stay: condemned ones (`grace`), unused versions, evidence and slices
    (`retention`), evidence and slices of decisions (`audit_retention`)."""

    grace: timedelta = timedelta(days=1)
    retention: timedelta = timedelta(days=90)
    audit_retention: timedelta = timedelta(days=3650)
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name in ("grace", "retention", "audit_retention"):
            days = getattr(self, name) / timedelta(days=1)
            require(0 <= days <= 36500, f"--{name.replace('_', '-')} of {days} days")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a run did, or with `dry_run` would do. `waiting` was condemned less than the grace ago;
    `spared` was due, and became reachable while this ran."""

    dry_run: bool
    condemned: tuple[Garbage, ...]
    pardoned: tuple[Garbage, ...]
    waiting: tuple[Garbage, ...]
    deleted: tuple[Garbage, ...]
    spared: tuple[Garbage, ...] = ()

    @property
    def n_bytes_deleted(self) -> int:
        return sum(thing.n_bytes for thing in self.deleted)


def collect(ws: Workspace, options: GcOptions | None = None) -> Collected:
    """Run once. Raises `IntegrityError` with every error of the mark phase, having changed
    nothing, and `Conflict` while another run works in this home."""
    options = options or GcOptions()
    with _alone(ws):
        at = now()
        kept = Kept(
            since=later(at, -options.retention), audit_since=later(at, -options.audit_retention)
        )
        marks = mark(ws, kept, at)
        if marks.errors:
            raise IntegrityError(
                "nothing is deleted, because the marks cannot be trusted:\n"
                + "\n".join(f"  {error}" for error in marks.errors),
                hint="mend that first: see `pairgate verify` and `pairgate audit verify`",
            )
        known = ws.registry.condemned()
        plan = _plan(marks, known, later(at, -options.grace), dry_run=options.dry_run)
        if options.dry_run:
            return plan
        stale = later(at, -options.grace - _ELSEWHERE)
        there = {thing.key for thing in marks.found}
        gone = {key for key, since in known.items() if key not in there and since <= stale}
        ws.registry.pardon({thing.key for thing in plan.pardoned} | gone)
        deleted = tuple(_delete(ws, plan.deleted, kept))
        ws.registry.condemn(plan.condemned, now())
        spared = tuple(thing for thing in plan.deleted if thing not in deleted)
        return Collected(
            dry_run=False,
            condemned=plan.condemned,
            pardoned=plan.pardoned,
            waiting=plan.waiting,
            deleted=deleted,
            spared=spared,
        )


def _plan(
    marks: Marks, known: dict[tuple[GarbageKind, str], str], before: str, *, dry_run: bool
) -> Collected:
    """What is condemned, pardoned and deleted: `before` is the end of the grace."""
    unreached = [thing for thing in marks.found if thing.key not in marks.rooted]
    due = {
        thing.key
        for thing in unreached
        if thing.kind is GarbageKind.WORK or known.get(thing.key, "~") <= before
    }
    # A blob waits for every version that still has it.
    staying = {v for v in marks.blobs_of if (GarbageKind.VERSION, v) not in due}
    held = marks.claimed.union(*(marks.blobs_of[v] for v in staying))
    due -= {(kind, d) for kind in (GarbageKind.INDEX, GarbageKind.BLOB) for d in held}
    listed = {t.key for t in marks.found if t.kind is GarbageKind.INDEX} - due
    due -= {(GarbageKind.BLOB, digest) for _, digest in listed}
    order = list(GarbageKind)
    return Collected(
        dry_run=dry_run,
        condemned=tuple(t for t in unreached if t.key not in known and t.key not in due),
        pardoned=tuple(t for t in marks.found if t.key in known and t.key in marks.rooted),
        waiting=tuple(t for t in unreached if t.key in known and t.key not in due),
        deleted=tuple(
            sorted((t for t in unreached if t.key in due), key=lambda t: order.index(t.kind))
        ),
    )


def _delete(ws: Workspace, things: Iterable[Garbage], kept: Kept) -> Iterator[Garbage]:
    """Delete what is due and still unreachable, in the order of the kinds; yields what went."""
    by_kind: dict[GarbageKind, list[Garbage]] = {kind: [] for kind in GarbageKind}
    for thing in things:
        by_kind[thing.kind].append(thing)
    yield from (t for t in by_kind[GarbageKind.VERSION] if _collect_version(ws, t.name, kept))
    yield from _delete_evaluations(ws, by_kind[GarbageKind.EVALUATION], kept)
    yield from (t for t in by_kind[GarbageKind.SLICE] if _purge_texts(ws, t, kept))
    yield from _delete_from_store(ws, by_kind[GarbageKind.INDEX], ws.blobs.delete_index_entry)
    yield from _delete_from_store(ws, by_kind[GarbageKind.BLOB], ws.blobs.delete_blob)
    for thing in by_kind[GarbageKind.WORK]:
        if _delete_leftover(ws, thing.name):
            yield thing


def _collect_version(ws: Workspace, name: str, kept: Kept) -> bool:
    """Under the line's lock: a promotion or a pin comes before this, and then it is spared, or
    after it, and is then refused."""
    from pairgate.store.sqlgc import mark_collected, read_flights, read_line_record

    ref = VersionRef.parse(name)
    number = int(ref.selector)

    def unless_rooted(transaction: Transaction) -> bool:
        at = now()
        record = read_line_record(transaction.connection, transaction.head)
        flights = read_flights(transaction.connection, at)
        if number in rooted_versions(record, kept, flights):
            return False
        mark_collected(transaction.connection, ref.line, number, at)
        return True

    return ws.registry.decide(ref.line, unless_rooted)


def _delete_evaluations(ws: Workspace, things: list[Garbage], kept: Kept) -> Iterator[Garbage]:
    """Renamed while no line can move, deleted afterwards: large folders take their time."""
    if not things:
        return
    away = []
    with ws.registry.all_lines_held() as connection:
        keep = _kept_folders(ws, connection, kept)
        for thing in things:
            folder = ws.evaluation_folder(thing.name)
            trash = folder.with_name(f"{TRASH}{thing.name}")
            with suppress(FileNotFoundError), idle_run(folder) as idle:
                if idle and thing.name not in keep:
                    folder.rename(trash)
                    away.append((thing, trash))
    for thing, trash in away:
        _remove_tree(trash)
        yield thing
    ws.registry.pardon([thing.key for thing, _ in away])


def _kept_folders(ws: Workspace, connection: Connection, kept: Kept) -> set[str]:
    keep = {
        row.folder
        for record, rooted in _kept_records(connection, kept)
        for row in record.evidence
        if row.digest in rooted
    }
    folders = [ws.evaluation_folder(name) for name in keep]
    links = (p for f in folders if f.is_dir() for p in f.iterdir() if p.is_symlink())
    return keep | {link.resolve().parent.name for link in links}


def _purge_texts(ws: Workspace, thing: Garbage, kept: Kept) -> bool:
    """The texts of a slice that nothing needs; the lines that used it once say so. A `line set`
    comes before this, and then they are spared, or after the decision that they are purged."""
    from pairgate.app.purge import purge_texts
    from pairgate.traffic.texts import SliceTexts

    path = SliceTexts(ws.slices_dir).path(thing.name)

    def needed(connection: Connection) -> bool:
        renewed = path.exists() and iso(path.stat().st_mtime) >= kept.since
        return renewed or thing.name in _kept_slices(connection, kept)

    reason = "gc: not used within the retention"
    if not purge_texts(ws, thing.name, at=now(), reason=reason, unless=needed):
        return False
    ws.registry.pardon([thing.key])
    return True


def _kept_slices(connection: Connection, kept: Kept) -> set[str]:
    return {
        digest
        for record, evidence in _kept_records(connection, kept)
        for digest in rooted_slices(record, kept, evidence)
    }


def _kept_records(
    connection: Connection, kept: Kept
) -> Iterator[tuple[LineRecord, frozenset[str]]]:
    """Each line, and the digests of its evaluations that are kept."""
    from pairgate.store.sqlgc import read_flights, read_line_record
    from pairgate.store.sqllines import read_heads

    flights = read_flights(connection, now())
    for head in read_heads(connection):
        record = read_line_record(connection, head)
        yield record, rooted_evidence(record, kept, rooted_versions(record, kept, flights))


def _delete_from_store(
    ws: Workspace, things: Sequence[Garbage], delete: Callable[[str], None]
) -> Iterator[Garbage]:
    """While nobody can claim a blob: a registration before this keeps what it claimed, one after
    it sees what is missing and stores it again."""
    for start in range(0, len(things), _BLOBS_AT_ONCE):
        some = things[start : start + _BLOBS_AT_ONCE]
        with ws.registry.sweep() as sweep:
            needed = sweep.needed(now())
            gone = [thing for thing in some if thing.name not in needed]
            for thing in gone:
                delete(thing.name)
            sweep.forget(gone)
        yield from gone


def _delete_leftover(ws: Workspace, name: str) -> bool:
    path = ws.home / name
    if name.startswith("store/"):
        ws.blobs.sweep()
    elif name.startswith("work/"):
        with suppress(FileNotFoundError), abandoned(path) as free:
            if not free:
                return False
            _remove_tree(path)
    elif name.startswith("evaluations/"):
        _remove_tree(path)
    elif name.startswith("cache/"):
        ws.cache.delete_blob(path.name)
    else:
        path.unlink(missing_ok=True)
    return True


def _remove_tree(folder: Path) -> None:
    """Folders of links are read-only while they are in use."""
    for parent, _, _ in os.walk(folder):
        os.chmod(parent, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(ws: Workspace) -> Iterator[None]:
    with (ws.home / "gc.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "another gc works in this home", hint="wait for it, or look for it with ps"
            ) from None
        yield
