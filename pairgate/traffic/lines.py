"""Text files, one record at a time: JSON lines, a JSON array, a vLLM server's log."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, cast

from pairgate.traffic.report import BadRecord, Place, Reason

MAX_RECORD_BYTES = 16 << 20
_CHUNK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\r\n]*")
# Finds where an element ends; it takes NaN too, for which the record is refused later on.
# An integer of any length is taken for the same reason.
_EXTENTS = json.JSONDecoder(parse_int=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """The text of one record, or why it could not be read (`text` is then empty)."""

    place: Place
    text: str = ""
    bad: BadRecord | None = None

    @property
    def blank(self) -> bool:
        return self.bad is None and not self.text.strip()


def read_lines(path: Path, label: str) -> Iterator[Raw]:
    """Every line of a file (plain or .gz), blank ones too. CRLF and a first byte-order mark are
    no part of a line; a line beyond `MAX_RECORD_BYTES` is skipped without holding it."""
    with _opened(path) as file:
        number = 0
        while line := file.readline(MAX_RECORD_BYTES + 2):
            number += 1
            place = Place(source=label, line=number)
            if len(line) > MAX_RECORD_BYTES and not line.endswith(b"\n"):
                size = len(line) + _skip_line(file)
                yield Raw(place=place, bad=BadRecord(Reason.TOO_LARGE, f"a line of {size} bytes"))
                continue
            data = line.removeprefix(_BOM) if number == 1 else line
            try:
                yield Raw(place=place, text=data.rstrip(b"\r\n").decode())
            except UnicodeDecodeError as error:
                bad = BadRecord(Reason.NOT_UTF8, f"byte {error.object[error.start]:#04x}")
                yield Raw(place=place, bad=bad)


def read_array(path: Path, label: str) -> Iterator[Raw]:
    """The elements of a file that holds one JSON array, each with its exact text.

    After a broken element nothing tells where the next one begins: it is the last one read, and
    so is anything that follows the array.
    """
    with _opened(path) as file:
        window = _Window(file)
        line = 1 + window.skip_space().count("\n")
        if not window.peek():
            return
        if window.take(1) != "[":
            yield _broken(Place(source=label, line=line), Reason.INVALID_JSON, "not a JSON array")
            return
        for element in count(1):
            line += window.skip_space().count("\n")
            place = Place(source=label, line=line, element=element)
            if window.peek() == "]":
                window.take(1)
                line += window.skip_space().count("\n")
                if window.peek():
                    place = Place(source=label, line=line, element=element)
                    yield _broken(place, Reason.INVALID_JSON, "text after the array")
                return
            if window.peek() == "":
                yield _broken(place, Reason.TRUNCATED_JSON, "the array does not end")
                return
            try:
                text = window.take_value()
            except BadRecord as bad:
                yield Raw(place=place, bad=bad)
                return
            yield _checked(place, text)
            line += text.count("\n") + window.skip_space().count("\n")
            if window.peek() == ",":
                window.take(1)
            elif window.peek() not in ("]", ""):
                place = Place(source=label, line=line, element=element + 1)
                yield _broken(place, Reason.INVALID_JSON, "a comma is missing")
                return


def first_characters(path: Path) -> str:
    """The first two characters of a text file that are no white space, or as many as it has."""
    with _opened(path) as file:
        text = file.read(_CHUNK).removeprefix(_BOM).decode("utf-8", "replace").strip()
    return text[:1] + text[1:].lstrip()[:1]


class _Window:
    """The part of a long text that is looked at; what was taken is forgotten."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._pending = b""  # the start of a character that the last read cut
        self._text = ""
        self._at = 0
        self._ended = False
        self._grow(_CHUNK)
        self._text = self._text.removeprefix("\ufeff")

    def peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def take(self, n: int) -> str:
        taken = self._text[self._at : self._at + n]
        self._at += n
        return taken

    def skip_space(self) -> str:
        skipped = ""
        while True:
            found = _SPACE.match(self._text, self._at)
            skipped += self.take(found.end() - self._at if found else 0)
            if self.peek() or self._ended:
                return skipped
            self._grow(_CHUNK)

    def take_value(self) -> str:
        while True:
            try:
                value, end = _EXTENTS.raw_decode(self._text, self._at)
                # A number at the end of the window may go on in the next one.
                if end < len(self._text) or isinstance(value, dict) or self._ended:
                    return self.take(end - self._at)
            except json.JSONDecodeError as error:
                if self._ended or not self._may_go_on(error):
                    cut = self._ended and self._may_go_on(error)
                    reason = Reason.TRUNCATED_JSON if cut else Reason.INVALID_JSON
                    raise BadRecord(reason, f"{error.msg}; the rest is not read") from error
            except RecursionError as error:
                raise BadRecord(Reason.TOO_DEEP, "the rest is not read") from error
            held = len(self._text) - self._at
            if held > MAX_RECORD_BYTES:
                raise BadRecord(Reason.TOO_LARGE, f"over {held} characters; the rest is not read")
            self._grow(max(_CHUNK, held))

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        # Longest literal and longest escape are shorter than a dozen characters.
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - 12

    def _grow(self, n: int) -> None:
        data = self._file.read(n)
        self._ended = not data
        data = self._pending + data
        whole = len(data) if self._ended else _whole_characters(data)
        self._pending = data[whole:]
        # A wrong byte becomes a lone surrogate, for which the record is then refused.
        self._text = self._text[self._at :] + data[:whole].decode("utf-8", "surrogateescape")
        self._at = 0


def _checked(place: Place, text: str) -> Raw:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        byte = ord(error.object[error.start]) & 0xFF
        return Raw(place=place, bad=BadRecord(Reason.NOT_UTF8, f"byte {byte:#04x}"))
    if size > MAX_RECORD_BYTES:
        return Raw(place=place, bad=BadRecord(Reason.TOO_LARGE, f"an element of {size} bytes"))
    return Raw(place=place, text=text)


def _whole_characters(data: bytes) -> int:
    """Length of `data` without a character that was cut at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # a lead byte: 2 to 4 bytes belong to it
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needed > back else len(data)
        if byte < 0x80:
            break
    return len(data)


def _skip_line(file: IO[bytes]) -> int:
    """Read on to the end of the line; returns the number of bytes skipped."""
    skipped = 0
    while part := file.readline(_CHUNK):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _broken(place: Place, reason: Reason, detail: str) -> Raw:
    return Raw(place=place, bad=BadRecord(reason, f"{detail}; the rest is not read"))


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        yield cast("IO[bytes]", file)
