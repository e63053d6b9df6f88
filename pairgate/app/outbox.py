"""Deliver what was decided to the outside world, after the commit and never in its way.

Each target of `pairgate.app.targets` gets the messages of a line in order, at least once, under a
key that says so. One that fails keeps its place, waits longer each time, and holds up only its own
line at its own target.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pairgate.app.actor import current_actor
from pairgate.app.situation import read_situation
from pairgate.app.targets import parcel, targets
from pairgate.app.webhook import TryLater
from pairgate.app.workspace import now
from pairgate.domain.records import Delivery
from pairgate.domain.situation import Ask
from pairgate.errors import InvalidInput, PairgateError, Refused, Unavailable
from pairgate.promote import dropping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pairgate.app.targets import Target
    from pairgate.app.workspace import Workspace
    from pairgate.domain.records import OutboxMessage
    from pairgate.domain.release import Actor, Decision
    from pairgate.store.sql import Transaction

DELIVERY_SETTING = "PAIRGATE_DELIVERY"
BUDGET_S = 60.0
"""A target that took this long in one delivery is left for the next one."""

KNOWN_DAYS = 30.0
"""A message waits for every target that anybody delivered to within this time, on any machine."""

_FIRST_DELAY_S, _LONGEST_DELAY_S = 5.0, 3600.0
_DETACHED_RETRY_S = 60.0
_OFF = ("off", "0", "false", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """The first message of a line that a target does not have, and why. `next_try_at` is '' when
    that is at once, None when it waits for a person."""

    line: str
    target: str
    error: str
    next_try_at: str | None

    def __str__(self) -> str:
        if self.next_try_at is None:
            when = "; not tried again before: pairgate outbox retry"
        else:
            when = f"; next try at {self.next_try_at[:19]}Z" if self.next_try_at else ""
        return f"{self.line}: {self.target} failed: {self.error}{when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """`failures` are those that stay; `n_delivered` messages left the outbox."""

    n_delivered: int
    failures: tuple[Undelivered, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One message that one target lacks. `is_set_up`: this machine can deliver it."""

    message: OutboxMessage
    delivery: Delivery
    is_set_up: bool


def waiting(ws: Workspace, line: str | None = None) -> tuple[Waiting, ...]:
    """What is not delivered yet, oldest first; where there is no target at all, under the name ''.
    Changes nothing."""
    here = targets(ws).keys()
    known = sorted(_known_targets(ws)) or [""]
    return tuple(
        Waiting(message=message, delivery=delivery, is_set_up=delivery.target in here)
        for message in ws.registry.pending(line)
        for delivery in map(message.delivery, known)
        if not delivery.is_over
    )


def deliver(
    ws: Workspace, *, line: str | None = None, wait_s: float = 120.0, retry_for_s: float = 0.0
) -> Delivered:
    """Deliver what is due, and for `retry_for_s` seconds also what becomes due.

    One delivery at a time per target: one that still runs elsewhere after `wait_s` is a failure
    of that target here.
    """
    deadline = time.monotonic() + retry_for_s
    n_delivered = 0
    while True:
        failures = tuple(
            failure
            for name, target in targets(ws).items()
            for failure in _deliver_to(ws, name, target, line, wait_s)
        )
        n_delivered += _close(ws, line)
        due = [f.next_try_at for f in failures if f.next_try_at]
        pause_s = max(0.0, _seconds_until(min(due))) + 0.01 if due else 0.0
        if not due or time.monotonic() + pause_s > deadline:
            return Delivered(n_delivered=n_delivered, failures=failures)
        time.sleep(pause_s)


def retry(ws: Workspace, message_id: int | None = None, *, target: str | None = None) -> Delivered:
    """Forget what was waited for, of one message or all, and deliver now.

    Raises `NotFound` for a message that does not wait.
    """
    for message in _chosen(ws, message_id):
        for found in message.deliveries:
            if not found.is_over and target in (None, found.target):
                again = replace(found, state="waiting", next_try_at="")
                ws.registry.mark(message.id, again, now())
    return deliver(ws)


def drop(
    ws: Workspace,
    reason: str,
    message_id: int | None = None,
    *,
    target: str | None = None,
    actor: Actor | None = None,
) -> tuple[Decision, ...]:
    """Give up on a message, or on all that one target still lacks; recorded in the line's history.

    Without `target` the message is given up for every target that lacks it. Raises `InvalidInput`
    when neither is named, `NotFound` for a message that does not wait.
    """
    if message_id is None and target is None:
        raise InvalidInput("name the message, or with --target whose messages are dropped")
    by = actor or current_actor(ws)
    known = _known_targets(ws)
    made = []
    for message in _chosen(ws, message_id):
        wanted = (known | {d.target for d in message.deliveries}) if target is None else {target}
        lacking = sorted(t for t in wanted if not message.delivery(t).is_over)
        if lacking:
            ask = Ask(by=by, at=now(), reason=reason)
            made.append(_drop(ws, message, lacking, ask))
    _close(ws, None)
    return tuple(made)


def start_delivery(ws: Workspace, *, wait_s: float = 0.0) -> None:
    """Start `pairgate outbox deliver` as a process of its own, and wait at most `wait_s` for it.

    A delivery that cannot be started is not an error: the messages stay, and the next command
    that delivers takes them along. PAIRGATE_DELIVERY=off starts nothing.
    """
    if ws.environ.get(DELIVERY_SETTING, "on").lower() in _OFF:
        return
    environ = ws.environ | {
        "PAIRGATE_HOME": str(ws.home),
        "PAIRGATE_DATABASE_URL": ws.database_url,
    }
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    argv = [sys.executable, "-m", "pairgate", "outbox", "deliver"]
    if wait_s == 0:  # nobody waits for this process, so it may try again for a while
        argv.append(f"--retry-for={_DETACHED_RETRY_S:g}")
    try:
        pid = os.posix_spawn(sys.executable, argv, environ, file_actions=null, setsid=True)
    except OSError:
        return
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.05)


def _deliver_to(
    ws: Workspace, name: str, target: Target, line: str | None, wait_s: float
) -> Iterator[Undelivered]:
    """Bring one target what it lacks, in order per line; yields what stays."""
    try:
        with ws.registry.delivering(name, wait_s=wait_s):
            stuck: set[str] = set()
            started = time.monotonic()
            for message in ws.registry.pending(line):
                found = message.delivery(name)
                if found.is_over or message.line in stuck:
                    continue
                if time.monotonic() - started > BUDGET_S:
                    error = f"left for the next delivery: {BUDGET_S:g} s are over"
                    found = replace(found, last_error=found.last_error or error)
                elif found.state == "waiting" and found.next_try_at <= now():
                    found = _try(ws, name, target, message, found)
                    ws.registry.mark(message.id, found, now())
                if not found.is_over:
                    stuck.add(message.line)
                    yield _undelivered(message, found)
    except Unavailable as error:
        yield Undelivered(line=line or "all", target=name, error=error.message, next_try_at="")


def _try(
    ws: Workspace, name: str, target: Target, message: OutboxMessage, before: Delivery
) -> Delivery:
    """One attempt; whatever a target raises, the others go on."""
    n_tries = before.n_tries + 1
    delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(before.n_tries, 20))
    delay_s *= random.uniform(0.8, 1.2)  # so that many machines do not come at once
    state = "waiting"
    try:
        target(ws, parcel(message, name))
    except TryLater as error:
        said, delay_s = error.message, max(delay_s, min(error.after_s, _LONGEST_DELAY_S))
    except Refused as error:
        said, state = error.message, "held"
    except Exception as error:
        said = (
            error.message
            if isinstance(error, PairgateError)
            else f"{type(error).__name__}: {error}"
        )
    else:
        return Delivery(target=name, state="done", n_tries=n_tries)
    return Delivery(
        target=name,
        state=state,
        n_tries=n_tries,
        last_error=" ".join(said.split())[:300],
        next_try_at=_after(delay_s) if state == "waiting" else "",
    )


def _undelivered(message: OutboxMessage, found: Delivery) -> Undelivered:
    return Undelivered(
        line=message.line,
        target=found.target,
        error=found.last_error,
        next_try_at=None if found.state == "held" else found.next_try_at,
    )


def _close(ws: Workspace, line: str | None) -> int:
    """Messages that every known target has leave the outbox; returns how many."""
    known = _known_targets(ws)
    n_closed = 0
    for message in ws.registry.pending(line):
        if all(message.delivery(target).is_over for target in known):
            ws.registry.mark_delivered(message.id, now())
            n_closed += 1
    return n_closed


def _known_targets(ws: Workspace) -> frozenset[str]:
    """Those set up here, and those of other machines: a laptop that has no webhook must not end
    what a server still has to send."""
    return ws.registry.targets_since(_after(-KNOWN_DAYS * 86400)) | targets(ws).keys()


def _drop(ws: Workspace, message: OutboxMessage, lacking: list[str], ask: Ask) -> Decision:
    from pairgate.store.outbox import write_delivery

    def body(transaction: Transaction) -> Decision:
        decision = dropping(
            read_situation(transaction), ask, message_id=message.id, targets=tuple(lacking)
        )
        for target in lacking:
            dropped = replace(message.delivery(target), state="dropped", next_try_at="")
            write_delivery(transaction.connection, message.id, dropped, ask.at)
        return transaction.append(decision)

    return ws.registry.decide(message.line, body)


def _chosen(ws: Workspace, message_id: int | None) -> list[OutboxMessage]:
    return ws.registry.pending() if message_id is None else [ws.registry.message(message_id)]


def _after(seconds: float) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _seconds_until(at: str) -> float:
    return (datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds()
