"""Where messages go: the pointer file, a command, a webhook, the MLflow mirror.

A target is a function that takes a message and returns when the outside has it, or raises. Each
may get the same message again, with the same key, and must be right then too.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairgate.app import webhook
from pairgate.domain.canonical import canonical_json, digest_of
from pairgate.domain.pair import VersionRef
from pairgate.errors import Unavailable

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.records import OutboxMessage

POINTER_SETTING = "PAIRGATE_POINTER_DIR"
COMMAND_SETTING = "PAIRGATE_DELIVERY_COMMAND"
COMMAND_TIMEOUT_S = 60.0
_SECRETS = (webhook.SECRET_SETTING, webhook.SECRET_FILE_SETTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A message on its way to one target. `key` is the same whenever it is sent again."""

    message: OutboxMessage
    payload: Mapping[str, Any]
    key: str


Target = Callable[["Workspace", Parcel], None]


def targets(ws: Workspace) -> dict[str, Target]:
    """Those that are set up here, by name, the quickest first."""
    from pairgate.app.review import mlflow_settings

    found: dict[str, Target] = {}
    if ws.environ.get(POINTER_SETTING):
        found["pointer"] = write_pointer
    if ws.environ.get(COMMAND_SETTING):
        found["command"] = _run_command
    if ws.environ.get(webhook.URL_SETTING):
        found["webhook"] = _send_webhook
    if mlflow_settings(ws) is not None:
        found["mlflow"] = _mirror
    return found


def parcel(message: OutboxMessage, target: str) -> Parcel:
    """The message with its key, which no other message and no other target has."""
    identity = (message.id, message.line, message.kind, message.created_at, message.payload, target)
    key = f"msg_{digest_of(identity).removeprefix('sha256:')[:32]}"
    return Parcel(message=message, payload=json.loads(message.payload), key=key)


def write_pointer(ws: Workspace, parcel: Parcel) -> None:
    """DIR/<line>.json: what serving should load. Swapped atomically, never back in time."""
    message, payload = parcel.message, parcel.payload
    if message.kind != "head":
        return
    path = Path(ws.environ[POINTER_SETTING]) / f"{message.line}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if _sequence_of(path) >= payload["sequence"]:
        return
    document = {
        "line": message.line,
        "production": _pointed(ws, message.line, payload["production"]),
        "previous": _pointed(ws, message.line, payload["previous"]),
        "profiles": _profiles(ws, message.line, payload),
        **{k: payload[k] for k in ("sequence", "kind", "at", "profile_digest", "hash")},
    }
    fd, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(fd, "w") as handle:
            os.fchmod(fd, 0o644)
            json.dump(document, handle, indent=2)
            handle.flush()
            os.fsync(fd)
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise


def _sequence_of(path: Path) -> int:
    """That of the pointer file; -1 for none, or one that somebody broke: it is written anew."""
    try:
        found = json.loads(path.read_bytes())["sequence"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1
    return found if isinstance(found, int) else -1


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


def _profiles(ws: Workspace, line: str, payload: Mapping[str, Any]) -> list[dict[str, str]]:
    """What production is served on, the line's own profile first."""
    labels = {row.digest: str(row) for row in ws.registry.profiles(line)}
    # A message that waited since an older pairgate names the own profile only.
    digests = [payload["profile_digest"], *payload.get("profiles", ())]
    return [{"profile": labels[d], "digest": d} for d in digests if d in labels]


def _run_command(ws: Workspace, parcel: Parcel) -> None:
    """Raises `Unavailable` unless the command ends with 0 in time; its children end with it."""
    import subprocess

    said = {"id": parcel.message.id, "key": parcel.key, "message": parcel.message.kind}
    environ = {name: value for name, value in ws.environ.items() if name not in _SECRETS}
    # Files, not pipes: a child of the command that keeps a pipe open could not be waited for.
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(json.dumps({**said, **parcel.payload}).encode())
        stdin.seek(0)
        process = subprocess.Popen(
            shlex.split(ws.environ[COMMAND_SETTING]),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environ,
            start_new_session=True,
        )
        try:
            code = process.wait(COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"still running after {COMMAND_TIMEOUT_S:g} s, ended") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 300))
            said_last = stderr.read().decode("utf-8", "replace").strip()
            raise Unavailable(f"exit code {code}: {said_last}")


def _send_webhook(ws: Workspace, parcel: Parcel) -> None:
    message, payload = parcel.message, parcel.payload
    is_stored = message.kind == "evaluation"
    kind = "evaluation.stored" if is_stored else f"line.{payload['kind']}"
    body = {
        "type": kind,
        "timestamp": message.created_at,
        "data": {"line": message.line, **payload},
    }
    webhook.send(ws.environ, key=parcel.key, body=canonical_json(body))


def _mirror(ws: Workspace, parcel: Parcel) -> None:
    from pairgate.app.review import deliver_mlflow

    if parcel.message.kind == "degradation":
        return  # it is about servers, and MLflow keeps versions
    deliver_mlflow(ws, parcel.message.kind, parcel.payload)
