"""What an operation left, seen from outside: the same words whenever it ran."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from pairgate.app.workspace import Workspace
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.release import fold
from pairgate.errors import PairgateError
from pairgate.store import schema as s

# What has no times in it, of every table whose rows people act on.
_COLUMNS = {
    s.version: ("line", "number", "pair_digest", "state", "withdrawn", "been_production"),
    s.condemned: ("kind", "name"),
    s.decision: ("line", "sequence", "kind", "production", "previous", "version", "reason"),
    s.line: ("name", "revision", "production_version", "previous_version", "disabled_version"),
    s.evaluation: ("line", "version", "attempt", "outcome", "folder"),
    s.profile: ("line", "name", "number", "digest"),
    s.slice_: ("name", "digest"),
    s.policy: ("digest",),
    s.pair: ("digest",),
    s.pin: ("line", "version"),
    s.approval: ("line", "version", "name", "actor"),
    s.outbox: ("line", "kind"),
    s.attempt: ("line", "version", "number", "released"),
}
# Written before what they are for becomes visible: old, new and in between are all right.
_UNDECIDED = re.compile(r"line \('\w+', 0, None, None, None\)")
_FORERUNNERS = ("attempt", "slice", "policy", "profile", "pair", "condemned")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """`visible` is old or new, never between; `rows` and `files` are what must be equal after
    running again."""

    visible: tuple[str, ...]
    rows: tuple[str, ...]
    files: tuple[str, ...]

    def without(self, other: State) -> list[str]:
        """What only this one has."""
        return sorted({*self.rows, *self.files} - {*other.rows, *other.files})


def read_state(ws: Workspace) -> State:
    """Of a registry and its home, without what the next writer or gc takes away."""
    ws.blobs.sweep()
    tables: dict[str, list[str]] = {}
    with ws.registry._read() as connection:
        for table, names in _COLUMNS.items():
            rows = connection.execute(select(*(table.c[name] for name in names))).all()
            if table is s.condemned:
                rows = [row for row in rows if _is_there(ws.home / "store", *row)]
            tables[table.name] = sorted(f"{table.name} {tuple(row)}" for row in rows)
    visible = [row for name, rows in tables.items() if name not in _FORERUNNERS for row in rows]
    return State(
        # A line that nothing was decided about is one that `init` completes.
        visible=tuple(row for row in visible if not _UNDECIDED.match(row)),
        rows=tuple(row for rows in tables.values() for row in rows),
        files=tuple(sorted(_files(ws.home))),
    )


def _is_there(store: Path, kind: str, name: str) -> bool:
    """gc forgets what went in a killed run only after a time: another home may still have it."""
    if kind == "index":
        return name.encode() in (store / "index.json").read_bytes()
    return kind != "blob" or (store / "blobs" / "sha256" / name.removeprefix("sha256:")).is_file()


def _files(home: Path) -> Iterator[str]:
    for path in home.rglob("*"):
        name = str(path.relative_to(home))
        if not name.startswith(("pairgate.db-", "work", "store/hashes")):
            yield name


def problems(ws: Workspace) -> list[str]:
    """Every promise that does not hold; an empty list is a healthy registry."""
    found: list[str] = []
    for head in ws.registry.lines():
        try:
            if fold(head.line, ws.registry.decisions(head.line)) != head:
                found.append(f"{head.line}: the stored head is not what the log says")
        except PairgateError as error:
            found.append(error.message)
        versions = ws.registry.versions(head.line)
        in_production = [v.number for v in versions if v.state == "production"]
        if in_production != ([] if head.production is None else [head.production]):
            found.append(f"{head.line}: {in_production} say that they are production")
        for version in (v for v in versions if v.collected_at is None):
            found += _blob_problems(ws, version.pair_digest)
        for row in ws.registry.evaluations(head.line):
            found += _evidence_problems(ws, row.digest, ws.evaluation_folder(row.folder))
    return found + _index_problems(ws.home / "store") + ws.registry.document_problems()


def _blob_problems(ws: Workspace, digest: str) -> list[str]:
    pair = ws.registry.pair(digest)
    found = [f"{digest}: blob {blob} is missing" for blob in ws.blobs.missing(pair)]
    for entry in (e for model in pair.models for e in model.files):
        try:
            ws.blobs.verify(entry.sha256)
        except PairgateError as error:
            found.append(error.message)
    return found


def _index_problems(store: Path) -> list[str]:
    if not (store / "index.json").exists():
        return []
    manifests = json.loads((store / "index.json").read_bytes())["manifests"]
    found = [m["digest"] for m in manifests]
    blobs = store / "blobs" / "sha256"
    return [
        f"index.json lists {digest}, which is not there"
        for digest in found
        if not (path := blobs / digest.removeprefix("sha256:")).is_file()
        or sha256_digest(path.read_bytes()) != digest
    ] + ([f"index.json lists a manifest twice: {found}"] if len(set(found)) < len(found) else [])


def _evidence_problems(ws: Workspace, digest: str, folder: Path) -> list[str]:
    if folder.name == "x":  # evidence without a replay: tests/release/story.py
        return []
    stored = ws.registry.evaluation(digest).evaluation
    found = [
        f"{folder.name}/{name} is absent"
        for name in ("verdict.json", "report.html")
        if not (folder / name).is_file()
    ]
    for name, promised in stored.provenance.trace_files:
        path = folder / "traces" / name
        if not path.is_file() or sha256_digest(path.read_bytes()) != promised:
            found.append(f"{path} is not the trace that was judged")
    return found
