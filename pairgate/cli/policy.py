"""`policy`: check a policy file, say in sentences what it asks for, print the schema of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option

if TYPE_CHECKING:
    from pairgate.domain.policy import Policy


@click.group(epilog="Example: pairgate policy explain default")
def policy() -> None:
    """Check and explain policy files."""


@policy.command(epilog="Example: pairgate policy check release-policy.toml")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> None:
    """Load a policy file strictly; an unknown key, a wrong type or an empty list is an error."""
    from pairgate.policyfile import load_policy

    loaded = load_policy(file)
    if as_json:
        gates = [rule.name for rule in loaded.gates]
        echo_json({"name": loaded.name, "digest": loaded.digest, "gates": gates})
        return
    click.echo(f"ok: policy {loaded.name} {loaded.digest}")
    click.echo(f"gates on: {', '.join(rule.name for rule in loaded.gates)}")


@policy.command(epilog="Example: pairgate policy explain strict")
@click.argument("policy_", metavar="FILE|PRESET")
@click.option("--source", is_flag=True, help="Print a preset's commented file, to start from.")
@json_option
def explain(policy_: str, source: bool, as_json: bool) -> None:
    """Say in sentences what a policy gates, what it only shows, and how it is measured."""
    from pairgate.policyfile import explained, preset_text

    if source:
        click.echo(preset_text(policy_), nl=False)
        return
    loaded = _loaded(policy_)
    if as_json:
        echo_json({"digest": loaded.digest, "policy": loaded, "sentences": explained(loaded)})
        return
    click.echo(f"policy {loaded.name} {loaded.digest}\n")
    for sentence in explained(loaded):
        click.echo(f"- {sentence}")


@policy.command(epilog="Example: pairgate policy schema > policy.schema.json")
def schema() -> None:
    """Print the JSON Schema of policy files, for editors and for programs that write them."""
    from pairgate.policyfile import schema_text

    click.echo(schema_text(), nl=False)


def _loaded(name: str) -> Policy:
    from pairgate.policyfile import PRESETS, load_policy, preset

    return preset(name) if name in PRESETS else load_policy(Path(name))
