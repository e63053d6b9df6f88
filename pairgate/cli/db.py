"""`db`: the schema of the registry's database."""

from __future__ import annotations

import click

from pairgate.cli.output import echo_json, json_option, note, workspace


@click.group(epilog="Example: pairgate db upgrade")
def db() -> None:
    """The database's schema."""


@db.command(epilog="Example: pairgate --database-url postgresql://ci@db/pairgate db upgrade")
@click.pass_context
def upgrade(ctx: click.Context) -> None:
    """Make the schema, or bring it to this release's revision.

    A new SQLite registry makes its own; a PostgreSQL database, and a registry of an older
    release, wait for this command. Make a backup first. Two upgrades at once take turns.
    """
    from pairgate.store.sqlschema import current_revision, upgrade

    engine = workspace(ctx, create=True).registry.engine
    before = current_revision(engine)
    after = upgrade(engine)
    note(f"already at {after}" if before == after else f"{before or 'empty'} -> {after}")


@db.command(epilog="Example: pairgate db current --json")
@json_option
@click.pass_context
def current(ctx: click.Context, as_json: bool) -> None:
    """The revision of the database, and the one that this release needs."""
    from pairgate.store.schema import HEAD_REVISION
    from pairgate.store.sqlerrors import shown
    from pairgate.store.sqlschema import current_revision

    engine = workspace(ctx).registry.engine
    found = current_revision(engine)
    if as_json:
        return echo_json({"database": shown(engine), "revision": found, "needed": HEAD_REVISION})
    click.echo(f"database  {shown(engine)}")
    click.echo(f"revision  {found or 'no schema yet'}")
    click.echo(f"needed    {HEAD_REVISION}")
    return None
