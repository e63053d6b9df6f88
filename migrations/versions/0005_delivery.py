"""What each target has of each message: tried, delivered, waiting for its next try, or dropped.

Frozen: a later change is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "delivery",
        sa.Column("message_id", sa.Integer(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("n_tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_error", sa.Text(), server_default="", nullable=False),
        sa.Column("next_try_at", sa.String(), server_default="", nullable=False),
        sa.Column("changed_at", sa.String(), nullable=False),
        sa.CheckConstraint(
            "state IN ('waiting', 'held', 'done', 'dropped')", name=op.f("ck_delivery_state_known")
        ),
        sa.ForeignKeyConstraint(
            ["message_id"],
            ["outbox.id"],
            name=op.f("fk_delivery_message_id_outbox"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("message_id", "target", name=op.f("pk_delivery")),
    )
    _keep_what_was_delivered(op.get_bind())
    # Not in batch mode, which would rebuild the table; SQLite drops columns itself since 3.35.
    for column in ("done", "n_tries", "last_error"):
        op.drop_column("outbox", column)


def _keep_what_was_delivered(connection: sa.Connection) -> None:
    waiting = sa.text("SELECT id, done, created_at FROM outbox WHERE delivered_at IS NULL")
    for message_id, done, created_at in connection.execute(waiting).all():
        for target in done.split():
            connection.execute(
                sa.text(
                    "INSERT INTO delivery (message_id, target, state, changed_at)"
                    " VALUES (:message_id, :target, 'done', :changed_at)"
                ),
                {"message_id": message_id, "target": target, "changed_at": created_at},
            )


def downgrade() -> None:
    raise NotImplementedError("a history without guards is not offered")
