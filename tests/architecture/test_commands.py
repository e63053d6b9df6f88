"""Every command in the table exists, says the same as the table, and shows an example."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from pairgate.cli import COMMANDS, cli

READING = [
    "status",
    "history",
    "show",
    "diff",
    "compare",
    "verify",
    "line list",
    "profile list",
    "profile show",
    "slice list",
    "slice show",
    "policy check",
    "policy explain",
    "audit verify",
    "audit head",
    "outbox list",
]


def walk(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Depth first: ("line set", command)…, without the root."""
    if path:
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, f"{path} {name} is listed but does not exist"
            yield from walk(child, f"{path} {name}".strip())


@pytest.mark.parametrize("name", COMMANDS)
def test_table_and_command_agree(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=200).rstrip(".") == COMMANDS[name][2].rstrip(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_an_example(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for path, found in walk(command, name):
        assert found.help, f"`{path}` has no help"
        assert "Example:" in (found.epilog or ""), f"`{path}` shows no example"
        assert f"pairgate {path}" in (found.epilog or "") or isinstance(found, click.Group), path
        for parameter in found.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"`{path} {parameter.opts[0]}` has no help"


@pytest.mark.parametrize("path", READING)
def test_reading_commands_take_json(path: str) -> None:
    command: click.Command | None = cli
    for name in path.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None, f"there is no `{path}`"
    assert any("--json" in parameter.opts for parameter in command.params)
