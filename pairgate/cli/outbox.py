"""`outbox`: what waits for the outside world."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, note, table, workspace
from pairgate.errors import Unavailable

if TYPE_CHECKING:
    from pairgate.app.outbox import Delivered

_target = click.option("--target", metavar="NAME", help="Only this one: pointer, command, …")


@click.group(
    invoke_without_command=True, epilog="Example: pairgate outbox && pairgate outbox deliver"
)
@click.pass_context
def outbox(ctx: click.Context) -> None:
    """Deliver what waits for the outside world.

    Without a command it prints what waits.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_, line=None, as_json=False)


@outbox.command(
    epilog="Example: pairgate outbox deliver code-assistant\n\n"
    "Example: pairgate outbox deliver --retry-for 300"
)
@click.argument("line", required=False)
@click.option(
    "--retry-for",
    "retry_for_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Stay this long and deliver what becomes due, too.",
)
@click.pass_context
def deliver(ctx: click.Context, line: str | None, retry_for_s: float) -> None:
    """Bring waiting messages to the pointer file, a command, a webhook and MLflow.

    PAIRGATE_POINTER_DIR names the folder of pointer files, PAIRGATE_DELIVERY_COMMAND a command
    that gets each message as JSON, PAIRGATE_WEBHOOK_URL an HTTPS endpoint. Promote and rollback
    start this by themselves; PAIRGATE_DELIVERY=off turns that off. A target that failed is left
    alone for a while, twice as long each time up to an hour.
    """
    from pairgate.app.outbox import deliver as use_case

    _report(use_case(workspace(ctx), line=line, retry_for_s=retry_for_s))


@outbox.command(epilog="Example: pairgate outbox retry 17 --target webhook")
@click.argument("message_id", metavar="[ID]", type=int, required=False)
@_target
@click.pass_context
def retry(ctx: click.Context, message_id: int | None, target: str | None) -> None:
    """Deliver now, without waiting for the next try."""
    from pairgate.app.outbox import retry as use_case

    _report(use_case(workspace(ctx), message_id, target=target))


@outbox.command(
    epilog="Example: pairgate outbox drop 17 --reason 'the receiver cannot read it'\n\n"
    "Example: pairgate outbox drop --target webhook --reason 'we have none any more'"
)
@click.argument("message_id", metavar="[ID]", type=int, required=False)
@_target
@click.option("--reason", required=True, help="Why; it stays in the history.")
@click.pass_context
def drop(ctx: click.Context, message_id: int | None, target: str | None, reason: str) -> None:
    """Give up on a message, or on all that one target lacks.

    Who did it and why is a decision in the history of the line.
    """
    from pairgate.app.outbox import drop as use_case

    made = use_case(workspace(ctx), reason, message_id, target=target)
    for decision in made:
        note(f"{decision.line}: decision {decision.sequence}: {decision.reason}")
    click.echo(f"{len(made)} dropped")


@outbox.command("list", epilog="Example: pairgate outbox list --json")
@click.argument("line", required=False)
@json_option
@click.pass_context
def list_(ctx: click.Context, line: str | None, as_json: bool) -> None:
    """What is not delivered yet, oldest first, by target."""
    from pairgate.app.outbox import waiting

    found = waiting(workspace(ctx), line)
    if as_json:
        return echo_json([asdict(entry) for entry in found])
    if not found:
        return note("nothing waits")
    table(
        ("id", "line", "message", "since", "target", "tries", "next try", "last error"),
        [
            (
                entry.message.id,
                entry.message.line,
                entry.message.kind,
                entry.message.created_at[:19],
                f"{entry.delivery.target}{'' if entry.is_set_up else ' (not set up here)'}".strip(),
                entry.delivery.n_tries,
                "held" if entry.delivery.state == "held" else entry.delivery.next_try_at[:19],
                entry.delivery.last_error,
            )
            for entry in found
        ],
    )
    return None


def _report(done: Delivered) -> None:
    note(f"{done.n_delivered} delivered")
    if done.failures:
        for failure in done.failures:
            note(str(failure))
        raise Unavailable(
            "not everything could be delivered",
            hint="it stays in the outbox; see it with: pairgate outbox list",
        )
