"""A registry as releases wrote it, row by row.

rows_0002.json was written by the last release whose schema is 0002 (0001 has the same tables): one
line, promoted, rolled back, disabled and overridden, with evidence, approvals, a pin and messages
in every state of delivery. Never edited: it is what old databases hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, insert, text

from pairgate.store.sqlengine import writing
from pairgate.store.sqlschema import migrations_folder, upgrade

ROWS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "rows_0002.json").read_text("utf-8")
)
# What a later revision's own tables held before the next one, by the revision that made them.
LATER_ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "0003": {
        "condemned": [
            {"kind": "blob", "name": "sha256:0", "n_bytes": 1 << 40, "condemned_at": "2026-11-30"}
        ],
        "flight": [
            {
                "id": "f",
                "kind": "run",
                "subject": "code@1",
                "claims": "[]",
                "started_at": "2026-11-30",
                "expires_at": "2026-12-07",
            }
        ],
    },
}


def revisions() -> list[str]:
    """Every revision, oldest first."""
    scripts = ScriptDirectory(str(migrations_folder()))
    return [script.revision for script in reversed(list(scripts.walk_revisions()))]


def at_revision(engine: Engine, revision: str) -> None:
    """Bring an empty database to `revision`, with the rows that it would hold then."""
    first, *later = revisions()
    upgrade(engine, first)
    with writing(engine) as connection:
        _insert(connection, ROWS)
    for step in later[: later.index(revision) + 1] if revision != first else []:
        upgrade(engine, step)
        with writing(engine) as connection:
            _insert(connection, LATER_ROWS.get(step, {}))


def _insert(connection: Connection, rows: dict[str, list[dict[str, Any]]]) -> None:
    tables = MetaData()
    tables.reflect(connection, only=list(rows))
    for name, values in rows.items():
        if not values:
            continue
        table = tables.tables[name]
        connection.execute(insert(table), values)
        if connection.dialect.name == "postgresql" and "id" in table.c and name != "flight":
            # Rows that bring their numbers do not move the sequence (as after COPY).
            newest = f"(SELECT max(id) FROM {name})"
            sequence = f"pg_get_serial_sequence('{name}', 'id')"
            connection.execute(text(f"SELECT setval({sequence}, {newest})"))
