"""Free text that people give: kept as it is said, as long as every reader can take it."""

from __future__ import annotations

import unicodedata

from pairgate.errors import InvalidInput

MAX_REASON = 4000
MAX_NAME = 200
_BREAKS = "\n\t"
# They reorder what a reader sees (Unicode Technical Report 36, Trojan Source): bidirectional
# embeddings, overrides and isolates.
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_text(what: str, text: str, *, n_max: int = MAX_REASON, breaks: bool = True) -> str:
    """The text itself; raises `InvalidInput` for what a database, a terminal or a log cannot take.

    That is: over `n_max` characters, control characters (line breaks and tabs only with `breaks`),
    bidirectional controls, and bytes that are not text.
    """
    if len(text) > n_max:
        raise InvalidInput(f"{what} has {len(text)} characters; at most {n_max} are kept")
    for char in text:
        kind = unicodedata.category(char)
        allowed = breaks and char in _BREAKS
        if (kind in ("Cc", "Cs") and not allowed) or char in _BIDIRECTIONAL:
            raise InvalidInput(
                f"{what} holds the character U+{ord(char):04X}, which is not text",
                hint="write it as plain text",
            )
    return text


def check_name(what: str, text: str) -> str:
    """A text of one line that is not blank; raises `InvalidInput`."""
    if not text.strip():
        raise InvalidInput(f"{what} is blank")
    return check_text(what, text, n_max=MAX_NAME, breaks=False)
