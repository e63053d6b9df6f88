"""Homes that cannot be: a clear error, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("place", ["file", "/proc/pairgate-home"])
def test_a_home_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    home = str(tmp_path / place)  # an absolute place stays as it is
    command = [sys.executable, "-m", "pairgate", "--home", home, "init", "a"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 16, done.stderr
    assert "cannot be made" in done.stderr
    assert "Traceback" not in done.stderr
