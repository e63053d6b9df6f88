"""A home with a line whose first version is in production, on the demo pair of the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pairgate.cli import cli

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "pipelines" / "demo_pair"
Run = Callable[..., Result]


@pytest.fixture
def run(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")

    def invoke(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(cli, list(words))
        found = done.exit_code
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            found = getattr(done.exception, "exit_code", 1)
        assert found == code, (done.output, done.exception)
        return done

    return invoke


@pytest.fixture
def line(run: Run, tmp_path: Path) -> Run:
    requests = tmp_path / "slice.jsonl"
    body = {"prompt": "say", "max_tokens": 8, "temperature": 0}
    requests.write_text("".join(json.dumps({"id": f"r{i}", "body": body}) + "\n" for i in range(3)))
    run("init", "line", "--slice", str(requests))
    models = [str(DEMO / "models" / name) for name in ("target-base", "draft-base")]
    run("register", "line", "--target", models[0], "--draft", models[1], "-k", "4")
    return run
