"""The release verbs: promote, rollback, disable, enable, pin, unpin, approve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from pairgate.app import release
from pairgate.app.release import Moved
from pairgate.cli.output import echo_json, json_option, note, printable, workspace
from pairgate.domain.pair import VersionRef
from pairgate.domain.records import Approval

_request_id = click.option(
    "--request-id",
    metavar="ID",
    help="Any text that names this request: repeating it changes nothing and ends with 0.",
)
_wait_delivery = click.option(
    "--wait-delivery",
    "wait_delivery_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait this long for MLflow and the other targets (default: not at all).",
)


def _move_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return _request_id(_wait_delivery(json_option(command)))


@click.command(
    epilog="Example: pairgate promote code-assistant@3 --expect-current 2\n\n"
    "Example: pairgate promote code-assistant@3 --override 'incident 4711, approved by the CTO'\n\n"
    "Example: pairgate promote code-assistant@3 --reinstate 'the alarm was false'"
)
@click.argument("version")
@click.option(
    "--expect-current",
    metavar="VERSION|none",
    help="End with 13 unless this is in production now: compare and swap for CI.",
)
@click.option("--override", metavar="REASON", help="Promote without a PASS; shown for ever.")
@click.option("--reinstate", metavar="REASON", help="Bring a version back that was rolled back.")
@_move_options
@click.pass_context
def promote(
    ctx: click.Context,
    version: str,
    expect_current: str | None,
    override: str | None,
    reinstate: str | None,
    request_id: str | None,
    wait_delivery_s: float,
    as_json: bool,
) -> None:
    """Move production to a version that has a fresh PASS.

    The PASS must be for this pair, the line's policy, slice and profile as they are now, and the
    pair that is in production now. Otherwise it ends with 12 and says which part is stale.
    """
    moved = release.promote(
        workspace(ctx),
        VersionRef.parse(version),
        expect_current=expect_current,
        override=override,
        reinstate=reinstate,
        request_id=request_id,
        wait_delivery_s=wait_delivery_s,
    )
    _print_moved(moved, as_json)


@click.command(
    epilog="Example: pairgate rollback code-assistant --reason 'paged at 03:00'\n\n"
    "Example: pairgate rollback code-assistant --to code-assistant@1 --request-id incident-4711"
)
@click.argument("line")
@click.option("--to", metavar="VERSION", help="A version that was in production before.")
@click.option(
    "--from",
    "expect_current",
    metavar="VERSION",
    help="End with 13 unless this is in production now.",
)
@click.option("--keep-target", is_flag=True, help="Refuse if the target would change too.")
@click.option("--reason", default="", help="Why; it stays in the history.")
@_move_options
@click.pass_context
def rollback(
    ctx: click.Context,
    line: str,
    to: str | None,
    expect_current: str | None,
    keep_target: bool,
    reason: str,
    request_id: str | None,
    wait_delivery_s: float,
    as_json: bool,
) -> None:
    """Move production back, in one transaction.

    Needs no model, engine, evaluation or MLflow. What it leaves is withdrawn and stays pinned. A
    second rollback is refused unless --to names where to, so that a retry never ping-pongs.
    """
    ws = workspace(ctx)
    ref = None if to is None else VersionRef.parse(to)
    moved = release.rollback(
        ws,
        line,
        to=ref,
        keep_target=keep_target,
        expect_current=expect_current,
        request_id=request_id,
        reason=reason,
        wait_delivery_s=wait_delivery_s,
        announce=_say_before,
    )
    _print_moved(moved, as_json)


def _say_before(plan: release.RollbackPlan) -> None:
    if plan.changes_target:
        note(
            f"going from {plan.leaving} to {plan.back} changes the target too; to stop only the "
            f"draft: pairgate disable {plan.back.line} --reason TEXT"
        )
    if plan.profiles_change:
        note(f"the profiles go back too: {', '.join(plan.profiles) or 'none'}")


@click.command(epilog="Example: pairgate disable code-assistant --reason 'draft is slow'")
@click.argument("line")
@click.option("--reason", required=True, help="Why; it stays in the history.")
@_move_options
@click.pass_context
def disable(
    ctx: click.Context,
    line: str,
    reason: str,
    request_id: str | None,
    wait_delivery_s: float,
    as_json: bool,
) -> None:
    """Serve the target without its draft, at once.

    One transaction, no evidence, nothing copied. `pairgate enable` undoes it.
    """
    moved = release.disable(
        workspace(ctx), line, reason, request_id=request_id, wait_delivery_s=wait_delivery_s
    )
    _print_moved(moved, as_json)


@click.command(epilog="Example: pairgate enable code-assistant --reason 'the network was slow'")
@click.argument("line")
@click.option("--reason", default="", help="Why; it stays in the history.")
@_move_options
@click.pass_context
def enable(
    ctx: click.Context,
    line: str,
    reason: str,
    request_id: str | None,
    wait_delivery_s: float,
    as_json: bool,
) -> None:
    """Undo disable.

    Refused when the line's profile changed since, or the version failed an evaluation.
    """
    moved = release.enable(
        workspace(ctx), line, reason=reason, request_id=request_id, wait_delivery_s=wait_delivery_s
    )
    _print_moved(moved, as_json)


@click.command(epilog="Example: pairgate pin code-assistant@3 --reason 'audit until 2027'")
@click.argument("version")
@click.option("--reason", default="", help="Why; it stays in the history.")
@click.pass_context
def pin(ctx: click.Context, version: str, reason: str) -> None:
    """Protect a version from deletion."""
    _pin(ctx, version, reason, pinned=True)


@click.command(epilog="Example: pairgate unpin code-assistant@3")
@click.argument("version")
@click.option("--reason", default="", help="Why; it stays in the history.")
@click.pass_context
def unpin(ctx: click.Context, version: str, reason: str) -> None:
    """Take a pin back."""
    _pin(ctx, version, reason, pinned=False)


def _pin(ctx: click.Context, text: str, reason: str, *, pinned: bool) -> None:
    ws = workspace(ctx)
    version = ws.registry.version(VersionRef.parse(text))
    moved = release.pin(ws, VersionRef.parse(str(version)), pinned=pinned, reason=reason)
    if moved.already:
        note("it is so already")
    click.echo(f"{version} is {'pinned' if pinned else 'not pinned'}")
    if not pinned and version.number in moved.head.protected:
        note("it stays protected: production, previous, disabled or withdrawn")


@click.command(
    epilog="Example: pairgate approve code-assistant@3 --name safety\n\n"
    "Example: pairgate approve code-assistant@3 --name safety --evaluation 1f0c2a9be4d7"
)
@click.argument("version")
@click.option("--name", required=True, metavar="WHAT", help="To what you agree, e.g. safety.")
@click.option(
    "--evaluation",
    metavar="DIGEST",
    help="The evaluation that you read, by the start of its digest (default: the one that promote "
    "would stand on).",
)
@click.pass_context
def approve(ctx: click.Context, version: str, name: str, evaluation: str | None) -> None:
    """Approve the evaluation of a version.

    It binds to that evaluation: another one needs another approval.
    """
    from pairgate.app import approvals

    ref = VersionRef.parse(version)
    for made in approvals.approve(workspace(ctx), ref, name, evaluation=evaluation):
        click.echo(f"{_approval(made)} of {made.line}@{made.version}")
        click.echo(f"evaluation {made.evaluation_digest}")


def _approval(made: Approval) -> str:
    return printable(f"{made.actor} ({made.identity_source}) approves {made.name}")


def _print_moved(moved: Moved, as_json: bool) -> None:
    if as_json:
        return echo_json(asdict(moved))
    head, decision = moved.head, moved.decision
    if moved.already:
        earlier = f", by decision {decision.sequence}" if decision else ""
        note(f"already so{earlier}")
    click.echo(f"production  {_named(head.line, head.production)}")
    click.echo(f"previous    {_named(head.line, head.previous)}")
    if head.disabled is not None:
        click.echo(f"disabled    {_named(head.line, head.disabled)} (pairgate enable {head.line})")
    if decision is not None and not moved.already:
        if decision.override:
            note("promoted with an override, without a PASS")
        for approval in moved.approvals:
            note(_approval(approval))
        if decision.kind == "promote" and decision.incumbent_digest is None:
            note("the first promotion: incumbent=none")
        for warning in decision.warnings:
            note(f"warning: {warning}")
    click.echo(f"audit head  {head.line}:{head.revision}:{head.hash}")
    return None


def _named(line: str, number: int | None) -> str:
    return "none" if number is None else f"{line}@{number}"
