"""Read logs into requests, one record at a time, counting everything that is left out."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pairgate.domain.canonical import canonical_json
from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput, NotFound, require
from pairgate.traffic.body import parse_request, stated_max_tokens
from pairgate.traffic.jsontext import members
from pairgate.traffic.lines import Raw, first_characters, read_array, read_lines
from pairgate.traffic.report import BadRecord, Note, Place, Reason, Tally
from pairgate.traffic.shapes import Candidate, Mapping, candidates
from pairgate.traffic.tables import HUB_PREFIX, read_dataset, read_parquet
from pairgate.traffic.times import epoch_s
from pairgate.traffic.vllm import read_vllm_log, received


class Format(StrEnum):
    """How a file is cut into records; the shape of a record is always found by itself."""

    AUTO = "auto"
    JSONL = "jsonl"
    JSON = "json"
    VLLM = "vllm"
    PARQUET = "parquet"
    DATASET = "dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read logs. `default_*` fill what a record leaves open."""

    format: Format = Format.AUTO
    mapping: Mapping = field(default_factory=Mapping)
    default_domain: str = "general"
    default_max_tokens: int = 256
    keep_duplicates: bool = False
    config: str | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        require(self.default_domain, "the default domain is empty")
        require(
            not any("\ud800" <= c <= "\udfff" for c in self.default_domain),
            f"the default domain {self.default_domain!r} is not UTF-8",
        )
        require(
            self.default_max_tokens >= 1, f"the default max_tokens is {self.default_max_tokens}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A usable request, its position among all of them, and its time if it has one."""

    ordinal: int
    place: Place
    request: Request
    epoch_s: float | None


def read_logs(sources: Iterable[str], options: ReadOptions, tally: Tally) -> Iterator[Found]:
    """The usable requests of all sources in order; the rest is counted in `tally`.

    Of a log nothing is held but a digest for each id and each prompt (about 100 bytes each).
    """
    seen = _Seen()
    for source, label in _labelled(tuple(sources)):
        before = None
        for place, candidate in _read_candidates(source, label, options, tally):
            try:
                found = _usable(place, candidate, options, seen, tally)
            except BadRecord as bad:
                tally.leave_out(bad.reason, place, bad.detail)
                continue
            if found is None:
                continue
            if found.epoch_s is not None:
                if before is not None and found.epoch_s < before:
                    tally.note(Note.OUT_OF_ORDER, place, str(candidate.timestamp))
                before = found.epoch_s
            yield found


def settle(found: Iterable[Found]) -> tuple[Request, ...]:
    """Requests in the order of the log, arrivals relative to the earliest of them."""
    ordered = sorted(found, key=lambda f: f.ordinal)
    first = min((f.epoch_s for f in ordered if f.epoch_s is not None), default=0.0)
    return tuple(
        f.request if f.epoch_s is None else replace(f.request, arrival_s=_round(f.epoch_s - first))
        for f in ordered
    )


def _round(seconds: float) -> float:
    return round(seconds, 6)  # a float of today's epoch holds microseconds, no more


class _Seen:
    """Digests of ids and prompts that came before."""

    def __init__(self) -> None:
        self._known: dict[str, set[bytes]] = {"id": set(), "prompt": set()}

    def first(self, kind: str, text: str) -> bool:
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        known = self._known[kind]
        size = len(known)
        known.add(digest)
        return len(known) > size


def _read_candidates(
    source: str, label: str, options: ReadOptions, tally: Tally
) -> Iterator[tuple[Place, Candidate]]:
    for raw in _raw_records(source, label, options):
        if raw.blank:
            tally.n_other_lines += 1
            continue
        # A record counts as what it holds: one request, or one for each turn pair.
        n_before = tally.n_read
        try:
            if raw.bad is not None:
                raise raw.bad
            for candidate in candidates(raw.text, options.mapping):
                tally.n_read += 1
                yield raw.place, candidate
        except BadRecord as bad:
            tally.n_read = n_before + 1
            tally.leave_out(bad.reason, raw.place, bad.detail)


def _usable(
    place: Place, candidate: Candidate, options: ReadOptions, seen: _Seen, tally: Tally
) -> Found | None:
    """None when it was left out as a repeated prompt; raises `BadRecord` for a fault."""
    id = candidate.id or f"{place}{'' if candidate.turn is None else f'#{candidate.turn}'}"
    request = parse_request(
        id=id,
        domain=candidate.domain or options.default_domain,
        body=candidate.body,
        # The turns of one conversation are never independent, whether it has a name or not.
        session=candidate.session or (None if candidate.turn is None else str(place)),
        arrival_s=candidate.arrival_s,
        default_max_tokens=options.default_max_tokens,
        max_tokens_beside=candidate.max_tokens,
    )
    # Only now, so that a faulty record does not take the id from a good one after it.
    if not seen.first("id", id):
        raise BadRecord(Reason.DUPLICATE_ID, id)
    if not seen.first("prompt", prompt_text(request)) and not options.keep_duplicates:
        tally.leave_out(Reason.DUPLICATE_PROMPT, place, id)
        return None
    time = None if candidate.arrival_s is not None else epoch_s(candidate.timestamp)
    for note in _notes(candidate, request, time, options):
        tally.note(note, place, f"{id} {candidate.timestamp or ''}".strip())
    ordinal = sum(tally.usable.values())
    tally.usable[request.domain] += 1
    return Found(ordinal=ordinal, place=place, request=request, epoch_s=time)


def _notes(
    candidate: Candidate, request: Request, time: float | None, options: ReadOptions
) -> Iterator[Note]:
    yield from candidate.notes
    if candidate.timestamp is not None and candidate.arrival_s is None and time is None:
        yield Note.BAD_TIMESTAMP
    elif candidate.arrival_s is None and time is None:
        yield Note.NO_TIMESTAMP
    # Another number than the default was stated: no need to read the body again.
    perhaps = candidate.max_tokens is None and request.max_tokens == options.default_max_tokens
    if perhaps and not states_max_tokens(candidate.body):
        yield Note.DEFAULT_MAX_TOKENS


def states_max_tokens(body: str) -> bool:
    """Whether the body itself says how long the answer may be."""
    return stated_max_tokens({k: m.value for k, m in members(body).items()}) is not None


def prompt_text(request: Request) -> str:
    """What the model reads, as one text: equal for requests with the same prompt."""
    if request.messages is not None:
        # Canonical, because white space and the order of keys are no part of a prompt.
        return f"messages {canonical_json(json.loads(request.messages)).decode()}"
    return f"text {request.text}" if request.text is not None else f"ids {request.token_ids}"


def _labelled(sources: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each source with a short name for places and ids; equal file names are numbered."""
    names = [file_name(source) for source in sources]
    for i, (source, name) in enumerate(zip(sources, names, strict=True)):
        before = names[:i].count(name)
        yield source, f"{name}({before + 1})" if before else name


def file_name(source: str) -> str:
    """The last part of a path, as text: bytes of a name that are no UTF-8 are escaped."""
    return Path(source).name.encode("utf-8", "backslashreplace").decode()


def _raw_records(source: str, label: str, options: ReadOptions) -> Iterator[Raw]:
    if options.format is Format.DATASET or source.startswith(HUB_PREFIX) or os.path.isdir(source):
        yield from read_dataset(source, label, config=options.config, split=options.split)
        return
    path = Path(source)
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise NotFound(
            f"there is no file {source}",
            hint=f"a dataset on the Hugging Face hub is written {HUB_PREFIX}OWNER/NAME",
        )
    readers = {
        Format.JSONL: read_lines,
        Format.JSON: read_array,
        Format.VLLM: read_vllm_log,
        Format.PARQUET: read_parquet,
    }
    try:
        form = options.format if options.format is not Format.AUTO else _detect(path)
        yield from readers[form](path, label)
    except (EOFError, zlib.error, OSError) as error:
        raise InvalidInput(f"{source} cannot be read to its end: {error}") from error


def _detect(path: Path) -> Format:
    if path.suffix == ".parquet":
        return Format.PARQUET
    first = first_characters(path)
    if first in ("[{", "[]", "[[", '["', "[") and ".jsonl" not in path.suffixes:
        return Format.JSON
    if not first.startswith("{") and any(received(r.text) for r in _first(path, 2000)):
        return Format.VLLM  # which may begin with a bracket too, as in [2025-05-01 or [rank0]
    if first.startswith("[") and ".jsonl" not in path.suffixes:
        return Format.JSON
    return Format.JSONL


def _first(path: Path, n: int) -> Iterator[Raw]:
    for raw, _ in zip(read_lines(path, ""), range(n), strict=False):
        yield raw
