"""Memory does not grow with the size of a blob, on any way that a pair can take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pairgate.app.register import register

pytestmark = [pytest.mark.docker_registry, pytest.mark.slow]
LARGE_BYTES = 256 << 20
MAY_GROW_KIB = 24 << 10


# Not ru_maxrss, which begins with what the parent had when it started the process.
RUN_AND_MEASURE = """
import atexit, sys
atexit.register(lambda: sys.stderr.write(open("/proc/self/status").read()))
from pairgate.cli import main
main()
"""


def peak_kib(*command: str) -> int:
    """Peak resident set of a `pairgate` command that must succeed."""
    whole = [sys.executable, "-c", RUN_AND_MEASURE, *command]
    done = subprocess.run(whole, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (peak,) = (line.split() for line in done.stderr.splitlines() if line.startswith("VmHWM:"))
    return int(peak[1])


def enlarge(folder: Path) -> None:
    """Replace the weights by a sparse file with one tensor of `LARGE_BYTES`."""
    tensor = {"dtype": "F32", "shape": [LARGE_BYTES // 4], "data_offsets": [0, LARGE_BYTES]}
    header = json.dumps({"w": tensor}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + LARGE_BYTES)


def test_push_pull_and_register_stream(ws, make_home, make_model, repository, tmp_path) -> None:
    small, large = make_model("small"), make_model("large")
    enlarge(large)
    for model in (small, large):
        register(ws, "chat", target=str(model))
    other = make_home("other").home
    peaks: dict[str, list[int]] = {}
    for number in (1, 2):
        there = f"{repository}:v{number}"
        to = str(tmp_path / f"out{number}")
        for name, command in {
            "push": ["--home", str(ws.home), "push", f"chat@{number}", there],
            "register": ["--home", str(other), "register", "chat", "--from", there],
            "pull from the registry": ["pull", there, "--to", to],
            "pull": ["--home", str(ws.home), "pull", f"chat@{number}", "--to", to + "-stored"],
        }.items():
            peaks.setdefault(name, []).append(peak_kib(*command))
    grown = {name: large - small for name, (small, large) in peaks.items()}
    assert all(kib < MAY_GROW_KIB for kib in grown.values()), peaks
    assert (tmp_path / "out2" / "target" / "model.safetensors").stat().st_size > LARGE_BYTES
