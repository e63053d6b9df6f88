"""The options that say which engine runs and where: one set for `evaluate` and `gate`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from pairgate.app.serving import ServingOptions

_OPTIONS = (
    click.option(
        "--engine",
        metavar="NAME",
        help="native or vllm: the line's profile for that engine, made for this machine's CPU "
        "where there is none.",
    ),
    click.option(
        "--engine-python",
        "python",
        metavar="PATH",
        type=click.Path(path_type=Path),
        envvar="PAIRGATE_ENGINE_PYTHON",
        help="The Python, or the virtual environment, that holds the server "
        "(PAIRGATE_ENGINE_PYTHON).",
    ),
    click.option(
        "--engine-command",
        "command",
        metavar="TEXT",
        help="What starts the server instead, up to its arguments.",
    ),
    click.option("--endpoint", metavar="URL", help="A server of the pair that runs already."),
    click.option("--baseline-endpoint", metavar="URL", help="One of its target without the draft."),
    click.option(
        "--serves", metavar="LINE@N", help="With --endpoint: the version that it serves, you say."
    ),
)


def serving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options and hands them over as one `serving: ServingOptions`."""

    @wraps(command)
    def collected(*args: Any, **kwargs: Any) -> Any:
        names = ("engine", "python", "command", "endpoint", "baseline_endpoint", "serves")
        given = {name: kwargs.pop(name) for name in names}
        return command(*args, serving=ServingOptions(**given), **kwargs)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected
