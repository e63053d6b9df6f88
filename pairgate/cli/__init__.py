"""The command line: click only; every command calls one use case of `pairgate.app`.

Commands are imported when they are called, so that `--help` and `status` stay as fast as their
own imports. The table below is the list of all commands with their one-line help.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from pairgate import __version__
from pairgate.cli.plain import plain, plain_stdout
from pairgate.errors import PairgateError

# name -> (module under pairgate.cli, attribute, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "init": ("setup", "init", "Make a home and a first line."),
    "demo": ("demo", "demo", "Run the whole story on a real pair that comes with the checkout."),
    "register": ("register", "register", "Store a pair as the next version of a line."),
    "evaluate": ("evaluate", "evaluate", "Replay the slice, measure, judge, store the evidence."),
    "try": ("trial", "try_", "Measure two servers that already run."),
    "judge": ("evaluate", "judge", "Judge stored traces again (counts as an attempt)."),
    "gate": ("evaluate", "gate", "The CI step: evaluate if needed, print the verdict, exit code."),
    "promote": ("release", "promote", "Move production to a version that has a fresh PASS."),
    "rollback": ("release", "rollback", "Move production back, in one transaction."),
    "disable": ("release", "disable", "Serve the target without its draft, at once."),
    "enable": ("release", "enable", "Undo disable."),
    "pin": ("release", "pin", "Protect a version from deletion."),
    "unpin": ("release", "unpin", "Take a pin back."),
    "approve": ("release", "approve", "Approve the evaluation of a version."),
    "status": ("status", "status", "Where the lines stand."),
    "history": ("status", "history", "The decisions of a line."),
    "show": ("status", "show", "One version: models, evidence, verdict."),
    "diff": ("compare", "diff", "What differs between two versions, of one line or of two."),
    "compare": (
        "compare",
        "compare",
        "Two versions on the same requests: paired difference, what changed, both measurements.",
    ),
    "pull": ("transfer", "pull", "Materialise a version in a folder and verify it."),
    "push": ("transfer", "push", "Send a version to an OCI registry."),
    "render": ("render", "render", "Write the command that serves a version."),
    "verify": ("register", "verify", "Hash the stored files of a version again."),
    "watch": ("watch", "watch", "Live acceptance against the evidence of what was promoted."),
    "diagnose": ("diagnose", "diagnose", "Why did live acceptance drop?"),
    "monitoring": (
        "monitoring",
        "monitoring",
        "Alert rules and a dashboard with this line's thresholds.",
    ),
    "import": ("imported", "import_", "Numbers of other tools, for comparison."),
    "line": ("line", "line", "Policy, slice and profile of a line."),
    "profile": ("line", "profile", "Serving profiles of a line."),
    "slice": ("slices", "slice_", "Held-out slices of production traffic."),
    "policy": ("policy", "policy", "Check and explain policy files."),
    "gc": ("gc", "gc", "Delete what nothing needs any more, after a grace period."),
    "audit": ("audit", "audit", "Verify the history; export its head; report all decisions."),
    "outbox": ("outbox", "outbox", "Deliver what waits for the outside world."),
    "mlflow": ("mlflow", "mlflow_", "The MLflow mirror."),
    "db": ("db", "db", "The database's schema."),
    "completion": ("completion", "completion", "Print the shell completion script."),
}

_LONGEST_MESSAGE = 4000  # a message may quote what it refuses


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"pairgate.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, _, help_) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: pairgate init code-assistant && pairgate status",
)
@click.version_option(__version__, prog_name="pairgate")
@click.option(
    "--home",
    metavar="DIR",
    envvar="PAIRGATE_HOME",
    help="Where pairgate keeps its files (PAIRGATE_HOME; default ~/.pairgate).",
)
@click.option(
    "--database-url",
    metavar="URL",
    envvar="PAIRGATE_DATABASE_URL",
    help="SQLAlchemy URL of the registry (PAIRGATE_DATABASE_URL; default SQLite in the home).",
)
@click.pass_context
def cli(ctx: click.Context, home: str | None, database_url: str | None) -> None:
    """Gate the release of speculative-decoding draft-target pairs.

    slice -> replay -> measure -> judge -> promote
    """
    ctx.obj = (home, database_url)
    ctx.with_resource(plain_stdout())


def main() -> None:
    """Entry point: an error of ours ends with its message and exit code, not with a traceback."""
    try:
        cli(standalone_mode=True)
    except PairgateError as error:
        click.echo(f"error: {plain(error.message[:_LONGEST_MESSAGE])}", err=True)
        if error.hint:
            click.echo(plain(error.hint[:_LONGEST_MESSAGE]), err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:  # a full disk, a folder without permission: the machine, not a bug
        where = f" ({error.filename})" if error.filename else ""
        click.echo(plain(f"error: {error.strerror or error}{where}"), err=True)
        click.echo(
            "make room or give permission, look at `pairgate status`, and run the command again",
            err=True,
        )
        sys.exit(16)
