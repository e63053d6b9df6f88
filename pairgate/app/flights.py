"""Tell garbage collection what is under way: registrations that store, runs that read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pairgate.app.workspace import now
from pairgate.errors import PairgateError

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace

STORING = "store"
"""Blobs that arrived since such a flight began belong to it, though nothing claims them yet."""
REGISTERING = "register"
RUNNING = "run"
# A flight that a killed process left only delays the collection of what it claimed.
_LASTS = {
    STORING: timedelta(days=1),
    REGISTERING: timedelta(days=1),
    RUNNING: timedelta(days=7),
}


@contextmanager
def in_flight(ws: Workspace, kind: str, subject: str, claims: Iterable[str] = ()) -> Iterator[str]:
    """While this lasts gc deletes none of the claimed blobs. Look after the start whether they are
    there: gc may have been faster. Yields the id of the flight."""
    at = now()
    expires_at = later(at, _LASTS[kind])
    flight = ws.registry.begin_flight(kind, subject, at=at, expires_at=expires_at, claims=claims)
    try:
        yield flight
    finally:
        with suppress(PairgateError):  # it expires, and what went wrong before matters more
            ws.registry.end_flight(flight)


def later(at: str, by: timedelta) -> str:
    """An ISO 8601 time moved by `by`, in the form that the registry keeps."""
    moment = datetime.fromisoformat(at).astimezone(UTC) + by
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
