"""`import`: what other tools measured."""

from __future__ import annotations

from pathlib import Path

import click

from pairgate.cli.output import echo_json, json_option, note


@click.command(
    "import",
    epilog="Example: pairgate import artifacts/profile_export.jsonl --from aiperf\n\n"
    "Example: pairgate import responses.jsonl --from sglang --json",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "form",
    required=True,
    type=click.Choice(["vllm", "sglang", "llamacpp", "trtllm", "aiperf"]),
    help="Whose responses (one JSON object per line), or AIPerf's per-request records.",
)
@json_option
def import_(file: Path, form: str, as_json: bool) -> None:
    """Numbers of other tools, for comparison.

    They are marked as imported, stand under the definition of their source, are not stored, and
    are never evidence for a verdict.
    """
    from pairgate.app.imported import import_responses

    found = import_responses(file, form)
    if as_json:
        return echo_json(found)
    note("imported: for comparison only, never evidence")
    click.echo(f"definition       {found.definition}")
    click.echo(f"requests         {found.n_requests}, {found.n_failed} failed")
    if found.acceptance_rate is not None:
        spread = f" [{found.low:.3f}, {found.high:.3f}]" if found.low is not None else ""
        click.echo(
            f"acceptance rate  {found.acceptance_rate:.3f}{spread} (accepted / proposed, "
            f"{found.n_with_counts} requests)"
        )
    rows = (
        ("tokens per round", found.tokens_per_round, ""),
        ("TTFT p50", found.ttft_p50_ms, " ms"),
        ("TTFT p95", found.ttft_p95_ms, " ms"),
        ("time per token", found.tpot_p50_ms, " ms"),
    )
    for name, value, unit in rows:
        if value is not None:
            click.echo(f"{name:<16} {value:.2f}{unit}")
