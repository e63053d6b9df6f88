"""`line` and `profile`: what a line is judged by, and how it is served."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pairgate.cli.output import echo_json, json_option, note, table, workspace
from pairgate.errors import InvalidInput


@click.group(epilog="Example: pairgate line set code-assistant --slice release")
def line() -> None:
    """Policy, slice and profile of a line."""


@line.command(epilog="Example: pairgate line create code-assistant")
@click.argument("name")
@click.pass_context
def create(ctx: click.Context, name: str) -> None:
    """Make a line without any settings (`pairgate init` also sets defaults)."""
    from pairgate.app import lines

    lines.create(workspace(ctx), name)
    click.echo(f"line {name} made")
    note(f"next: pairgate line set {name} --policy default --slice NAME --profile NAME")


@line.command(
    "set",
    epilog="Example: pairgate line set code-assistant --policy policy.toml --slice release\n\n"
    "Example: pairgate line set code-assistant --profile h100-tp8@3 --reason 'engine upgrade'\n\n"
    "Example: pairgate line set code-assistant --profile h100-tp8 --profile a100",
)
@click.argument("line_name", metavar="LINE")
@click.option("--policy", metavar="PRESET|FILE", help="default, strict, exploratory, or a file.")
@click.option("--slice", "slice_name", metavar="NAME", help="A stored slice, by name or digest.")
@click.option(
    "--profile",
    "profiles",
    metavar="NAME[@N]",
    multiple=True,
    help="A profile of the line; the newest of a name. Several: each needs a PASS, the first is "
    "the line's own.",
)
@click.option("--reason", default="", help="Why; it stays in the history.")
@click.pass_context
def set_(
    ctx: click.Context,
    line_name: str,
    policy: str | None,
    slice_name: str | None,
    profiles: tuple[str, ...],
    reason: str,
) -> None:
    """Say what the line is judged by from now on. Evidence made before is stale then."""
    from pairgate.app import lines

    if policy is None and slice_name is None and not profiles:
        raise click.UsageError("name at least one of --policy, --slice and --profile")
    ws = workspace(ctx)
    done = lines.set_line(
        ws,
        line_name,
        policy=policy,
        slice_name=slice_name,
        profile=profiles,
        reason=reason,
    )
    if done.decision is None:
        note("it is so already")
    for name in ("policy", "slice"):
        click.echo(f"{name:<8}  {getattr(done.head, f'{name}_digest') or 'none yet'}")
    digests = (done.head.profile_digest, *done.head.profiles)
    for label, digest in zip(lines.profile_labels(ws, line_name, digests), digests, strict=False):
        click.echo(f"profile   {digest}  {label}")
    if done.head.profile_digest is None:
        click.echo("profile   none yet")


@line.command("list", epilog="Example: pairgate line list --json")
@json_option
@click.pass_context
def list_lines(ctx: click.Context, as_json: bool) -> None:
    """All lines and what they are judged by."""
    heads = workspace(ctx).registry.lines()
    if as_json:
        return echo_json([asdict(h) for h in heads])
    table(
        ("line", "production", "previous", "policy", "slice", "profile"),
        [
            (
                h.line,
                "none" if h.production is None else h.production,
                "none" if h.previous is None else h.previous,
                *((d or "none")[:19] for d in (h.policy_digest, h.slice_digest, h.profile_digest)),
            )
            for h in heads
        ],
    )
    return None


@click.group(epilog="Example: pairgate profile list code-assistant")
def profile() -> None:
    """Serving profiles of a line."""


@profile.command(
    "set",
    epilog="Example: pairgate profile set code-assistant native-cpu profile.toml\n\n"
    "Example: pairgate profile set code-assistant h100-tp8 --from-command 'vllm serve m -tp 8' "
    "--engine-version 0.14.0 --hardware-class h100x8 --concurrency 1,8,64",
)
@click.argument("line_name", metavar="LINE")
@click.argument("name")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--from-command",
    "command",
    metavar="TEXT",
    help="The serving command; the model and the speculative config in it are the pair's.",
)
@click.option("--engine-version", help="With --from-command: the engine's version.")
@click.option("--hardware-class", help="With --from-command: accelerator x count, e.g. h100x8.")
@click.option("--concurrency", metavar="N,N,…", help="With --from-command: those that matter.")
@click.pass_context
def set_profile(
    ctx: click.Context,
    line_name: str,
    name: str,
    file: Path | None,
    command: str | None,
    engine_version: str | None,
    hardware_class: str | None,
    concurrency: str | None,
) -> None:
    """Store a profile as NAME@N. The line uses it after `pairgate line set LINE --profile`."""
    from pairgate.app import lines, profiles

    if (file is None) == (command is None):
        raise click.UsageError("give either FILE or --from-command")
    if file is not None:
        made = profiles.profile_from_file(file, name)
    else:
        if not (engine_version and hardware_class and concurrency):
            raise click.UsageError(
                "--from-command needs --engine-version, --hardware-class and --concurrency"
            )
        assert command is not None
        made = profiles.profile_from_command(
            command,
            name,
            engine_version=engine_version,
            hardware_class=hardware_class,
            concurrencies=_numbers(concurrency),
        )
    label = lines.save_profile(workspace(ctx), line_name, made)
    click.echo(f"{label}  {made.digest}")
    note(f"use it with: pairgate line set {line_name} --profile {label}")


@profile.command("list", epilog="Example: pairgate profile list code-assistant --json")
@click.argument("line_name", metavar="LINE")
@json_option
@click.pass_context
def list_profiles(ctx: click.Context, line_name: str, as_json: bool) -> None:
    """The profiles of a line; * marks its own, + the others that it is served on."""
    registry = workspace(ctx).registry
    rows = registry.profiles(line_name)
    if as_json:
        return echo_json([asdict(r) for r in rows])
    head = registry.head(line_name)
    used = dict.fromkeys(head.profiles, "+")
    if head.profile_digest is not None:
        used[head.profile_digest] = "*"
    table(
        ("", "profile", "digest", "stored"),
        [(used.get(r.digest, ""), str(r), r.digest[:19], r.created_at[:19]) for r in rows],
    )
    return None


@profile.command(epilog="Example: pairgate profile show code-assistant native-cpu@1")
@click.argument("line_name", metavar="LINE")
@click.argument("name", metavar="NAME[@N]")
@json_option
@click.pass_context
def show(ctx: click.Context, line_name: str, name: str, as_json: bool) -> None:
    """One profile."""
    from pairgate.app import lines

    ws = workspace(ctx)
    row = lines.find_profile(ws, line_name, name)
    found = ws.registry.profile(row.digest)
    if as_json:
        return echo_json({**asdict(found), "number": row.number, "digest": row.digest})
    for key, value in {"profile": str(row), "digest": row.digest, **asdict(found)}.items():
        if key != "name":
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            click.echo(f"{key:<22}  {shown}")
    return None


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(
            f"--concurrency {text!r} is not a list of whole numbers", hint="write e.g. 1,8,32"
        ) from None
