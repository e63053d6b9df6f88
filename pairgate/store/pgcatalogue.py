"""What PostgreSQL says of a schema, in sentences that two schemas can be compared by.

The other schema is made by the migrations, in a transaction that is rolled back: no list of ours
has to be kept equal to them.
"""

from __future__ import annotations

import re
import secrets

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from pairgate.errors import Unavailable
from pairgate.store.sqlengine import translated
from pairgate.store.sqlschema import migrate

# Each returns (name, definition). Names of the schema itself are taken out afterwards.
_QUERIES = (
    """SELECT 'table ' || c.relname, concat_ws(' ', c.relkind, c.relpersistence, c.relrowsecurity)
       FROM pg_class c WHERE c.relnamespace = :schema AND c.relkind IN ('r', 'p', 'v', 'm', 'f')""",
    """SELECT 'column ' || c.relname || '.' || a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull,
       pg_get_expr(d.adbin, d.adrelid))
       FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
       LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
       WHERE c.relnamespace = :schema AND c.relkind = 'r' AND a.attnum > 0
       AND NOT a.attisdropped""",
    """SELECT 'constraint ' || c.relname || '.' || k.conname,
       concat_ws(' ', pg_get_constraintdef(k.oid), k.convalidated)
       FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
       WHERE c.relnamespace = :schema""",
    """SELECT 'index ' || c.relname, concat_ws(' ', pg_get_indexdef(c.oid), i.indisvalid)
       FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = :schema""",
    """SELECT 'trigger ' || t.tgname, concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
       FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
       WHERE c.relnamespace = :schema AND NOT t.tgisinternal""",
    """SELECT 'trigger of ' || conname || ' on ' || c.relname,
       string_agg(t.tgenabled::text, '' ORDER BY t.tgtype)
       FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
       JOIN pg_constraint k ON k.oid = t.tgconstraint
       WHERE c.relnamespace = :schema GROUP BY conname, c.relname""",
    """SELECT 'function ' || p.proname, p.prosrc FROM pg_proc p
       WHERE p.pronamespace = :schema AND p.proname LIKE 'pairgate%'""",
    """SELECT 'rule ' || r.rulename || ' on ' || c.relname, pg_get_ruledef(r.oid)
       FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE c.relnamespace = :schema""",
)


def catalogue_differences(engine: Engine) -> list[str]:
    """What differs from a schema that the migrations make now.

    Raises `Unavailable` when the role may not make a schema to compare with.
    """
    with translated(engine), engine.connect() as connection, connection.begin() as transaction:
        try:
            found = _catalogue(connection, connection.scalar(text("SELECT current_schema()")))
            name = f"pairgate_audit_{secrets.token_hex(8)}"
            _make_schema(connection, name)
            expected = _catalogue(connection, name)
        finally:
            transaction.rollback()
    return [
        f"{key} is {'missing' if key not in found else 'not as the migrations made it'}"
        for key in sorted(expected)
        if found.get(key) != expected[key]
    ] + [f"{key} is not of pairgate" for key in sorted(found.keys() - expected.keys())]


def _make_schema(connection: Connection, name: str) -> None:
    try:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    except ProgrammingError as error:
        raise Unavailable(
            "the role may not make a schema, so that the tables and triggers cannot be compared",
            hint="run it as the owner of the database",
        ) from error
    connection.execute(text(f"SET LOCAL search_path = {name}"))
    migrate(connection)


def _catalogue(connection: Connection, schema: str | None) -> dict[str, str]:
    """Read while the schema is the search path, so that names in it are not qualified."""
    oid = connection.scalar(
        text("SELECT oid FROM pg_namespace WHERE nspname = :name"), {"name": schema}
    )
    found = {}
    for query in _QUERIES:
        for key, definition in connection.execute(text(query), {"schema": oid}):
            found[key] = re.sub(rf"\b{schema}\.", "", definition)
    return found
