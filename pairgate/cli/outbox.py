"""`outbox`: what waits for the outside world."""

from __future__ import annotations

from dataclasses import asdict

import click

from pairgate.cli.output import echo_json, json_option, note, table, workspace
from pairgate.errors import Unavailable


@click.group(epilog="Example: pairgate outbox list && pairgate outbox deliver")
def outbox() -> None:
    """Deliver what waits for the outside world."""


@outbox.command(epilog="Example: pairgate outbox deliver code-assistant")
@click.argument("line", required=False)
@click.pass_context
def deliver(ctx: click.Context, line: str | None) -> None:
    """Bring waiting messages to MLflow, to the pointer file and to the command.

    PAIRGATE_POINTER_DIR names the folder of pointer files, PAIRGATE_DELIVERY_COMMAND a command
    that gets each message as JSON. Promote and rollback start this by themselves;
    PAIRGATE_DELIVERY=off turns that off.
    """
    from pairgate.app.outbox import deliver as use_case

    done = use_case(workspace(ctx), line=line)
    note(f"{done.n_delivered} delivered")
    if done.failures:
        for at_line, target, error in done.failures:
            note(f"{at_line}: {target} failed: {error}")
        raise Unavailable(
            "not everything could be delivered", hint="it stays in the outbox; deliver it later"
        )


@outbox.command("list", epilog="Example: pairgate outbox list --json")
@click.argument("line", required=False)
@json_option
@click.pass_context
def list_(ctx: click.Context, line: str | None, as_json: bool) -> None:
    """What is not delivered yet, oldest first."""
    found = workspace(ctx).registry.pending(line)
    if as_json:
        return echo_json([asdict(m) for m in found])
    if not found:
        return note("nothing waits")
    table(
        ("id", "line", "message", "since", "delivered to", "tries", "last error"),
        [
            (m.id, m.line, m.kind, m.created_at[:19], " ".join(sorted(m.done)), m.n_tries,
             m.last_error)
            for m in found
        ],
    )  # fmt: skip
    return None
