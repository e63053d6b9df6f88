"""Where the files lie that pairgate only references: content stays, its place may change.

Frozen: a later change is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

KEPT = "a reference is kept, for the pairs that stand on it"
FIXED = "the content of a reference is fixed"
THERE = "this reference is there already"


def upgrade() -> None:
    op.create_table(
        "reference",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("hashed_by", sa.String(), nullable=False),
        sa.Column("recorded_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_reference")),
    )
    postgresql = op.get_bind().dialect.name == "postgresql"
    for statement in _postgresql_guards() if postgresql else _sqlite_guards():
        op.execute(sa.text(statement))


def downgrade() -> None:
    raise NotImplementedError("a history without guards is not offered")


def _sqlite_guards() -> tuple[str, ...]:
    guard = "CREATE TRIGGER guard_reference_{} BEFORE {} ON reference WHEN {}"
    refuse = "\nBEGIN SELECT RAISE(ABORT, '{}'); END"
    changed = " OR ".join(f"NEW.{x} IS NOT OLD.{x}" for x in ("rowid", "digest", "size"))
    # INSERT OR REPLACE deletes the row in its way without a DELETE trigger (0002_guards.py).
    taken = "EXISTS (SELECT 1 FROM reference WHERE digest = NEW.digest OR rowid = NEW.rowid)"
    return (
        guard.format("delete", "DELETE", "1") + refuse.format(KEPT),
        guard.format("update", "UPDATE", changed) + refuse.format(FIXED),
        guard.format("replace", "INSERT", taken) + refuse.format(THERE),
    )


def _postgresql_guards() -> tuple[str, ...]:
    guard = "CREATE TRIGGER guard_reference_{} BEFORE {} ON reference FOR EACH {}"
    refuse = " EXECUTE FUNCTION pairgate_refuse('{}')"
    changed = " WHEN (NEW.digest IS DISTINCT FROM OLD.digest OR NEW.size IS DISTINCT FROM OLD.size)"
    return (
        guard.format("delete", "DELETE", "ROW") + refuse.format(KEPT),
        guard.format("update", "UPDATE", "ROW") + changed + refuse.format(FIXED),
        guard.format("truncate", "TRUNCATE", "STATEMENT") + refuse.format(KEPT),
    )
