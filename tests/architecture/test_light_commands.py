"""The commands of three in the morning import click and SQLAlchemy, and nothing heavier.

The proof is `sys.modules` of a real process after the command ran against a real home.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"torch", "transformers", "mlflow", "datasets", "pyarrow", "matplotlib", "jinja2"}
HEAVY = FRAMEWORKS | {"alembic", "numpy", "scipy", "pydantic", "rich", "httpx"}

RUN_AND_DUMP = """
import atexit, json, sys
atexit.register(lambda: open(sys.argv.pop(), "w").write(json.dumps(sorted(sys.modules))))
dump = sys.argv.pop()
import pairgate.cli
sys_argv, sys.argv = sys.argv, ["pairgate", *sys.argv[1:]]
try:
    pairgate.cli.main()
finally:
    sys.argv = [dump]
"""


def imported_by(folder: Path, *arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """Top-level packages that a `pairgate …` process holds when it ends, and its outcome."""
    dump = folder / "modules.json"
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_DUMP, *arguments, str(dump)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])},
        capture_output=True,
        text=True,
    )
    return {name.split(".")[0] for name in json.loads(dump.read_text())}, done


def test_the_probe_sees_what_is_imported(tmp_path: Path) -> None:
    modules, done = imported_by(tmp_path, "--version")
    assert done.returncode == 0, done.stderr
    assert {"click", "pairgate"} <= modules


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_click_alone(tmp_path: Path, arguments: list[str]) -> None:
    modules, done = imported_by(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert not modules & (HEAVY | {"sqlalchemy"})


@pytest.mark.parametrize(
    "command",
    ["status", "history", "promote", "rollback", "disable", "enable", "pin", "unpin"],
)
def test_help_of_the_release_commands_is_light(tmp_path: Path, command: str) -> None:
    modules, done = imported_by(tmp_path, command, "--help")
    assert done.returncode == 0, done.stderr
    assert not modules & HEAVY
