"""The tables of the registry.

Frozen: a later change is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "line",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("production_version", sa.Integer(), nullable=True),
        sa.Column("previous_version", sa.Integer(), nullable=True),
        sa.Column("disabled_version", sa.Integer(), nullable=True),
        sa.Column("policy_digest", sa.String(), nullable=True),
        sa.Column("slice_digest", sa.String(), nullable=True),
        sa.Column("profile_digest", sa.String(), nullable=True),
        sa.Column("head_hash", sa.String(), server_default="", nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_line")),
    )
    op.create_table(
        "pair",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("target_digest", sa.String(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("provenance", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("verified_at", sa.String(), nullable=False),
        sa.Column("verify_problem", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_pair")),
    )
    op.create_table(
        "policy",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_policy")),
    )
    op.create_table(
        "slice",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("n_requests", sa.Integer(), nullable=False),
        sa.Column("domains", sa.Text(), nullable=False),
        sa.Column("texts_digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_slice")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("delivered_at", sa.String(), nullable=True),
        sa.Column("done", sa.Text(), server_default="", nullable=False),
        sa.Column("n_tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_error", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["line"], ["line.name"], name=op.f("fk_outbox_line_line"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(
        "ix_outbox_pending",
        "outbox",
        ["line", "id"],
        unique=False,
        sqlite_where=sa.text("delivered_at IS NULL"),
        postgresql_where=sa.text("delivered_at IS NULL"),
    )
    op.create_table(
        "profile",
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["line"], ["line.name"], name=op.f("fk_profile_line_line"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("line", "name", "number", name=op.f("pk_profile")),
        sa.UniqueConstraint("line", "digest", name=op.f("uq_profile_line_digest")),
    )
    op.create_table(
        "version",
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("pair_digest", sa.String(), nullable=False),
        sa.Column("target_digest", sa.String(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("state", sa.String(), server_default="ready", nullable=False),
        sa.Column("withdrawn", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("been_production", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.CheckConstraint(
            "state IN ('ready', 'production', 'previous', 'disabled', 'withdrawn')",
            name=op.f("ck_version_state_known"),
        ),
        sa.CheckConstraint("number >= 1", name=op.f("ck_version_number_positive")),
        sa.ForeignKeyConstraint(
            ["line"], ["line.name"], name=op.f("fk_version_line_line"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["pair_digest"],
            ["pair.digest"],
            name=op.f("fk_version_pair_digest_pair"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("line", "number", name=op.f("pk_version")),
        sa.UniqueConstraint("line", "pair_digest", name=op.f("uq_version_line_pair_digest")),
    )
    op.create_index(
        "uq_version_one_production",
        "version",
        ["line"],
        unique=True,
        sqlite_where=sa.text("state = 'production'"),
        postgresql_where=sa.text("state = 'production'"),
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("pair_digest", sa.String(), nullable=False),
        sa.Column("policy_digest", sa.String(), nullable=False),
        sa.Column("slice_digest", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("released", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["line", "version"],
            ["version.line", "version.number"],
            name=op.f("fk_attempt_line_version_version"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
    )
    op.create_index(
        op.f("ix_attempt_pair_digest_policy_digest_slice_digest"),
        "attempt",
        ["pair_digest", "policy_digest", "slice_digest"],
        unique=False,
    )
    op.create_table(
        "evaluation",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("alpha", sa.Float(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("pair_digest", sa.String(), nullable=False),
        sa.Column("target_digest", sa.String(), nullable=False),
        sa.Column("policy_digest", sa.String(), nullable=False),
        sa.Column("slice_digest", sa.String(), nullable=False),
        sa.Column("profile_digest", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("engine_version", sa.String(), nullable=False),
        sa.Column("hardware_class", sa.String(), nullable=False),
        sa.Column("incumbent_digest", sa.String(), nullable=True),
        sa.Column("recommendation", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('PASS', 'FAIL', 'INCONCLUSIVE', 'ERROR')",
            name=op.f("ck_evaluation_outcome_known"),
        ),
        sa.ForeignKeyConstraint(
            ["line", "profile_digest"],
            ["profile.line", "profile.digest"],
            name=op.f("fk_evaluation_line_profile_digest_profile"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line", "version"],
            ["version.line", "version.number"],
            name=op.f("fk_evaluation_line_version_version"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["pair_digest"],
            ["pair.digest"],
            name=op.f("fk_evaluation_pair_digest_pair"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["policy_digest"],
            ["policy.digest"],
            name=op.f("fk_evaluation_policy_digest_policy"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["slice_digest"],
            ["slice.digest"],
            name=op.f("fk_evaluation_slice_digest_slice"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_evaluation")),
    )
    op.create_index(
        op.f("ix_evaluation_line_version"), "evaluation", ["line", "version"], unique=False
    )
    op.create_table(
        "pin",
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["line", "version"],
            ["version.line", "version.number"],
            name=op.f("fk_pin_line_version_version"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line"], ["line.name"], name=op.f("fk_pin_line_line"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("line", "version", name=op.f("pk_pin")),
    )
    op.create_table(
        "approval",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("evaluation_digest", sa.String(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("identity_source", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_digest"],
            ["evaluation.digest"],
            name=op.f("fk_approval_evaluation_digest_evaluation"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line", "version"],
            ["version.line", "version.number"],
            name=op.f("fk_approval_line_version_version"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approval")),
        sa.UniqueConstraint(
            "evaluation_digest",
            "name",
            "actor",
            name=op.f("uq_approval_evaluation_digest_name_actor"),
        ),
    )
    op.create_table(
        "check",
        sa.Column("evaluation_digest", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rule", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("high", sa.Float(), nullable=True),
        sa.Column("n", sa.Integer(), nullable=True),
        sa.Column("threshold", sa.Float(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_digest"],
            ["evaluation.digest"],
            name=op.f("fk_check_evaluation_digest_evaluation"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("evaluation_digest", "position", name=op.f("pk_check")),
    )
    op.create_table(
        "decision",
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("production", sa.Integer(), nullable=True),
        sa.Column("previous", sa.Integer(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("identity_source", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evaluation_digest", sa.String(), nullable=True),
        sa.Column("incumbent_digest", sa.String(), nullable=True),
        sa.Column("policy_digest", sa.String(), nullable=True),
        sa.Column("slice_digest", sa.String(), nullable=True),
        sa.Column("profile_digest", sa.String(), nullable=True),
        sa.Column("override", sa.Boolean(), nullable=False),
        sa.Column("reinstate", sa.Boolean(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.Column("previous_hash", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.CheckConstraint("sequence >= 1", name=op.f("ck_decision_sequence_positive")),
        sa.ForeignKeyConstraint(
            ["evaluation_digest"],
            ["evaluation.digest"],
            name=op.f("fk_decision_evaluation_digest_evaluation"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line", "previous"],
            ["version.line", "version.number"],
            name=op.f("fk_decision_line_previous_version"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line", "production"],
            ["version.line", "version.number"],
            name=op.f("fk_decision_line_production_version"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line", "profile_digest"],
            ["profile.line", "profile.digest"],
            name=op.f("fk_decision_line_profile_digest_profile"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line", "version"],
            ["version.line", "version.number"],
            name=op.f("fk_decision_line_version_version"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["line"], ["line.name"], name=op.f("fk_decision_line_line"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["policy_digest"],
            ["policy.digest"],
            name=op.f("fk_decision_policy_digest_policy"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["slice_digest"],
            ["slice.digest"],
            name=op.f("fk_decision_slice_digest_slice"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("line", "sequence", name=op.f("pk_decision")),
        sa.UniqueConstraint("line", "request_id", name=op.f("uq_decision_line_request_id")),
    )


def downgrade() -> None:
    raise NotImplementedError("the tables hold the history: delete the database instead")
