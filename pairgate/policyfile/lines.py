"""Where a key stands in TOML or YAML text, for messages; the parsers do not tell."""

from __future__ import annotations

import re


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """1-based line of a key in TOML or YAML text, or of its table; None when it is not found.

    Good enough for a message: keys in multi-line strings could fool it.
    """
    return _toml_line(text, path) or _yaml_line(text, path)


def _toml_line(text: str, path: tuple[str, ...]) -> int | None:
    table: tuple[str, ...] = ()
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$", line)
        if header:
            table = tuple(part.strip(" \"'") for part in header[1].split("."))
            if table == path:
                return number
            if path[: len(table)] == table:
                best = number
            continue
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if key:
            found = (*table, *(part.strip("\"'") for part in key[1].split(".")))
            if found == path:
                return number
            if path[: len(found)] == found:
                best = number
    return best


def _yaml_line(text: str, path: tuple[str, ...]) -> int | None:
    stack: list[tuple[int, str]] = []
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        key = re.match(r"(\s*)([\w\"'-]+)\s*:", line)
        if not key:
            continue
        depth = len(key[1])
        stack = [entry for entry in stack if entry[0] < depth]
        stack.append((depth, key[2].strip("\"'")))
        found = tuple(name for _, name in stack)
        if found == path:
            return number
        if path[: len(found)] == found:
            best = number
    return best
