"""`evaluate` on servers, through the command line: started and attached, with the fake."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fake_vllm import FakeVllm, Running

from pairgate.engines.hardware import cpu_hardware_class

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "pipelines" / "demo_pair" / "models"
FAKE = shlex.join([sys.executable, str(Path(__file__).with_name("fake_vllm.py"))])
POLICY = """
name = "small"
[rules.acceptance]
mode = "gate"
rate = "token_acceptance"
threshold = 0.5
[rules.fidelity]
mode = "gate"
min_tokens = 100
[rules.memory]
mode = "advise"
[rules.cache]
mode = "gate"
[replay]
min_blocks = 3
max_blocks = 3
requests_per_block = 4
"""


class Bench:
    """A line with a registered pair and a vllm profile."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "policy.toml").write_text(POLICY)
        lines = [
            {
                "id": f"r{i}",
                "domain": "all",
                "body": {"prompt": f"request number {i}", "max_tokens": 12, "temperature": 0},
            }
            for i in range(110)
        ]
        (root / "slice.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.run(
            *("init", "line", "--policy", f"{root}/policy.toml"),
            *("--slice", f"{root}/slice.jsonl", "--concurrency", "4"),
        )
        target, draft = (str(MODELS / name) for name in ("target-base", "draft-base"))
        self.run("register", "line", "--target", target, "--draft", draft, "-k", "4")
        self.run(
            *(
                "profile",
                "set",
                "line",
                "served",
                "--from-command",
                "vllm serve m --gpu-memory-utilization 0.4",
            ),
            *("--engine-version", "0.32.0", "--hardware-class", "h100x1", "--concurrency", "4"),
        )

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PAIRGATE_HOME": f"{self.root}/home"}
        environ |= {"PAIRGATE_DELIVERY": "off", "PAIRGATE_MLFLOW": "off"}
        ran = subprocess.run(
            [sys.executable, "-m", "pairgate", *words],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("served"))


def test_started_servers_give_a_verdict(bench: Bench) -> None:
    done = bench.run(
        *("evaluate", "line@1", "--profile", "served", "--engine-command", FAKE, "--json")
    )
    document = json.loads(done.stdout)
    outcomes = {c["rule"]: c["outcome"] for c in document["checks"]}
    assert document["outcome"] == "PASS", document
    hardware = document["binding"]["hardware_class"]
    assert hardware == cpu_hardware_class(), "what it ran on, not what the profile says"
    assert {outcomes[r] for r in ("replay", "acceptance", "fidelity", "cache")} == {"PASS"}


def test_attached_servers_need_a_statement_of_what_they_serve(bench: Bench) -> None:
    with (
        Running(FakeVllm(k=4, max_model_len=1024)) as spec,
        Running(FakeVllm(max_model_len=1024)) as target,
    ):
        where = ("--endpoint", spec.url, "--baseline-endpoint", target.url)
        asked = ("evaluate", "line@1", "--profile", "served", *where)
        silent = bench.run(*asked, code=2)
        assert "state it: --serves line@1" in silent.stderr
        other = bench.run(*asked, "--serves", "line@2", code=2)
        assert "--serves line@2 says" in other.stderr
        done = bench.run(*asked, "--serves", "line@1", "--json")
    document = json.loads(done.stdout)
    shown = json.loads(bench.run("show", "line@1", "--json").stdout)
    resolved = json.loads(shown["evaluation"]["provenance"]["engine"]["resolved"])
    assert resolved["mode"] == "attached"
    assert resolved["serves"] == "line@1 (stated, not verified)"
    assert resolved["model_root"] == "/models/m"
    assert document["binding"]["hardware_class"] == "h100x1"


def test_a_server_option_without_a_serving_engine_is_refused(bench: Bench) -> None:
    refused = bench.run("evaluate", "line@1", "--endpoint", "http://127.0.0.1:1", code=2)
    assert "the profile's engine is native" in refused.stderr
