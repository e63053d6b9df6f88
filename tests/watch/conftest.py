"""A line in production whose evidence comes from servers (the fakes of tests/server)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.domain.pair import VersionRef

HERE = Path(__file__).resolve()
for folder in (HERE.parent, HERE.parents[1] / "server"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

Run = Callable[..., Result]
MODELS = HERE.parents[2] / "pipelines" / "demo_pair" / "models"
POLICY = """
name = "small"
[rules.acceptance]
mode = "gate"
rate = "acceptance_rate"
threshold = 0.3
[replay]
min_blocks = 3
max_blocks = 3
requests_per_block = 4
"""


def invoke(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, list(words))
    found = done.exit_code
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        found = getattr(done.exception, "exit_code", 1)
    assert found == code, (done.output, done.exception)
    return done


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of such a line, made once; tests work on copies."""
    from fake_vllm import FakeVllm, Running

    root = tmp_path_factory.mktemp("watched")
    home, patch = root / "home", pytest.MonkeyPatch()
    for name, value in (("HOME", str(home)), ("DELIVERY", "off"), ("MLFLOW", "off")):
        patch.setenv(f"PAIRGATE_{name}", value)
    (root / "policy.toml").write_text(POLICY)
    bodies = [
        {"prompt": f"request number {i}", "max_tokens": 24, "temperature": 0} for i in range(110)
    ]
    rows = [json.dumps({"id": f"r{i}", "body": body}) for i, body in enumerate(bodies)]
    (root / "slice.jsonl").write_text("\n".join(rows) + "\n")
    invoke("init", "line", "--policy", f"{root}/policy.toml", "--slice", f"{root}/slice.jsonl")
    models = [str(MODELS / name) for name in ("target-base", "draft-base")]
    invoke("register", "line", "--target", models[0], "--draft", models[1], "-k", "4")
    invoke(
        "profile", "set", "line", "served", "--from-command", "vllm serve m",
        "--engine-version", "0.32.0", "--hardware-class", "h100x1", "--concurrency", "4",
    )  # fmt: skip
    invoke("line", "set", "line", "--profile", "served")
    with (
        Running(FakeVllm(k=4, acceptance=0.8, max_model_len=1024)) as spec,
        Running(FakeVllm(max_model_len=1024)) as target,
    ):
        invoke(
            "evaluate", "line@1", "--endpoint", spec.url, "--baseline-endpoint", target.url,
            "--serves", "line@1",
        )  # fmt: skip
    invoke("promote", "line@1")
    patch.undo()
    return home


@pytest.fixture
def home(made: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")
    shutil.copytree(made, own_home, symlinks=True)
    return own_home


@pytest.fixture
def run(home: Path) -> Run:
    return invoke


@pytest.fixture
def names(home: Path) -> list[str]:
    """The served model names that `render` gives version 1."""
    ws = Workspace.open(home=str(home))
    digest = ws.registry.version(VersionRef.parse("line@1")).pair_digest
    ws.close()
    return ["line", f"line@{digest.replace(':', '-')}"]
