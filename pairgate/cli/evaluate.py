"""`evaluate`, `judge` and `gate`: from a version to a verdict with an exit code."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, note, table, workspace
from pairgate.cli.serving import serving_options
from pairgate.domain.pair import VersionRef

if TYPE_CHECKING:
    from pairgate.app.evaluate import EvaluateOptions
    from pairgate.app.evidence import Evaluated
    from pairgate.app.serving import ServingOptions
    from pairgate.app.workspace import Workspace


_profile_option = click.option(
    "--profile",
    metavar="NAME[@N]",
    help="On this profile of the line (default: the line's own).",
)


@click.command(
    epilog="Example: pairgate evaluate code-assistant@3\n\n"
    "Example: pairgate evaluate code-assistant@3 --profile a100 --budget 30\n\n"
    "Example: pairgate evaluate code-assistant@3 --dry-run --gpu-hour 2.50\n\n"
    "Example: pairgate evaluate code-assistant@3 --engine vllm --engine-python /opt/vllm"
)
@click.argument("version")
@_profile_option
@serving_options
@click.option(
    "--all",
    "goes_on_anyway",
    is_flag=True,
    help="Run every stage, also after a FAIL.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="End at a block's end after that time; what is missing is INCONCLUSIVE.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would run, and how long it took last.")
@click.option(
    "--gpu-hour",
    type=click.FloatRange(0),
    metavar="PRICE",
    help="With --dry-run: what an hour of one device costs.",
)
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    version: str,
    profile: str | None,
    serving: ServingOptions,
    goes_on_anyway: bool,
    budget: float | None,
    dry_run: bool,
    gpu_hour: float | None,
    as_json: bool,
) -> None:
    """Replay the slice, measure, judge, store the evidence.

    It ends as soon as a FAIL is certain, and runs no more requests than a PASS needs. Ends with
    0 (PASS), 10 (FAIL), 11 (INCONCLUSIVE) or 17 (ERROR). A killed evaluation resumes when the same
    command is run again.
    """
    from pairgate.app.evaluate import EvaluateOptions

    ws, ref = workspace(ctx), VersionRef.parse(version)
    if dry_run:
        return _show_price(ws, ref, profile, gpu_hour, as_json)
    options = EvaluateOptions(
        goes_on_anyway=goes_on_anyway, budget_s=None if budget is None else budget * 60.0
    )
    _finish(ws, _evaluate(ws, ref, profile, serving, options), as_json)


def _show_price(
    ws: Workspace, ref: VersionRef, profile: str | None, gpu_hour: float | None, as_json: bool
) -> None:
    from pairgate.app.evaluate import price

    found = price(ws, ref, profile=profile)
    hours = found.device_hours
    money = None if hours is None or gpu_hour is None else hours * gpu_hour
    if as_json:
        totals = {"minutes": found.minutes, "device_hours": hours, "money": money}
        return echo_json(asdict(found) | totals)
    table(
        ("stage", "requests", "minutes at most"),
        [(s.name, _between(s.n_least, s.n_most), _minutes(s.minutes)) for s in found.stages],
    )
    click.echo(f"\ntimes   {found.source}; boots, boundary requests and memory come on top")
    click.echo(f"boots   {found.n_boots}")
    click.echo(f"total   {_minutes(found.minutes)} minutes at most")
    if hours is not None:
        click.echo(f"hours   {hours:.2f} of a device ({found.n_devices} at once)")
    if gpu_hour is not None:
        click.echo(f"money   {'unknown' if money is None else f'{money:.2f}'}")


def _between(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def _minutes(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


@click.command(epilog="Example: pairgate judge code-assistant@3 --policy stricter.toml")
@click.argument("version")
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Judge under this policy instead of the line's.",
)
@click.option("--profile", metavar="NAME[@N]", help="The traces of this profile (default: newest).")
@json_option
@click.pass_context
def judge(
    ctx: click.Context,
    version: str,
    policy_file: Path | None,
    profile: str | None,
    as_json: bool,
) -> None:
    """Judge stored traces again (counts as an attempt).

    Nothing is replayed; it is one more look at the data, so one more attempt.
    """
    from pairgate.app.rejudge import judge_again
    from pairgate.policyfile import load_policy

    ws = workspace(ctx)
    policy = load_policy(policy_file) if policy_file else None
    done = judge_again(ws, VersionRef.parse(version), policy=policy, profile=profile)
    _finish(ws, done, as_json)


@click.command(
    epilog="Example: pairgate gate code-assistant@3 --verdict verdict.json --junit junit.xml"
)
@click.argument("version")
@_profile_option
@serving_options
@click.option("--verdict", "verdict_file", type=click.Path(path_type=Path), help="Write the JSON.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Write JUnit XML.")
@click.option(
    "--summary",
    "summary_file",
    type=click.Path(path_type=Path),
    envvar="GITHUB_STEP_SUMMARY",
    help="Append a markdown summary (default: the CI's step summary).",
)
@json_option
@click.pass_context
def gate(
    ctx: click.Context,
    version: str,
    profile: str | None,
    serving: ServingOptions,
    verdict_file: Path | None,
    junit_file: Path | None,
    summary_file: Path | None,
    as_json: bool,
) -> None:
    """The CI step: evaluate if needed, print the verdict, exit code.

    Needed is an evaluation where the version has no valid evidence yet.

    0 PASS, 10 FAIL, 11 INCONCLUSIVE, 17 ERROR.
    """
    from pairgate.app.gate import valid_evidence, write_ci_files

    ws = workspace(ctx)
    ref = VersionRef.parse(version)
    done = valid_evidence(ws, ref, profile)
    if done is None:
        done = _evaluate(ws, ref, profile, serving)
    else:
        note(f"{version} already has valid evidence from {done.evaluation.provenance.finished_at}")
    write_ci_files(done, verdict=verdict_file, junit=junit_file, summary=summary_file)
    _finish(ws, done, as_json)


def _evaluate(
    ws: Workspace,
    ref: VersionRef,
    profile: str | None,
    serving: ServingOptions,
    options: EvaluateOptions | None = None,
) -> Evaluated:
    from pairgate.app import evaluate as use_case
    from pairgate.app.serving import serving_of
    from pairgate.cli.progress import progress_display

    chosen = serving_of(ws, ref, profile, serving, say=note)
    try:
        with progress_display() as progress:
            return use_case.evaluate(
                ws,
                ref,
                profile=chosen.profile,
                options=options,
                engine_factory=chosen.factory,
                engine_key=chosen.key,
                progress=progress,
                command=f"pairgate {' '.join(sys.argv[1:])}",
            )
    except KeyboardInterrupt:
        note("stopped; the same command goes on from the last stored block")
        raise


def _finish(ws: Workspace, done: Evaluated, as_json: bool) -> None:
    from pairgate.app.outbox import start_delivery
    from pairgate.app.review import terminal_summary
    from pairgate.review.ci import verdict_document

    if as_json:
        echo_json(verdict_document(done.evaluation, done.verdict))
    else:
        click.echo(terminal_summary(ws, done.evaluation, done.verdict))
        click.echo(f"report  {done.folder / 'report.html'}")
    # An evaluation takes minutes: a few seconds for the mirror keep it out of the next one's way.
    start_delivery(ws, wait_s=60.0)
    sys.exit(done.verdict.outcome.exit_code)
