"""Every kernel compiles for a GPU, also where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.triton
@pytest.mark.slow
def test_every_kernel_compiles_for_sm_90(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "PYTHONPATH": str(ROOT / "kernels"),
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_for_gpu.py"))],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    names = {line.split()[0] for line in done.stdout.splitlines()}
    jitted = {
        line.split("(")[0].removeprefix("def ")
        for path in (ROOT / "kernels" / "pairgate_kernels").glob("*/triton*.py")
        for line in path.read_text("utf-8").split("@triton.jit\n")[1:]
    }
    called = {"load_logits", "law_at", "_order", "_logit", "_search", "_total", "_pair_at"}
    assert names == jitted - called
