"""Times of a log: epoch s, ms, µs or ns, and ISO 8601, mixed as they come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

# An epoch beyond this is in the next smaller unit: 1e11 s is the year 5138, 1e11 ms is 1973.
_SECONDS_LIMIT = 1e11
_LARGEST = 1e20  # the same in nanoseconds


def epoch_s(value: Any) -> float | None:
    """Seconds since 1970, or None when the value is no time after it. No zone means UTC."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _iso_s(value)
    if not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    seconds = float(value)
    while seconds >= _SECONDS_LIMIT:
        seconds /= 1000.0
    return seconds


def _iso_s(text: str) -> float | None:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return seconds if seconds >= 0 else None
