"""The small files of a model, as bytes that were read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pairgate.errors import InvalidInput

Documents = Mapping[str, bytes]
"""Content of every file but the weights, by its path in the model's folder."""


def parse_object(documents: Documents, name: str, role: str) -> dict[str, Any]:
    """The JSON object in the file `name`, or an empty one without that file.

    Raises `InvalidInput` for anything that is not a JSON object, and for keys that stand twice:
    two readers could disagree on what they mean.
    """
    data = documents.get(name)
    if data is None:
        return {}
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} of the {role} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} of the {role} is not a JSON object")
    return value


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` for json.loads: a key that stands twice raises ValueError."""
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} stands twice")
    return value
