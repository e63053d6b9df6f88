"""A decision names every profile that it stood on, not only the line's own.

Frozen: a later change is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not in batch mode, which would drop the triggers of the table on SQLite.
    op.add_column("decision", sa.Column("profiles", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    raise NotImplementedError("a history without guards is not offered")
