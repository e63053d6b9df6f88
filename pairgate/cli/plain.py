"""Text of users must not steer the reader's terminal, whatever command prints it.

Names, reasons and identities are refused with control characters when they are given, but a
database can be edited by hand, and slices hold what users sent.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

# Controls but line ends and tab, what is not shown (soft hyphen, zero width, bidirectional, tags),
# and lone surrogates, which no encoding can write.
_STEERING = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(text: str) -> str:
    """The text with every character that could steer a terminal written as `\\x1b`."""
    return _STEERING.sub(_escaped, text)


def json_plain(text: str) -> str:
    """JSON text that means the same, with such characters escaped as JSON does it."""
    return _STEERING.sub(lambda m: _json_escaped(m[0]), text)


@contextmanager
def plain_stdout() -> Iterator[None]:
    """Inside, whatever is written to stdout is `plain`."""
    before = sys.stdout
    sys.stdout = _PlainStream(before)
    try:
        yield
    finally:
        sys.stdout = before


class _PlainStream:
    """A text stream in front of another one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(plain(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
