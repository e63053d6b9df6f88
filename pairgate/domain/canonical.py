"""One way to turn a value into bytes, so that equal content has one digest on every machine."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, is_dataclass
from typing import Any

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no white space; NaN and infinities raise `ValueError`.

    A dataclass is written as the object of its fields.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    # A lone surrogate cannot be UTF-8; escaping just those keeps the function total.
    return text.encode("utf-8", "backslashreplace")


def sha256_digest(data: bytes) -> str:
    """`sha256:<64 hex digits>` of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    """Digest of the canonical JSON of `value`."""
    return sha256_digest(canonical_json(value))


def is_digest(text: str) -> bool:
    """Whether the text is `sha256:` and 64 lower-case hex digits."""
    return _DIGEST.match(text) is not None
