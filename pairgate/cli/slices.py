"""`slice`: held-out slices of production traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pairgate.cli.output import echo_json, json_option, note, table, workspace
from pairgate.cli.slice_tables import (
    show_check,
    show_created,
    show_leaks,
    show_plan,
    show_report,
    show_size,
    texts_state,
)
from pairgate.errors import InvalidInput

if TYPE_CHECKING:
    from pairgate.traffic.importing import ReadOptions

_FORMATS = ("auto", "jsonl", "json", "vllm", "parquet", "dataset")


@click.group("slice", epilog="Example: pairgate slice create chat-may --from requests.jsonl")
def slice_() -> None:
    """Held-out slices of production traffic.

    A slice is a frozen set of requests with their sampling parameters, domains, sessions and
    arrival times. Its texts lie in HOME/slices, apart from the registry, which keeps a digest
    and counts.
    """


def _read_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a log is read; the command gets them as given."""
    for option in (
        click.option("--split", default="train", show_default=True, help="Split of a dataset."),
        click.option("--config", metavar="NAME", help="Configuration of a dataset."),
        click.option(
            "--max-tokens",
            type=click.IntRange(1),
            default=256,
            show_default=True,
            help="For requests that do not say how long the answer may be.",
        ),
        click.option(
            "--domain",
            default="general",
            show_default=True,
            help="For records that do not say their domain.",
        ),
        click.option(
            "--map",
            "maps",
            multiple=True,
            metavar="FIELD=PATH",
            help="Where a field stands, as a dotted path, e.g. domain=metadata.team. Fields: id, "
            "domain, session, timestamp, body; or messages or prompt with max_tokens, "
            "temperature, … to build a body from columns.",
        ),
        click.option(
            "--format",
            "form",
            type=click.Choice(_FORMATS),
            default="auto",
            show_default=True,
            help="How the files are cut into records. What a record holds (OpenAI body, batch, "
            "LiteLLM, ShareGPT, …) is always found by itself.",
        ),
    ):
        command = option(command)
    return command


def _read(
    form: str, maps: tuple[str, ...], domain: str, max_tokens: int, config: str | None, split: str
) -> ReadOptions:
    from pairgate.traffic.importing import Format, ReadOptions
    from pairgate.traffic.shapes import Mapping

    return ReadOptions(
        format=Format(form),
        mapping=Mapping.parse(maps),
        default_domain=domain,
        default_max_tokens=max_tokens,
        config=config,
        split=split,
    )


@slice_.command(
    epilog="Example: pairgate slice create chat-may --from may.jsonl --per-domain 300 --seed 1 "
    "--map domain=metadata.team --check-against train.jsonl --expires 90"
)
@click.argument("name")
@click.option(
    "--from",
    "sources",
    multiple=True,
    required=True,
    metavar="FILE",
    help="A log, a dataset folder, or hf:OWNER/NAME; may be given several times.",
)
@click.argument("more", nargs=-1, metavar="[FILE]...")
@_read_options
@click.option("--per-domain", type=int, metavar="N", help="Draw N requests of each domain.")
@click.option("--total", type=int, metavar="N", help="Draw N requests, in proportion to domains.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the drawing.")
@click.option(
    "--keep-duplicates", is_flag=True, help="Keep requests whose prompt came before already."
)
@click.option(
    "--check-against",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="TEXTFILE",
    help="Training text (plain or JSON lines) in which prompts are looked for.",
)
@click.option("--drop-leaks", is_flag=True, help="Leave out prompts found in the training text.")
@click.option("--strict", is_flag=True, help="Make any faulty record an error (exit code 2).")
@click.option("--expires", type=float, metavar="DAYS", help="Texts are not used after that.")
@json_option
@click.pass_context
def create(
    ctx: click.Context,
    name: str,
    sources: tuple[str, ...],
    more: tuple[str, ...],
    form: str,
    maps: tuple[str, ...],
    domain: str,
    max_tokens: int,
    config: str | None,
    split: str,
    per_domain: int | None,
    total: int | None,
    seed: int,
    keep_duplicates: bool,
    check_against: tuple[Path, ...],
    drop_leaks: bool,
    strict: bool,
    expires: float | None,
    as_json: bool,
) -> None:
    """Make a slice from logs of requests.

    Reads JSON lines of OpenAI chat and completion requests (bare, wrapped in "body" or
    "request", batch files, with or without responses), LiteLLM logs, logs of a vLLM server,
    ShareGPT JSON, Parquet files and Hugging Face datasets; .gz too. Bodies are kept as they were
    sent. What is left out is counted by reason.

    Other content under a known name is the name's new revision; lines that were set to the old
    one keep it until `pairgate line set`.
    """
    from dataclasses import replace

    from pairgate.app.slices import SliceOptions, import_slice
    from pairgate.traffic.sampling import SampleSize

    read = _read(form, maps, domain, max_tokens, config, split)
    options = SliceOptions(
        read=replace(read, keep_duplicates=keep_duplicates),
        size=SampleSize(per_domain=per_domain, total=total),
        seed=seed,
        check_against=check_against,
        drop_leaks=drop_leaks,
        strict=strict,
        expires_days=expires,
    )
    made = import_slice(workspace(ctx), name, (*sources, *more), options)
    if as_json:
        return echo_json(asdict(made))
    show_created(made)


@slice_.command("show", epilog="Example: pairgate slice show chat-may")
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """One slice, by name or digest: counts, never texts."""
    from pairgate.app.slices import slice_status

    status = slice_status(workspace(ctx), name)
    if as_json:
        return echo_json(asdict(status))
    click.echo(f"slice     {status.row.name}{'' if status.newest else ' (an earlier revision)'}")
    click.echo(f"digest    {status.row.digest}")
    click.echo(f"made      {status.row.created_at}")
    click.echo(f"texts     {texts_state(status)}")
    if status.record is not None:
        click.echo(f"from      {', '.join(status.record.sources)} (seed {status.record.seed})")
        show_report(status.record.report, status.row.domains)
        show_leaks(status.record.leaks)


@slice_.command("list", epilog="Example: pairgate slice list --json")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """All slices, by name and age."""
    from pairgate.app.slices import slice_statuses

    statuses = slice_statuses(workspace(ctx))
    if as_json:
        return echo_json([asdict(status) for status in statuses])
    if not statuses:
        return note("no slices yet: pairgate slice create NAME --from LOG")
    table(
        ("slice", "requests", "domains", "made", "texts", "digest"),
        [
            (
                f"{s.row.name}{'' if s.newest else ' (earlier)'}",
                s.row.n_requests,
                ", ".join(f"{name} {n}" for name, n in s.row.domains),
                s.row.created_at[:10],
                texts_state(s),
                s.row.digest[:19],
            )
            for s in statuses
        ],
    )


@slice_.command("check", epilog="Example: pairgate slice check chat-may --against june.jsonl")
@click.argument("name")
@click.option("--against", "logs", multiple=True, required=True, metavar="LOG", help="A fresh log.")
@_read_options
@click.option(
    "--threshold",
    type=float,
    default=0.1,
    show_default=True,
    help="A shift of more than this share warns (if it is not chance, p < 0.01).",
)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    name: str,
    logs: tuple[str, ...],
    form: str,
    maps: tuple[str, ...],
    domain: str,
    max_tokens: int,
    config: str | None,
    split: str,
    threshold: float,
    as_json: bool,
) -> None:
    """Does the slice still look like the traffic? Domains, lengths, temperatures."""
    from pairgate.app.slice_checks import check_slice

    read = _read(form, maps, domain, max_tokens, config, split)
    found = check_slice(workspace(ctx), name, logs, read=read, threshold=threshold)
    if as_json:
        return echo_json(asdict(found) | {"warnings": found.warnings})
    show_check(found)


@slice_.command(
    "size",
    epilog="Example: pairgate slice size chat-may --distance 0.05\n\n"
    "Example: pairgate slice size --pilot code-assistant@3 --policy release-policy.toml",
)
@click.argument("name", required=False)
@click.option(
    "--distance",
    "distances",
    type=float,
    multiple=True,
    default=(0.10, 0.05, 0.02),
    show_default=True,
    help="Distance of the acceptance from the floor.",
)
@click.option("--sd", type=float, help="Spread over requests (default: as seen, or 0.2).")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="One-sided error.")
@click.option("--power", type=float, default=0.9, show_default=True, help="Chance to decide.")
@click.option(
    "--pilot",
    metavar="EVALUATION",
    help="Sizes for a policy from what this evaluation (LINE@N or its digest) measured.",
)
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --pilot: this policy instead of the pilot's own.",
)
@json_option
@click.pass_context
def size(
    ctx: click.Context,
    name: str | None,
    distances: tuple[float, ...],
    sd: float | None,
    alpha: float,
    power: float,
    pilot: str | None,
    policy_file: Path | None,
    as_json: bool,
) -> None:
    """How many requests of a domain decide; with a slice, what its domains can decide.

    With --pilot: how many each domain needs to be decided by a policy, and the time that takes.
    """
    from pairgate.app.slice_checks import slice_size

    if pilot is not None:
        return _planned(ctx, pilot, policy_file, power, as_json)
    if policy_file is not None:
        raise InvalidInput("--policy needs --pilot EVALUATION, which says how acceptance spreads")

    ws = workspace(ctx) if name is not None else None
    found = slice_size(ws, name, distances=distances, sd=sd, alpha=alpha, power=power)
    if as_json:
        return echo_json(asdict(found))
    return show_size(found)


def _planned(
    ctx: click.Context, pilot: str, policy_file: Path | None, power: float, as_json: bool
) -> None:
    from pairgate.app.slice_plan import slice_plan
    from pairgate.policyfile import load_policy

    policy = load_policy(policy_file) if policy_file else None
    found = slice_plan(workspace(ctx), pilot, policy, power=power)
    if as_json:
        totals = {"n_requests": found.n_requests, "hours": found.hours}
        return echo_json(asdict(found) | totals)
    return show_plan(found)


@slice_.command(
    "purge", epilog="Example: pairgate slice purge chat-may --reason 'asked for by a customer'"
)
@click.argument("name", required=False)
@click.option("--expired", is_flag=True, help="Purge every slice whose texts have expired.")
@click.option("--reason", default="", help="Why; it stays in the history.")
@click.pass_context
def purge(ctx: click.Context, name: str | None, expired: bool, reason: str) -> None:
    """Delete the texts of a slice. Digest, counts and verdicts stay.

    It is a decision in the history of every line that uses or used the slice.
    """
    from pairgate.app.slices import purge_expired, purge_slice

    if (name is None) == (not expired):
        raise InvalidInput("name one slice, or give --expired")
    ws = workspace(ctx)
    purged = (purge_slice(ws, name, reason=reason),) if name is not None else purge_expired(ws)
    for status in purged:
        click.echo(f"{status.row.name}  {status.row.digest}  {texts_state(status)}")
    if not purged:
        note("no slice has expired")
