"""The triggers that guard the history and everything it stands on.

Raw SQL from any connection meets them, with any pragmas; only a change of the schema gets round
them, and `pairgate audit verify` finds that. Frozen: a later change is a new revision. Batch mode
of a later revision would drop the triggers of the table that it rebuilds on SQLite.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    for statement in _postgresql_guards() if postgresql else _sqlite_guards():
        op.execute(sa.text(statement))


def downgrade() -> None:
    raise NotImplementedError("a history without guards is not offered")


# Rows that are written once.
FROZEN = ("decision", "evaluation", "check", "approval", "profile", "slice")
# Columns that never change, of tables with others that do.
FROZEN_COLUMNS = {
    "line": ("name", "created_at"),
    "pair": ("digest", "target_digest", "method", "document", "provenance", "created_at"),
    "version": ("line", "number", "pair_digest", "target_digest", "method", "created_at"),
    "policy": ("digest",),
    "attempt": (
        "id",
        "line",
        "version",
        "pair_digest",
        "policy_digest",
        "slice_digest",
        "number",
        "started_at",
    ),
}
# Foreign keys say the same, but SQLite forgets them wherever `PRAGMA foreign_keys` is off.
UNDELETABLE = {
    "line": "EXISTS (SELECT 1 FROM version WHERE line = OLD.name)"
    " OR EXISTS (SELECT 1 FROM decision WHERE line = OLD.name)",
    "pair": "EXISTS (SELECT 1 FROM version WHERE pair_digest = OLD.digest)",
    "version": "OLD.state <> 'ready' OR OLD.been_production OR OLD.withdrawn"
    " OR EXISTS (SELECT 1 FROM decision d WHERE d.line = OLD.line"
    " AND OLD.number IN (d.production, d.previous, d.version))"
    " OR EXISTS (SELECT 1 FROM pin p WHERE p.line = OLD.line AND p.version = OLD.number)"
    " OR EXISTS (SELECT 1 FROM evaluation e WHERE e.line = OLD.line AND e.version = OLD.number)",
    "policy": "EXISTS (SELECT 1 FROM decision WHERE policy_digest = OLD.digest)"
    " OR EXISTS (SELECT 1 FROM evaluation WHERE policy_digest = OLD.digest)",
    "attempt": "1",
}
# INSERT OR REPLACE deletes the row that is in its way, and with recursive_triggers off no DELETE
# trigger sees it. So each unique key refuses the second INSERT itself, SQLite's hidden rowid too.
UNIQUE_KEYS = {
    "line": (("name",),),
    "pair": (("digest",),),
    "version": (("line", "number"), ("line", "pair_digest")),
    "policy": (("digest",),),
    "profile": (("line", "name", "number"), ("line", "digest")),
    "slice": (("digest",),),
    "attempt": (("id",),),
    "evaluation": (("digest",),),
    "check": (("evaluation_digest", "position"),),
    "decision": (("line", "sequence"), ("line", "request_id")),
    "approval": (("id",), ("evaluation_digest", "name", "actor")),
}
SECOND_PRODUCTION = (
    "NEW.state = 'production' AND EXISTS (SELECT 1 FROM version"
    " WHERE line = NEW.line AND state = 'production' AND number <> NEW.number)"
)
NOT_NEXT_LINK = (
    "NOT EXISTS (SELECT 1 FROM line WHERE name = NEW.line"
    " AND revision = NEW.sequence - 1 AND head_hash = NEW.previous_hash)"
)
# {same} is IS on SQLite and IS NOT DISTINCT FROM on PostgreSQL.
NOT_LAST_DECISION = (
    "NOT EXISTS (SELECT 1 FROM decision d WHERE d.line = NEW.name"
    " AND d.sequence = NEW.revision AND d.hash = NEW.head_hash"
    " AND d.production {same} NEW.production_version AND d.previous {same} NEW.previous_version"
    " AND d.policy_digest {same} NEW.policy_digest AND d.slice_digest {same} NEW.slice_digest"
    " AND d.profile_digest {same} NEW.profile_digest)"
    " OR EXISTS (SELECT 1 FROM decision d WHERE d.line = NEW.name AND d.sequence > NEW.revision)"
)
NOT_EMPTY_HEAD = (
    "NEW.revision <> 0 OR NEW.head_hash <> '' OR NEW.production_version IS NOT NULL"
    " OR NEW.previous_version IS NOT NULL OR NEW.disabled_version IS NOT NULL"
)


def _sqlite_guards() -> list[str]:
    guards: list[str] = []

    def guard(name: str, event: str, table: str, when: str, message: str) -> None:
        guards.append(
            f'CREATE TRIGGER guard_{name} BEFORE {event} ON "{table}" WHEN {when}\n'
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    for table in FROZEN:
        guard(f"{table}_update", "UPDATE", table, "1", f"a row of {table} is never changed")
        guard(f"{table}_delete", "DELETE", table, "1", f"a row of {table} is never deleted")
    for table, columns in FROZEN_COLUMNS.items():
        changed = " OR ".join(f"NEW.{c} IS NOT OLD.{c}" for c in ("rowid", *columns))
        guard(f"{table}_update", "UPDATE", table, changed, f"the content of a {table} is fixed")
    for table, condition in UNDELETABLE.items():
        guard(f"{table}_delete", "DELETE", table, condition, f"this {table} is protected")
    for table, keys in UNIQUE_KEYS.items():
        same = " OR ".join(
            "(" + " AND ".join(f"{column} = NEW.{column}" for column in key) + ")" for key in keys
        )
        taken = f'EXISTS (SELECT 1 FROM "{table}" WHERE {same} OR rowid = NEW.rowid)'
        guard(f"{table}_replace", "INSERT", table, taken, f"this {table} is there already")
    second = "the line has a production version already"
    guard("version_second_insert", "INSERT", "version", SECOND_PRODUCTION, second)
    guard("version_second_update", "UPDATE", "version", SECOND_PRODUCTION, second)
    guard(
        "decision_chain", "INSERT", "decision", NOT_NEXT_LINK, "not the next decision of the line"
    )
    guard(
        "line_head",
        "UPDATE",
        "line",
        NOT_LAST_DECISION.format(same="IS"),
        "the head of a line moves only by its last decision",
    )
    guard("line_empty", "INSERT", "line", NOT_EMPTY_HEAD, "a line begins without decisions")
    return guards


def _postgresql_guards() -> list[str]:
    guards = [
        "CREATE FUNCTION pairgate_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END $$",
        "CREATE FUNCTION pairgate_next_link() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {NOT_NEXT_LINK} THEN RAISE EXCEPTION 'not the next decision of the line'"
        " USING ERRCODE = 'restrict_violation'; END IF; RETURN NEW; END $$",
        "CREATE FUNCTION pairgate_last_decision() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {NOT_LAST_DECISION.format(same='IS NOT DISTINCT FROM')} THEN RAISE EXCEPTION"
        " 'the head of a line moves only by its last decision'"
        " USING ERRCODE = 'restrict_violation'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER guard_decision_chain BEFORE INSERT ON decision"
        " FOR EACH ROW EXECUTE FUNCTION pairgate_next_link()",
        "CREATE TRIGGER guard_line_head BEFORE UPDATE ON line"
        " FOR EACH ROW EXECUTE FUNCTION pairgate_last_decision()",
    ]

    def refuse(name: str, event: str, table: str, message: str, when: str = "") -> None:
        each = "STATEMENT" if event == "TRUNCATE" else "ROW"
        condition = f" WHEN ({when})" if when else ""
        guards.append(
            f'CREATE TRIGGER guard_{name} BEFORE {event} ON "{table}" FOR EACH {each}{condition}'
            f" EXECUTE FUNCTION pairgate_refuse('{message}')"
        )

    for table in FROZEN:
        refuse(f"{table}_update", "UPDATE", table, f"a row of {table} is never changed")
        refuse(f"{table}_delete", "DELETE", table, f"a row of {table} is never deleted")
    for table, columns in FROZEN_COLUMNS.items():
        changed = " OR ".join(f"NEW.{c} IS DISTINCT FROM OLD.{c}" for c in columns)
        refuse(f"{table}_update", "UPDATE", table, f"the content of a {table} is fixed", changed)
    # The other references are foreign keys, which PostgreSQL always enforces.
    used = "OLD.state <> 'ready' OR OLD.been_production OR OLD.withdrawn"
    refuse("version_delete", "DELETE", "version", "this version is protected", used)
    refuse("attempt_delete", "DELETE", "attempt", "this attempt is protected")
    refuse("line_empty", "INSERT", "line", "a line begins without decisions", NOT_EMPTY_HEAD)
    for table in UNIQUE_KEYS:
        refuse(f"{table}_truncate", "TRUNCATE", table, f"the rows of {table} are protected")
    return guards
