"""The texts of a slice on disk, apart from the registry: `<hex>.jsonl` and what is known of them.

    <hex>.jsonl   one request a line: {"id", "domain", "session", "arrival_s", "body"}, mode 0600
    <hex>.json    when they were made, when they expire, what became of the log's records

The first is user data and is deleted by `purge`; the second holds no text and stays.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pairgate.domain.traffic import Request
from pairgate.errors import IntegrityError
from pairgate.traffic.body import parse_request
from pairgate.traffic.importing import states_max_tokens
from pairgate.traffic.jsontext import MAX_DEPTH, members, unpack
from pairgate.traffic.leaks import LeakReport
from pairgate.traffic.lines import read_lines
from pairgate.traffic.report import BadRecord, ImportReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecord:
    """What is known of a slice besides its requests; times are ISO 8601 in UTC.

    `keep_duplicates` is how the log was counted, so that another one can be counted alike.
    """

    digest: str
    texts_digest: str
    created_at: str
    seed: int
    report: ImportReport
    keep_duplicates: bool = False
    sources: tuple[str, ...] = ()
    expires_at: str | None = None
    purged_at: str | None = None
    leaks: LeakReport | None = None

    def expired(self, at: str) -> bool:
        return self.expires_at is not None and self.expires_at <= at


class SliceTexts:
    """The folder of all slices' texts; readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        return self.folder / f"{_hex(digest)}.jsonl"

    def write(self, digest: str, requests: Iterable[Request]) -> str:
        """Store the requests; returns the sha256 digest of the file."""
        data = "".join(f"{line(request)}\n" for request in requests).encode()
        _write_private(self.path(digest), data)
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def read(self, digest: str) -> tuple[Request, ...]:
        """The stored requests; raises `IntegrityError` when a line is not what was written."""
        return tuple(read_requests(self.path(digest)))

    def digests(self) -> tuple[str, ...]:
        """Those of which there are texts."""
        return tuple(f"sha256:{path.stem}" for path in sorted(self.folder.glob("*.jsonl")))

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def renew(self, digest: str) -> None:
        """The file's time is that of the last import: how long they are kept counts from there."""
        os.utime(self.path(digest))

    def delete(self, digest: str) -> bool:
        """Whether there was anything to delete."""
        there = self.has(digest)
        self.path(digest).unlink(missing_ok=True)
        _temporary(self.path(digest)).unlink(missing_ok=True)
        return there

    def save_record(self, record: SliceRecord) -> None:
        text = json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n"
        _write_private(self._record_path(record.digest), text.encode())

    def record(self, digest: str) -> SliceRecord | None:
        from pydantic import TypeAdapter, ValidationError

        path = self._record_path(digest)
        try:
            return TypeAdapter(SliceRecord).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise IntegrityError(f"{path} is damaged: {error.errors()[0]['msg']}") from error

    def purge(self, digest: str, at: str) -> bool:
        """Delete the texts; counts stay, places and values of bad records go with the texts."""
        there = self.delete(digest)
        record = self.record(digest)
        if record is not None and record.purged_at is None:
            self.save_record(replace(record, purged_at=at, report=_counts_only(record.report)))
        return there

    def _record_path(self, digest: str) -> Path:
        return self.folder / f"{_hex(digest)}.json"


def line(request: Request) -> str:
    """One request as a line of JSON whose body is the text as it was sent."""
    head = {
        "id": request.id,
        "domain": request.domain,
        "session": request.session,
        "arrival_s": request.arrival_s,
    }
    if not states_max_tokens(request.body):
        head |= {"max_tokens": request.max_tokens}
    # A body with line breaks between its members is kept as a JSON string, to stay on one line.
    one_line = not any(c in request.body for c in "\r\n")
    body = request.body if one_line else json.dumps(request.body, ensure_ascii=False)
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "body": {body}}}'


def read_requests(path: Path) -> Iterator[Request]:
    """The requests of a file that `line` wrote."""
    for raw in read_lines(path, path.name):
        try:
            if raw.bad is not None:
                raise raw.bad
            yield _request(raw.text)
        except (BadRecord, KeyError, TypeError) as error:
            raise IntegrityError(f"{path}, line {raw.place.line} is damaged: {error}") from error


def _request(text: str) -> Request:
    found = members(text, depth=MAX_DEPTH + 1)  # the line is a level around the body
    limit = found.get("max_tokens")
    return parse_request(
        id=found["id"].value,
        domain=found["domain"].value,
        session=found["session"].value,
        arrival_s=found["arrival_s"].value,
        body=unpack(found["body"]).text,
        default_max_tokens=limit.value if limit is not None else 1,
    )


def _counts_only(report: ImportReport) -> ImportReport:
    return replace(
        report,
        left_out=tuple(replace(left, examples=()) for left in report.left_out),
        noticed=tuple(replace(note, examples=()) for note in report.noticed),
    )


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _write_private(path: Path, data: bytes) -> None:
    """Whole or not at all, readable by its owner only. One writer at a time: the next one writes
    over what a killed one left."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = _temporary(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with open(temporary, "wb", opener=_privately) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        os.fsync(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # a full disk does not say which
        raise
    finally:
        os.close(folder)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
