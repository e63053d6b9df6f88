"""Deliver what was decided to the outside world, after the commit and never in its way.

Targets: the MLflow mirror (unless it is off), a pointer file per line (PAIRGATE_POINTER_DIR) and
a command (PAIRGATE_DELIVERY_COMMAND, the message as JSON on its stdin). Each gets the messages of
a line in order, at least once; one that fails keeps its place and holds up only itself.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairgate.app.workspace import now
from pairgate.domain.pair import VersionRef
from pairgate.errors import PairgateError, Unavailable

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.records import OutboxMessage

DELIVERY_SETTING = "PAIRGATE_DELIVERY"
POINTER_SETTING = "PAIRGATE_POINTER_DIR"
COMMAND_SETTING = "PAIRGATE_DELIVERY_COMMAND"
_COMMAND_TIMEOUT_S = 60.0
_OFF = ("off", "0", "false", "no")

Target = Callable[["Workspace", "OutboxMessage", Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """`failures` are (line, target, error) of messages that stay."""

    n_delivered: int
    failures: tuple[tuple[str, str, str], ...]


def deliver(ws: Workspace, *, line: str | None = None, wait_s: float = 120.0) -> Delivered:
    """Deliver what waits. One delivery at a time: raises `Unavailable` when another one still
    runs after `wait_s` seconds."""
    targets = _targets(ws)
    n_delivered, failures = 0, {}
    with ws.registry.delivering(wait_s=wait_s):
        stuck: set[tuple[str, str]] = set()
        for message in ws.registry.pending(line):
            payload = json.loads(message.payload)
            for name, target in targets.items():
                if name in message.done or (message.line, name) in stuck:
                    continue
                try:
                    target(ws, message, payload)
                except Exception as error:  # whatever a target raises, the others go on
                    stuck.add((message.line, name))
                    failures[message.line, name] = _sentence(error)
                    ws.registry.mark_failed(message.id, f"{name}: {_sentence(error)}")
                else:
                    message = ws.registry.mark_done(message, name)
            if message.done >= targets.keys():
                ws.registry.mark_delivered(message.id, now())
                n_delivered += 1
    found = tuple((at_line, name, error) for (at_line, name), error in failures.items())
    return Delivered(n_delivered=n_delivered, failures=found)


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
    try:
        pid = os.posix_spawn(sys.executable, argv, environ, file_actions=null, setsid=True)
    except OSError:
        return
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.05)


def _targets(ws: Workspace) -> dict[str, Target]:
    """Those that are set up here, by name."""
    from pairgate.app.review import mlflow_settings

    targets: dict[str, Target] = {}
    if ws.environ.get(POINTER_SETTING):
        targets["pointer"] = _write_pointer
    if ws.environ.get(COMMAND_SETTING):
        targets["command"] = _run_command
    if mlflow_settings(ws) is not None:
        targets["mlflow"] = _mirror
    return targets


def _mirror(ws: Workspace, message: OutboxMessage, payload: Mapping[str, Any]) -> None:
    from pairgate.app.review import deliver_mlflow

    deliver_mlflow(ws, message.kind, payload)


def _write_pointer(ws: Workspace, message: OutboxMessage, payload: Mapping[str, Any]) -> None:
    """DIR/<line>.json: what serving should load. Swapped atomically, never back in time."""
    if message.kind != "head":
        return
    path = Path(ws.environ[POINTER_SETTING]) / f"{message.line}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and json.loads(path.read_text())["sequence"] >= payload["sequence"]:
        return
    document = {
        "line": message.line,
        "production": _pointed(ws, message.line, payload["production"]),
        "previous": _pointed(ws, message.line, payload["previous"]),
        **{k: payload[k] for k in ("sequence", "kind", "at", "profile_digest", "hash")},
    }
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with staged.open("w") as handle:
        json.dump(document, handle, indent=2)
        handle.flush()
        os.fsync(handle.fileno())
    staged.replace(path)


def _pointed(ws: Workspace, line: str, number: int | None) -> dict[str, object] | None:
    if number is None:
        return None
    version = ws.registry.version(VersionRef(line=line, selector=str(number)))
    return {
        "version": version.number,
        "pair_digest": version.pair_digest,
        "target_digest": version.target_digest,
        "method": version.method.value,
    }


def _run_command(ws: Workspace, message: OutboxMessage, payload: Mapping[str, Any]) -> None:
    """Raises `Unavailable` unless the command ends with 0 in time."""
    import subprocess

    said = json.dumps({"id": message.id, "message": message.kind, **payload})
    done = subprocess.run(
        shlex.split(ws.environ[COMMAND_SETTING]),
        input=said,
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise Unavailable(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")


def _sentence(error: Exception) -> str:
    text = error.message if isinstance(error, PairgateError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]
