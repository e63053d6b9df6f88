"""Times that people type, in the form that the registry keeps and compares."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time

import click


def from_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Click callback: the first moment that is meant; a date is its beginning, in UTC."""
    return None if value is None else _moment(value, time.min)


def until_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Click callback: the last moment that is meant; a date or a second is included whole."""
    return None if value is None else _moment(value, time.max)


def _moment(text: str, part: time) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; write 2026-11-30 or 2026-11-30T12:00:00Z"
        ) from None
    if re.fullmatch(r"\d{4}-?\d\d-?\d\d", text):
        found = datetime.combine(found.date(), part)
    elif "." not in text and "," not in text:
        found = found.replace(microsecond=part.microsecond)
    utc = found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
