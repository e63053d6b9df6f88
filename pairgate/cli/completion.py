"""`completion`: the script that a shell reads to complete commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog='Example: eval "$(pairgate completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell completion script."""
    from pairgate.cli import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "pairgate", "_PAIRGATE_COMPLETE").source())
