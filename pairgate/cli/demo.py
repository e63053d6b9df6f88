"""`demo`: the whole story on a real pair."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from pairgate.errors import InvalidInput

_MARK = ".pairgate-demo"


@click.command(epilog="Example: pairgate demo --to .demo")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".demo"),
    show_default=True,
    help="The demo's own home; an earlier demo there is removed.",
)
def demo(folder: Path) -> None:
    """Run the whole story on a real pair that comes with the checkout."""
    from pairgate.app.demo import LINE, demo_folder, run_story

    home = folder.absolute()
    pair = demo_folder()
    _fresh(home)
    times = run_story(home, pair, click.echo)
    click.echo("\nwhere the time went")
    for step in sorted(times, key=lambda t: -t.seconds)[:6]:
        click.echo(f"  {step.seconds:6.1f} s  {step.command}")
    click.echo(f"  {sum(t.seconds for t in times):6.1f} s  all steps")
    click.echo("\nlook at it")
    click.echo(f"  export PAIRGATE_HOME={home}")
    if shutil.which("pairgate") is None:
        click.echo(f"  export PATH={Path(sys.executable).parent}:$PATH")
    click.echo(f"  pairgate status {LINE}; pairgate history {LINE}")
    click.echo(f"  pairgate show {LINE}@2 --report")
    for report in sorted(home.glob("evaluations/*/report.html")):
        click.echo(f"  {report}")
    click.echo("  pairgate mlflow ui")


def _fresh(home: Path) -> None:
    """Only a folder that an earlier demo made is removed."""
    if home.exists() and any(home.iterdir()):
        if not (home / _MARK).is_file():
            raise InvalidInput(
                f"{home} exists and is not an earlier demo", hint="name another folder with --to"
            )
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / _MARK).touch()
