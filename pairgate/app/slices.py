"""Slices: logs in, frozen sets of requests out.

The registry keeps a slice's digest, name and counts for ever. Its texts are user data and lie
apart, in HOME/slices, with an expiry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.workspace import Workspace, now
from pairgate.domain.canonical import is_digest
from pairgate.domain.traffic import TrafficSlice
from pairgate.errors import IntegrityError, InvalidInput, NotFound, Refused, require
from pairgate.traffic.importing import Found, ReadOptions, file_name, read_logs, settle
from pairgate.traffic.leaks import LeakReport, find_leaks
from pairgate.traffic.report import ImportReport, Reason, Tally
from pairgate.traffic.sampling import SampleSize, sample
from pairgate.traffic.texts import SliceRecord, SliceTexts

if TYPE_CHECKING:
    from pairgate.domain.records import SliceRow

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceOptions:
    """How a log becomes a slice. `check_against` names training text files; `drop_leaks` leaves
    out what stands in them; `strict` makes any faulty record an error."""

    read: ReadOptions = field(default_factory=ReadOptions)
    size: SampleSize = field(default_factory=SampleSize)
    seed: int = 0
    check_against: tuple[Path, ...] = ()
    drop_leaks: bool = False
    strict: bool = False
    expires_days: float | None = None

    def __post_init__(self) -> None:
        days = self.expires_days
        require(days is None or 0 < days < 36500, f"--expires {days}: give a number of days")
        require(
            self.check_against or not self.drop_leaks, "--drop-leaks needs --check-against FILE"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSlice:
    """`created` is false when exactly this slice was stored before; `replaced` is the digest
    that the name stood for until now, if another."""

    row: SliceRow
    created: bool
    replaced: str | None
    record: SliceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStatus:
    """A slice as reading commands show it. `texts` is present, expired, purged, missing,
    or damaged (in a list; named alone, that slice is an error); `newest` is false for an earlier
    revision of the name."""

    row: SliceRow
    texts: str
    newest: bool
    record: SliceRecord | None


def create_slice(
    ws: Workspace, name: str, sources: Sequence[str | Path], options: SliceOptions | None = None
) -> SliceRow:
    """The stored slice of these logs; see `import_slice`."""
    return import_slice(ws, name, sources, options).row


def import_slice(
    ws: Workspace, name: str, sources: Sequence[str | Path], options: SliceOptions | None = None
) -> CreatedSlice:
    """Read logs, sample, store. Idempotent: the same content under the same name is one slice
    (texts that were purged or have expired are stored again); other content under a known name
    becomes the name's new revision.

    Raises `InvalidInput` when nothing usable is left, or when `strict` and a record is faulty.
    """
    options = options if options is not None else SliceOptions()
    _check_name(name)
    require(sources, "no log is given", hint="name at least one with --from FILE")
    tally = Tally()
    found = sample(
        read_logs(map(str, sources), options.read, tally), options.size, options.seed, tally
    )
    found, leaks = _without_leaks(found, options, tally)
    report = tally.report((u for f in found for u in f.request.unsupported), len(found))
    refuse_faults(report, strict=options.strict)
    traffic = TrafficSlice(name=name, requests=settle(found))
    return _store(ws, traffic, options, tuple(file_name(str(s)) for s in sources), report, leaks)


def load_slice(ws: Workspace, name_or_digest: str) -> TrafficSlice:
    """The requests of a slice, verified against its digest.

    Raises `NotFound`, `Refused` when the texts expired or were purged, `IntegrityError` when
    they are gone or changed.
    """
    row = ws.registry.slice_(name_or_digest)
    texts = SliceTexts(ws.slices_dir)
    state = _texts_state(texts, row.digest)
    if state in ("expired", "purged"):
        raise Refused(
            f"the texts of slice {row.name} {state if state == 'expired' else 'were purged'}",
            hint="make a new slice from a recent log: pairgate slice create NAME --from LOG",
        )
    if state == "missing":
        raise IntegrityError(
            f"the texts of slice {row.name} are not at {texts.path(row.digest)}",
            hint="restore the file, or make the slice again from the same log",
        )
    traffic = TrafficSlice(name=row.name, requests=texts.read(row.digest))
    if traffic.digest != row.digest:
        raise IntegrityError(
            f"the texts of slice {row.name} have digest {traffic.digest}, not {row.digest}",
            hint=f"restore {texts.path(row.digest)}, or make the slice again from the same log",
        )
    return traffic


def slice_status(ws: Workspace, name_or_digest: str) -> SliceStatus:
    """One slice without its texts. Raises `NotFound`."""
    row = ws.registry.slice_(name_or_digest)
    texts = SliceTexts(ws.slices_dir)
    return SliceStatus(
        row=row,
        texts=_texts_state(texts, row.digest),
        newest=ws.registry.slice_(row.name).digest == row.digest,
        record=texts.record(row.digest),
    )


def slice_statuses(ws: Workspace) -> tuple[SliceStatus, ...]:
    """Every slice, by name and age."""
    return tuple(_status_or_damage(ws, row) for row in ws.registry.slices())


def _status_or_damage(ws: Workspace, row: SliceRow) -> SliceStatus:
    """One damaged record must not hide the other slices, nor keep them from being purged."""
    try:
        return slice_status(ws, row.digest)
    except IntegrityError:
        newest = ws.registry.slice_(row.name).digest == row.digest
        return SliceStatus(row=row, texts="damaged", newest=newest, record=None)


def purge_slice(ws: Workspace, name_or_digest: str, *, reason: str = "") -> SliceStatus:
    """Delete the texts of a slice; its digest, counts and every verdict on it stay. It is a
    decision in the history of every line that uses or used the slice."""
    from pairgate.app.purge import purge_texts

    row = ws.registry.slice_(name_or_digest)
    purge_texts(ws, row.digest, at=now(), reason=reason)
    return slice_status(ws, row.digest)


def purge_expired(ws: Workspace) -> tuple[SliceStatus, ...]:
    """Purge every slice whose texts have expired; returns those."""
    expired = [status for status in slice_statuses(ws) if status.texts == "expired"]
    return tuple(purge_slice(ws, status.row.digest, reason="expired") for status in expired)


def _check_name(name: str) -> None:
    require(
        _NAME.match(name) and not is_digest(name),
        f"{name!r} is no name for a slice",
        hint="use letters, digits, dots, hyphens and underscores, at most 100, e.g. chat-may",
    )


def _without_leaks(
    found: list[Found], options: SliceOptions, tally: Tally
) -> tuple[list[Found], LeakReport | None]:
    if not options.check_against:
        return found, None
    leaks = find_leaks((f.request for f in found), options.check_against)
    if not options.drop_leaks:
        return found, leaks
    leaked = {leak.request_id for leak in leaks.leaks}
    for item in found:
        if item.request.id in leaked:
            tally.leave_out(Reason.TRAINING_TEXT, item.place, item.request.id)
    return [f for f in found if f.request.id not in leaked], leaks


def refuse_faults(report: ImportReport, *, strict: bool) -> None:
    """Raise `InvalidInput` when nothing was kept, or when `strict` and a record is faulty."""
    faults = [left for left in report.left_out if left.fault]
    said = "; ".join(
        f"{left.n} × {left.reason} (e.g. {left.examples[0].place}: {left.examples[0].detail})"
        for left in faults
    )
    if strict and faults:
        raise InvalidInput(
            f"{report.n_faulty} of {report.n_read} records are faulty: {said}",
            hint="without --strict they are left out and counted",
        )
    if report.n_kept == 0:
        others = "; ".join(f"{x.n} × {x.reason}" for x in report.left_out if not x.fault)
        why = "; ".join(part for part in (said, others) if part) or "the log holds no records"
        raise InvalidInput(
            f"no usable request among {report.n_read} records: {why}",
            hint="see `pairgate slice create --help` for the shapes that are read, and --map",
        )


def _store(
    ws: Workspace,
    traffic: TrafficSlice,
    options: SliceOptions,
    sources: tuple[str, ...],
    report: ImportReport,
    leaks: LeakReport | None,
) -> CreatedSlice:
    at, digest = now(), traffic.digest
    before = _known(ws, traffic.name)
    known = _known(ws, digest)
    # Content is identity: the same requests keep the name that they have.
    name = known.name if known is not None else traffic.name
    texts = SliceTexts(ws.slices_dir)
    record = texts.record(digest)
    if known is None or record is None or _texts_state(texts, digest) != "present":
        record = SliceRecord(
            digest=digest,
            texts_digest=texts.write(digest, traffic.requests),
            created_at=at,
            seed=options.seed,
            report=report,
            keep_duplicates=options.read.keep_duplicates,
            sources=sources,
            expires_at=_expiry(at, options.expires_days),
            leaks=leaks,
        )
        texts.save_record(record)
    elif options.expires_days is not None:
        record = replace(record, expires_at=_expiry(at, options.expires_days))
        texts.save_record(record)
    texts.renew(digest)  # imported once more: gc shall not take it for unused
    # Texts first: a row without texts would promise what is not there.
    row = ws.registry.save_slice(
        name, digest, len(traffic.requests), traffic.n_by_domain, record.texts_digest, at
    )
    renamed = known is not None and known.name != traffic.name
    replaced = before.digest if before and before.digest != digest and not renamed else None
    return CreatedSlice(row=row, created=known is None, replaced=replaced, record=record)


def _known(ws: Workspace, name_or_digest: str) -> SliceRow | None:
    try:
        return ws.registry.slice_(name_or_digest)
    except NotFound:
        return None


def _expiry(at: str, days: float | None) -> str | None:
    if days is None:
        return None
    moment = datetime.fromisoformat(at) + timedelta(days=days)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _texts_state(texts: SliceTexts, digest: str) -> str:
    record = texts.record(digest)
    if not texts.has(digest):
        return "purged" if record is not None and record.purged_at is not None else "missing"
    return "expired" if record is not None and record.expired(now()) else "present"
