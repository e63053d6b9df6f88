"""The registry's tables. The triggers that guard them are in migrations/versions: 0002, 0003.

    line ─< version >─ pair          what exists; a line's row is its lock and its stored head
    reference                        where the files of a pair lie that were not copied
    line ─< profile, slice, policy   what a version is judged on
    attempt, evaluation ─< check     evidence, never changed
    decision                         the append-only log, a hash chain per line
    pin, approval                    what protects, who agreed
    outbox ─< delivery               what waits for the outside, and what each target has of it
    condemned, flight                what gc may delete after the grace; who uses blobs just now

Digests are `sha256:<hex>`, times ISO 8601 text in UTC, documents canonical JSON text.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

HEAD_REVISION = "0006"
"""The Alembic revision that this release reads and writes (a test compares it with migrations/)."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _line_key() -> Column[str]:
    return Column("line", ForeignKey("line.name", ondelete="RESTRICT"), primary_key=True)


def _restrict(columns: list[str], referred: list[str]) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(columns, referred, ondelete="RESTRICT")


def _text(name: str, *, default: str | None = None) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=default)


def _string(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, String, nullable=nullable)


# The stored head of every line: what `fold` makes of its decisions.
line = Table(
    "line",
    metadata,
    Column("name", String, primary_key=True),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("production_version", Integer),
    Column("previous_version", Integer),
    Column("disabled_version", Integer),
    _string("policy_digest", nullable=True),
    _string("slice_digest", nullable=True),
    _string("profile_digest", nullable=True),
    Column("head_hash", String, nullable=False, server_default=""),
    _string("created_at"),
)

pair = Table(
    "pair",
    metadata,
    Column("digest", String, primary_key=True),
    _string("target_digest"),
    _string("method"),
    _text("document"),
    _text("provenance"),
    _string("created_at"),
    _string("verified_at"),
    _text("verify_problem", default=""),
)

version = Table(
    "version",
    metadata,
    _line_key(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("pair_digest", ForeignKey("pair.digest", ondelete="RESTRICT"), nullable=False),
    _string("target_digest"),
    _string("method"),
    Column("state", String, nullable=False, server_default="ready"),
    Column("withdrawn", Boolean, nullable=False, server_default=false()),
    Column("been_production", Boolean, nullable=False, server_default=false()),
    _string("created_at"),
    _string("created_by"),
    # When gc deleted what only this version needed; registering the same files again clears it.
    _string("collected_at", nullable=True),
    # When the same files were registered again last.
    _string("renewed_at", nullable=True),
    UniqueConstraint("line", "pair_digest"),
    CheckConstraint("number >= 1", name="number_positive"),
    CheckConstraint(
        "state IN ('ready', 'production', 'previous', 'disabled', 'withdrawn')",
        name="state_known",
    ),
    # The second guard: whatever the code does, a line never has two production versions.
    Index(
        "uq_version_one_production",
        "line",
        unique=True,
        sqlite_where=text("state = 'production'"),
    ),
)

profile = Table(
    "profile",
    metadata,
    _line_key(),
    Column("name", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _string("digest"),
    _text("document"),
    _string("created_at"),
    UniqueConstraint("line", "digest"),
)

slice_ = Table(
    "slice",
    metadata,
    Column("digest", String, primary_key=True),
    _string("name"),
    Column("n_requests", Integer, nullable=False),
    _text("domains"),
    _string("texts_digest"),
    _string("created_at"),
)

# The digest covers what decides; `document` follows edits of name and advisory rules.
policy = Table(
    "policy",
    metadata,
    Column("digest", String, primary_key=True),
    _string("name"),
    _text("document"),
    _string("created_at"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("id", Integer, primary_key=True),
    _string("line"),
    Column("version", Integer, nullable=False),
    _string("pair_digest"),
    _string("policy_digest"),
    _string("slice_digest"),
    Column("number", Integer, nullable=False),
    Column("released", Boolean, nullable=False, server_default=false()),
    _string("started_at"),
    _restrict(["line", "version"], ["version.line", "version.number"]),
    Index(None, "pair_digest", "policy_digest", "slice_digest"),
)

evaluation = Table(
    "evaluation",
    metadata,
    Column("digest", String, primary_key=True),
    _string("line"),
    Column("version", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("alpha", Float, nullable=False),
    _string("outcome"),
    Column("pair_digest", ForeignKey("pair.digest", ondelete="RESTRICT"), nullable=False),
    _string("target_digest"),
    Column("policy_digest", ForeignKey("policy.digest", ondelete="RESTRICT"), nullable=False),
    Column("slice_digest", ForeignKey("slice.digest", ondelete="RESTRICT"), nullable=False),
    _string("profile_digest"),
    _string("engine"),
    _string("engine_version"),
    _string("hardware_class"),
    _string("incumbent_digest", nullable=True),
    _text("recommendation"),
    _text("folder"),
    _string("measured_at"),
    _string("created_at"),
    _text("document"),
    _text("verdict"),
    _restrict(["line", "version"], ["version.line", "version.number"]),
    _restrict(["line", "profile_digest"], ["profile.line", "profile.digest"]),
    CheckConstraint("outcome IN ('PASS', 'FAIL', 'INCONCLUSIVE', 'ERROR')", name="outcome_known"),
    Index(None, "line", "version"),
)

check = Table(
    "check",
    metadata,
    Column(
        "evaluation_digest",
        ForeignKey("evaluation.digest", ondelete="RESTRICT"),
        primary_key=True,
    ),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _string("rule"),
    _string("scope"),
    _string("mode"),
    _string("outcome"),
    _string("metric"),
    Column("value", Float),
    Column("low", Float),
    Column("high", Float),
    Column("n", Integer),
    Column("threshold", Float),
    _text("reason"),
)

decision = Table(
    "decision",
    metadata,
    _line_key(),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    _string("kind"),
    Column("production", Integer),
    Column("previous", Integer),
    Column("version", Integer),
    _string("at"),
    _string("actor"),
    _string("identity_source"),
    _text("reason"),
    Column("evaluation_digest", ForeignKey("evaluation.digest", ondelete="RESTRICT")),
    _string("incumbent_digest", nullable=True),
    Column("policy_digest", ForeignKey("policy.digest", ondelete="RESTRICT")),
    Column("slice_digest", ForeignKey("slice.digest", ondelete="RESTRICT")),
    _string("profile_digest", nullable=True),
    Column("override", Boolean, nullable=False),
    Column("reinstate", Boolean, nullable=False),
    _string("request_id", nullable=True),
    _text("warnings"),
    _string("previous_hash"),
    _string("hash"),
    _text("profiles", default="[]"),
    UniqueConstraint("line", "request_id"),
    CheckConstraint("sequence >= 1", name="sequence_positive"),
    _restrict(["line", "production"], ["version.line", "version.number"]),
    _restrict(["line", "previous"], ["version.line", "version.number"]),
    _restrict(["line", "version"], ["version.line", "version.number"]),
    _restrict(["line", "profile_digest"], ["profile.line", "profile.digest"]),
)

pin = Table(
    "pin",
    metadata,
    _line_key(),
    Column("version", Integer, primary_key=True, autoincrement=False),
    _text("reason"),
    _string("actor"),
    _string("created_at"),
    _restrict(["line", "version"], ["version.line", "version.number"]),
)

approval = Table(
    "approval",
    metadata,
    Column("id", Integer, primary_key=True),
    Column(
        "evaluation_digest", ForeignKey("evaluation.digest", ondelete="RESTRICT"), nullable=False
    ),
    _string("line"),
    Column("version", Integer, nullable=False),
    _string("name"),
    _string("actor"),
    _string("identity_source"),
    _string("created_at"),
    UniqueConstraint("evaluation_digest", "name", "actor"),
    _restrict(["line", "version"], ["version.line", "version.number"]),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("line", ForeignKey("line.name", ondelete="RESTRICT"), nullable=False),
    _string("kind"),
    _text("payload"),
    _string("created_at"),
    _string("delivered_at", nullable=True),
    Index(
        "ix_outbox_pending",
        "line",
        "id",
        sqlite_where=text("delivered_at IS NULL"),
    ),
)

# One row per message and target that has tried it; `held` waits for a person.
delivery = Table(
    "delivery",
    metadata,
    Column("message_id", ForeignKey("outbox.id", ondelete="RESTRICT"), primary_key=True),
    Column("target", String, primary_key=True),
    _string("state"),
    Column("n_tries", Integer, nullable=False, server_default="0"),
    _text("last_error", default=""),
    Column("next_try_at", String, nullable=False, server_default=""),
    _string("changed_at"),
    CheckConstraint("state IN ('waiting', 'held', 'done', 'dropped')", name="state_known"),
)

# What no root reached when gc last looked: version, blob, index, evaluation, slice or work.
condemned = Table(
    "condemned",
    metadata,
    Column("kind", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("n_bytes", BigInteger, nullable=False),
    _string("condemned_at"),
)

# A registration or a run under way; `claims` are the digests of the blobs that it needs.
flight = Table(
    "flight",
    metadata,
    Column("id", String, primary_key=True),
    _string("kind"),
    _string("subject"),
    _text("claims", default="[]"),
    _string("started_at"),
    _string("expires_at"),
)


# Where content lies that pairgate references and did not copy. Files may move: the row follows
# the newest registration, and no digest covers it.
reference = Table(
    "reference",
    metadata,
    Column("digest", String, primary_key=True),
    _text("uri"),
    Column("size", BigInteger, nullable=False),
    _text("version_id"),
    _string("hashed_by"),
    _string("recorded_at"),
)


def with_postgresql_predicates() -> MetaData:
    """The metadata with the partial indexes' PostgreSQL predicates filled in.

    Only migrations need them, and naming them in the tables above would import that dialect (a
    sixth of the time of `status`) in every command.
    """
    for table in metadata.tables.values():
        for index in table.indexes:
            predicate = index.dialect_options["sqlite"]["where"]
            index.dialect_options["postgresql"]["where"] = predicate
    return metadata
