"""What garbage collection needs: what it condemned, what is in flight, and collected versions.

Guards come with it. A version's flags follow the line's head, and what a line or a pin names is
never collected; a pin goes only by a decision. Frozen: a later change is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "condemned",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("n_bytes", sa.BigInteger(), nullable=False),
        sa.Column("condemned_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_condemned")),
    )
    op.create_table(
        "flight",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("claims", sa.Text(), server_default="[]", nullable=False),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flight")),
    )
    # Not in batch mode, which would drop the triggers of the table on SQLite.
    op.add_column("version", sa.Column("collected_at", sa.String(), nullable=True))
    op.add_column("version", sa.Column("renewed_at", sa.String(), nullable=True))
    postgresql = op.get_bind().dialect.name == "postgresql"
    for statement in _postgresql_guards() if postgresql else _sqlite_guards():
        op.execute(sa.text(statement))


def downgrade() -> None:
    raise NotImplementedError("a history without guards is not offered")


# {same} is IS on SQLite and IS NOT DISTINCT FROM on PostgreSQL.
NEW_VERSION_IN_USE = (
    "NEW.state <> 'ready' OR NEW.withdrawn OR NEW.been_production OR NEW.collected_at IS NOT NULL"
)
LAST_KIND = "(SELECT d.kind FROM decision d WHERE d.line = l.name AND d.sequence = l.revision)"
NOT_AS_THE_HEAD_SAYS = (
    "NOT EXISTS (SELECT 1 FROM line l WHERE l.name = NEW.line"
    " AND NEW.state = CASE WHEN NEW.number = l.production_version THEN 'production'"
    " WHEN NEW.number = l.disabled_version THEN 'disabled'"
    " WHEN NEW.number = l.previous_version THEN 'previous'"
    " WHEN NEW.withdrawn THEN 'withdrawn' ELSE 'ready' END"
    " AND (NEW.been_production OR NOT OLD.been_production)"
    " AND (OLD.been_production OR NOT NEW.been_production OR NEW.number = l.production_version)"
    " AND (NEW.withdrawn OR NOT OLD.withdrawn OR NEW.number = l.production_version)"
    f" AND (OLD.withdrawn OR NOT NEW.withdrawn OR {LAST_KIND} = 'rollback'))"
)
COLLECTED_IN_USE = (
    "NEW.collected_at IS NOT NULL AND (NEW.state <> 'ready' OR NEW.withdrawn OR EXISTS"
    " (SELECT 1 FROM pin p WHERE p.line = NEW.line AND p.version = NEW.number))"
)
HEAD_NAMES_COLLECTED = (
    "EXISTS (SELECT 1 FROM version v WHERE v.line = NEW.name AND v.collected_at IS NOT NULL"
    " AND v.number IN (NEW.production_version, NEW.previous_version, NEW.disabled_version))"
)
DISABLED_NOT_BY_DECISION = (
    "NOT (NEW.disabled_version {same} CASE WHEN NEW.revision = OLD.revision"
    " THEN OLD.disabled_version ELSE (SELECT CASE WHEN d.kind = 'disable'"
    " THEN OLD.production_version WHEN d.kind IN ('promote', 'rollback', 'enable') THEN NULL"
    " ELSE OLD.disabled_version END FROM decision d"
    " WHERE d.line = NEW.name AND d.sequence = NEW.revision) END)"
)
NOT_LAST_DECISION = (
    "NOT EXISTS (SELECT 1 FROM decision d JOIN line l ON l.name = d.line"
    " AND l.revision = d.sequence WHERE d.line = {row}.line AND d.version = {row}.version"
    " AND d.kind = '{kind}')"
)
PIN_COLLECTED = (
    "EXISTS (SELECT 1 FROM version v WHERE v.line = NEW.line AND v.number = NEW.version"
    " AND v.collected_at IS NOT NULL)"
)
PIN_THERE = (
    "EXISTS (SELECT 1 FROM pin p WHERE p.line = NEW.line AND p.version = NEW.version"
    " OR p.rowid = NEW.rowid)"
)
# name, event, table, condition, message
GUARDS = (
    ("version_new", "INSERT", "version", NEW_VERSION_IN_USE, "a version begins as ready"),
    (
        "version_flags",
        "UPDATE",
        "version",
        NOT_AS_THE_HEAD_SAYS,
        "the flags of a version follow the head of its line",
    ),
    (
        "version_collected",
        "UPDATE",
        "version",
        COLLECTED_IN_USE,
        "a protected version is never collected",
    ),
    (
        "line_collected",
        "UPDATE",
        "line",
        HEAD_NAMES_COLLECTED,
        "a collected version has no files to serve",
    ),
    (
        "line_disabled",
        "UPDATE",
        "line",
        DISABLED_NOT_BY_DECISION,
        "the disabled version changes only by a decision",
    ),
    (
        "pin_by_decision",
        "INSERT",
        "pin",
        f"{NOT_LAST_DECISION.format(row='NEW', kind='pin')} OR {PIN_COLLECTED}",
        "a version is pinned only by a decision",
    ),
    (
        "pin_delete",
        "DELETE",
        "pin",
        NOT_LAST_DECISION.format(row="OLD", kind="unpin"),
        "a pin goes only by a decision",
    ),
)
PIN_FIXED = "a row of pin is never changed"


def _sqlite_guards() -> list[str]:
    rows = (
        *GUARDS,
        ("pin_replace", "INSERT", "pin", PIN_THERE, "this pin is there already"),
        ("pin_update", "UPDATE", "pin", "1", PIN_FIXED),
    )
    return [
        f'CREATE TRIGGER guard_{name} BEFORE {event} ON "{table}"'
        f" WHEN {condition.format(same='IS')}\nBEGIN SELECT RAISE(ABORT, '{message}'); END"
        for name, event, table, condition, message in rows
    ]


def _postgresql_guards() -> list[str]:
    """Conditions with a subquery need a function. The line's lock makes them hold between
    transactions too: two that do not see each other's rows yet take turns."""
    statements = []
    for name, event, table, condition, message in GUARDS:
        row = "OLD" if event == "DELETE" else "NEW"
        key = "name" if table == "line" else "line"
        statements += [
            f"CREATE FUNCTION pairgate_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" PERFORM 1 FROM line WHERE name = {row}.{key} FOR UPDATE;"
            f" IF {condition.format(same='IS NOT DISTINCT FROM')} THEN RAISE EXCEPTION"
            f" '{message}' USING ERRCODE = 'restrict_violation'; END IF; RETURN {row}; END $$",
            f"CREATE TRIGGER guard_{name} BEFORE {event} ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION pairgate_{name}()",
        ]
    return [
        *statements,
        "CREATE TRIGGER guard_pin_update BEFORE UPDATE ON pin"
        f" FOR EACH ROW EXECUTE FUNCTION pairgate_refuse('{PIN_FIXED}')",
        "CREATE TRIGGER guard_pin_truncate BEFORE TRUNCATE ON pin"
        " FOR EACH STATEMENT EXECUTE FUNCTION pairgate_refuse('the rows of pin are protected')",
    ]
