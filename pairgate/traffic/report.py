"""What became of the records of a log: kept, left out by reason, and what was noticed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

EXAMPLES = 5


class Reason(StrEnum):
    """Why a record is left out. All but the last three are faults of the record (`--strict`)."""

    TRUNCATED_JSON = "truncated JSON"
    INVALID_JSON = "invalid JSON"
    NOT_UTF8 = "not UTF-8"
    NOT_AN_OBJECT = "not an object"
    NOT_FINITE = "NaN or infinity"
    TOO_LARGE = "absurd size"
    TOO_DEEP = "nested too deeply"
    LONE_SURROGATE = "lone surrogate"
    WRONG_TYPE = "wrong type"
    OUT_OF_RANGE = "value out of range"
    NO_PROMPT = "no prompt"
    MEDIA_PART = "image, audio or file part"
    SEVERAL_CHOICES = "several prompts or choices (n, best_of)"
    DUPLICATE_ID = "duplicate id"
    DUPLICATE_PROMPT = "duplicate prompt"
    TRAINING_TEXT = "stands in the training text"
    NOT_SAMPLED = "not sampled"

    @property
    def fault(self) -> bool:
        return self not in (Reason.DUPLICATE_PROMPT, Reason.TRAINING_TEXT, Reason.NOT_SAMPLED)


class Note(StrEnum):
    """Something odd about a record that is kept."""

    OUT_OF_ORDER = "timestamp earlier than the one before"
    BAD_TIMESTAMP = "unreadable or negative timestamp, kept without one"
    NO_TIMESTAMP = "no timestamp"
    DEFAULT_MAX_TOKENS = "no max_tokens, the default was taken"
    UNANSWERED = "ShareGPT turn without an answer, not a request"


class BadRecord(Exception):
    """A record that cannot become a request; `detail` shows the offending value."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a record stands: line of a text file, or row of a table (1-based). Elements of an
    array may share a line, so they have their number too."""

    source: str
    line: int
    element: int | None = None

    def __str__(self) -> str:
        element = "" if self.element is None else f"[{self.element}]"
        return f"{self.source}:{self.line}{element}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One record that was left out or noticed, and where it stands."""

    place: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """`n` records of one reason, with the first few places."""

    reason: str
    n: int
    fault: bool
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """How often something was noticed in records that were kept."""

    note: str
    n: int
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A count with a name: requests of a domain, or with an unsupported parameter."""

    name: str
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """`n_read` = `n_kept` + the sum of `left_out`; blank lines and lines of a server's log that
    are no requests (`n_other_lines`) are not records. `usable` counts what could have been
    sampled, by domain: the shares of the traffic itself."""

    n_read: int
    n_kept: int
    n_other_lines: int
    left_out: tuple[LeftOut, ...]
    noticed: tuple[Noticed, ...]
    usable: tuple[Named, ...]
    unsupported: tuple[Named, ...]

    @property
    def n_faulty(self) -> int:
        return sum(left.n for left in self.left_out if left.fault)


class Tally:
    """Counts while a log is read; the only mutable thing of an import."""

    def __init__(self) -> None:
        self.n_read = 0
        self.n_other_lines = 0
        self.usable: Counter[str] = Counter()
        self._left: Counter[Reason] = Counter()
        self._notes: Counter[Note] = Counter()
        self._examples: dict[StrEnum, list[Example]] = defaultdict(list)

    def leave_out(self, reason: Reason, place: Place | str, detail: str = "") -> None:
        self._left[reason] += 1
        self._example(reason, place, detail)

    def note(self, note: Note, place: Place | str, detail: str = "") -> None:
        self._notes[note] += 1
        self._example(note, place, detail)

    def report(self, unsupported: Iterable[str], n_kept: int) -> ImportReport:
        """`unsupported` names the parameters of every kept request, one after the other."""
        return ImportReport(
            n_read=self.n_read,
            n_kept=n_kept,
            n_other_lines=self.n_other_lines,
            left_out=tuple(
                LeftOut(reason=r, n=self._left[r], fault=r.fault, examples=self._first(r))
                for r in Reason
                if self._left[r]
            ),
            noticed=tuple(
                Noticed(note=n, n=self._notes[n], examples=self._first(n))
                for n in Note
                if self._notes[n]
            ),
            usable=named(self.usable),
            unsupported=named(Counter(unsupported)),
        )

    def _example(self, kind: StrEnum, place: Place | str, detail: str) -> None:
        if len(self._examples[kind]) < EXAMPLES:
            self._examples[kind].append(Example(place=str(place), detail=shorten(detail)))

    def _first(self, kind: StrEnum) -> tuple[Example, ...]:
        return tuple(self._examples[kind])


def named(counts: Counter[str]) -> tuple[Named, ...]:
    """Sorted by name."""
    return tuple(Named(name=name, n=n) for name, n in sorted(counts.items()))


def shorten(text: str, limit: int = 80) -> str:
    """One printable line: control characters and lone surrogates are escaped."""
    line = text.encode("utf-8", "backslashreplace").decode()
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"
