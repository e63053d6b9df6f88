"""`evaluate`, `judge` and `gate`: from a version to a verdict with an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, note, workspace
from pairgate.domain.pair import VersionRef

if TYPE_CHECKING:
    from pairgate.app.evidence import Evaluated
    from pairgate.app.workspace import Workspace


@click.command(epilog="Example: pairgate evaluate code-assistant@3")
@click.argument("version")
@json_option
@click.pass_context
def evaluate(ctx: click.Context, version: str, as_json: bool) -> None:
    """Replay the slice, measure, judge, store the evidence.

    Ends with 0 (PASS), 10 (FAIL), 11 (INCONCLUSIVE) or 17 (ERROR). A killed evaluation resumes
    when the same command is run again.
    """
    ws = workspace(ctx)
    done = _evaluate(ws, VersionRef.parse(version))
    _finish(ws, done, as_json)


@click.command(epilog="Example: pairgate judge code-assistant@3 --policy stricter.toml")
@click.argument("version")
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Judge under this policy instead of the line's.",
)
@json_option
@click.pass_context
def judge(ctx: click.Context, version: str, policy_file: Path | None, as_json: bool) -> None:
    """Judge stored traces again (counts as an attempt).

    Nothing is replayed; it is one more look at the data, so one more attempt.
    """
    from pairgate.app.rejudge import judge_again
    from pairgate.policyfile import load_policy

    ws = workspace(ctx)
    policy = load_policy(policy_file) if policy_file else None
    _finish(ws, judge_again(ws, VersionRef.parse(version), policy=policy), as_json)


@click.command(
    epilog="Example: pairgate gate code-assistant@3 --verdict verdict.json --junit junit.xml"
)
@click.argument("version")
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
    done = valid_evidence(ws, ref)
    if done is None:
        done = _evaluate(ws, ref)
    else:
        note(f"{version} already has valid evidence from {done.evaluation.provenance.finished_at}")
    write_ci_files(done, verdict=verdict_file, junit=junit_file, summary=summary_file)
    _finish(ws, done, as_json)


def _evaluate(ws: Workspace, ref: VersionRef) -> Evaluated:
    from pairgate.app import evaluate as use_case
    from pairgate.cli.progress import progress_display

    try:
        with progress_display() as progress:
            return use_case.evaluate(
                ws, ref, progress=progress, command=f"pairgate {' '.join(sys.argv[1:])}"
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
