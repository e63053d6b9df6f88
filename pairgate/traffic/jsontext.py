"""JSON objects whose members keep their exact text, so that a body stays as it was sent."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from pairgate.domain.canonical import canonical_json
from pairgate.traffic.report import BadRecord, Reason, shorten

_BLANKS = " \t\n\r"
_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
# Where the parser stops in a line that was cut inside a number, a literal or an escape; a cut
# anywhere else leaves it at the very end.
_CUT_TOKEN = re.compile(r"(-|\.|[eE][+-]?|tr?u?|fa?l?s?|nu?l?|Na?|-?Inf?i?n?i?t?)\Z")
_CUT_ESCAPE = re.compile(r"\\?u?[\da-fA-F]{0,4}\Z")
# A depth of our own: the parser's depends on how deep the program itself stands, and what was
# read once has to be readable ever after.
MAX_DEPTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A value and the JSON text that it was read from."""

    value: Any
    text: str


def _refuse_constant(name: str) -> NoReturn:
    raise BadRecord(Reason.NOT_FINITE, f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadRecord(Reason.NOT_FINITE, f"{shorten(text, 20)} is beyond any float")
    return value


DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def members(text: str, *, depth: int = MAX_DEPTH) -> dict[str, Member]:
    """The members of the JSON object in `text`, each with its exact text.

    Raises `BadRecord` when it is truncated, invalid, too deep, no object, or holds a NaN.
    """
    try:
        found = _members(text)
        if text.count("{") + text.count("[") > depth:
            _refuse_depth([{key: member.value for key, member in found.items()}], depth)
        return found
    except json.JSONDecodeError as error:
        raise _broken(text, error) from error
    except RecursionError as error:
        raise BadRecord(Reason.TOO_DEEP, f"{len(text)} characters") from error
    except ValueError as error:  # an integer of thousands of digits
        raise BadRecord(Reason.OUT_OF_RANGE, str(error).split(";")[0]) from error


def _members(text: str) -> dict[str, Member]:
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        value = DECODER.decode(text)
        raise BadRecord(Reason.NOT_AN_OBJECT, f"a JSON {json_type(value)}")
    found: dict[str, Member] = {}
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name", text, at)
        key, at = DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':'", text, at)
        start = _skip(text, at + 1)
        value, end = DECODER.raw_decode(text, start)
        found[key] = Member(value=value, text=text[start:end])
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
            if text[at : at + 1] == "}":
                raise json.JSONDecodeError("Expecting property name", text, at)
        elif text[at : at + 1] != "}":
            raise json.JSONDecodeError("Expecting ','", text, at)
    if _skip(text, at + 1) != len(text):
        raise json.JSONDecodeError("Extra data", text, at + 1)
    return found


def unpack(member: Member) -> Member:
    """A member whose value is a string that holds a JSON object or array: what it holds."""
    text = member.value
    if not isinstance(text, str) or not text.lstrip().startswith(("{", "[")):
        return member
    try:
        value = DECODER.decode(text)
        _refuse_depth([value], MAX_DEPTH)
        return Member(value=value, text=text.strip(" \t\r\n"))
    except (ValueError, RecursionError):
        return member


def lookup(record: dict[str, Member], path: str) -> Member | None:
    """The member at a dotted path; a key that itself holds dots wins over descending."""
    if path in record:
        return record[path]
    for at in (i for i, c in enumerate(path) if c == "."):
        head, rest = path[:at], path[at + 1 :]
        if head not in record:
            continue
        inner = unpack(record[head])
        if isinstance(inner.value, dict):
            return lookup(members(inner.text), rest)
        if isinstance(inner.value, list):
            items = {str(i): as_member(value) for i, value in enumerate(inner.value)}
            return lookup(items, rest)
    return None


def as_member(value: Any) -> Member:
    """A value that has no text of its own, in canonical JSON."""
    return Member(value=value, text=canonical_json(value).decode())


def join(parts: dict[str, str]) -> str:
    """A JSON object from the texts of its members, which stay as they are."""
    inner = ", ".join(f"{json.dumps(key)}: {text}" for key, text in parts.items())
    return f"{{{inner}}}"


def refuse_lone_surrogates(text: str, value: Any) -> None:
    """A lone surrogate is valid as a JSON escape but is no text: no tokenizer takes it."""
    try:
        text.encode()  # text that was itself a JSON string may hold one unescaped
        if _SURROGATE_ESCAPE.search(text) is None:
            return
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadRecord(Reason.LONE_SURROGATE, f"U+{ord(error.object[error.start]):04X}") from error


def json_type(value: Any) -> str:
    """How JSON names the type of a value."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] not in _BLANKS:  # by far the most frequent case
        return at
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse_depth(values: list[Any], depth: int) -> None:
    """Raise `BadRecord` when lists and objects are nested deeper than `depth`."""
    for _ in range(depth):
        values = [
            inner
            for value in values
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not values:
            return
    raise BadRecord(Reason.TOO_DEEP, f"over {depth} levels")


def _broken(text: str, error: json.JSONDecodeError) -> BadRecord:
    rest = text.rstrip()
    cut = error.pos >= len(rest) or error.msg.startswith("Unterminated string")
    if error.msg.startswith("Expecting "):
        cut = cut or _CUT_TOKEN.match(rest, error.pos) is not None
    elif error.msg.startswith("Invalid \\u"):
        cut = cut or _CUT_ESCAPE.match(rest, error.pos) is not None
    reason = Reason.TRUNCATED_JSON if cut else Reason.INVALID_JSON
    return BadRecord(reason, f"{error.msg.removesuffix(' at')} at column {error.pos + 1}")
