"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_cli_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate_cli.py", "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "COLUMNS": "60"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[:3000] + done.stderr
