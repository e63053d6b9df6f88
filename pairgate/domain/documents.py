"""JSON documents of a model, read strictly: every reader must understand the same."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from pairgate.errors import InvalidInput

_LARGE = frozenset(
    {
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "added_tokens.json",
        "model.safetensors.index.json",
    }
)
_MAX_LARGE_BYTES = 64 << 20  # the largest tokenizer.json in use (262,144 tokens) has 33 MB
_MAX_BYTES = 8 << 20


def max_bytes(name: str) -> int:
    """What a document of this name may have at most: parsing takes many times its size."""
    return _MAX_LARGE_BYTES if PurePosixPath(name).name in _LARGE else _MAX_BYTES


def parse_document(data: bytes, what: str, *, name: str) -> dict[str, Any]:
    """The JSON object in `data`, a file called `name`; `what` is how errors call it.

    Raises `InvalidInput` for anything that is not a JSON object, for a key that stands twice, for
    NaN, and for more than `max_bytes`. An infinity is let through: some architectures' configs
    hold one (`time_step_limit` of Mamba 2).
    """
    if len(data) > max_bytes(name):
        raise InvalidInput(
            f"{what} has {len(data)} bytes; at most {max_bytes(name)} are read",
            hint="no such file of a real model is that large",
        )
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=reject_duplicate_keys,
            parse_constant=reject_nan,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} is not a JSON object")
    return value


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` for json.loads: a key that stands twice raises ValueError."""
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} stands twice")
    return value


def reject_nan(constant: str) -> float:
    """`parse_constant` for json.loads: NaN raises ValueError."""
    if constant == "NaN":
        raise ValueError("it holds NaN")
    return float(constant)
