"""The whole story through the command line, on real models: one release line from init to audit.

The steps build on each other, so they are one test; a step that fails names itself.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from typing import Any

import pytest
from bench import Bench, Ran

pytestmark = pytest.mark.slow


def _register(bench: Bench, draft: str, k: int) -> Ran:
    paths = ("--target", str(bench.root / "target"), "--draft", str(bench.root / draft))
    return bench.run("register", "story", *paths, "-k", str(k))


def _status(bench: Bench) -> dict[str, Any]:
    lines = bench.json("status", "story")
    assert isinstance(lines, list)
    return lines[0]


def _pointers(bench: Bench) -> tuple[int | None, int | None]:
    head = _status(bench)["head"]
    return head["production"], head["previous"]


def test_a_line_from_init_to_audit(bench: Bench) -> None:
    made = bench.run(
        "init",
        "story",
        "--policy",
        str(bench.root / "policy.toml"),
        "--slice",
        str(bench.root / "slice.jsonl"),
        "--concurrency",
        "4",
    )
    assert made.code == 0, made.err
    assert "120 read = 120 kept" in made.out

    # A pair of a model with itself: acceptance is 1 at temperature 0 and the output its own.
    assert _register(bench, "target", 3).code == 0
    assert bench.run("promote", "story@1").code == 12, "no evidence yet"
    first = bench.run("gate", "story@1", "--verdict", str(bench.root / "verdict.json"))
    assert first.code == 0, first.out + first.err
    verdict = json.loads((bench.root / "verdict.json").read_text())
    assert verdict["outcome"] == "PASS"
    shown = bench.json("show", "story@1")
    assert isinstance(shown, dict)
    fidelity = shown["evaluation"]["measurements"]["fidelity"]
    assert fidelity["n_divergent"] == 0
    assert fidelity["n_greedy_tokens"] > 300
    assert bench.run("promote", "story@1").code == 0
    assert bench.run("promote", "story@1").code == 0, "already so"
    again = bench.run("gate", "story@1")
    assert again.code == 0, "a CI job that is run again"
    assert "already has valid evidence" in again.err

    # Another random draft: the gate refuses, and so does promote.
    assert _register(bench, "other", 3).code == 0
    second = bench.run("gate", "story@2")
    assert second.code == 10, second.out + second.err
    assert "token acceptance" in second.out
    refused = bench.run("promote", "story@2")
    assert refused.code == 12
    assert "FAIL" in refused.err
    assert _pointers(bench) == (1, None)

    # The same models with another K are another pair.
    assert _register(bench, "target", 2).code == 0
    assert _register(bench, "target", 2).out.startswith("story@3"), "same content, same version"
    assert bench.run("gate", "story@3").code == 0
    assert bench.run("promote", "story@3", "--expect-current", "story@2").code == 13
    assert bench.run("promote", "story@3", "--expect-current", "story@1").code == 0
    assert _pointers(bench) == (3, 1)

    # Back in one command; a second one has nowhere to go.
    assert bench.run("rollback", "story", "--reason", "test").code == 0
    assert _pointers(bench) == (1, None)
    assert bench.run("rollback", "story").code == 15
    assert bench.run("promote", "story@3").code == 15, "withdrawn"
    assert bench.run("promote", "story@3", "--reinstate", "false alarm").code == 0
    assert _pointers(bench) == (3, 1)

    assert bench.run("disable", "story", "--reason", "draft misbehaves").code == 0
    assert _status(bench)["head"]["disabled"] == 3
    alone = bench.run("evaluate", "story@2")
    assert alone.code == 10, "compared with a production that has no draft: " + alone.err
    assert bench.run("enable", "story").code == 0
    assert _pointers(bench)[0] == 3

    # A copied home judges its own copy of the traces and leaves the original alone.
    before = sorted(p.name for p in (bench.home / "evaluations").iterdir())
    copied = bench.root / "copied"
    shutil.copytree(bench.home, copied, symlinks=True)
    judged = bench.run("--home", str(copied), "judge", "story@1")
    assert judged.code in (0, 11), judged.err  # a second look has half the alpha
    assert sorted(p.name for p in (bench.home / "evaluations").iterdir()) == before
    shutil.rmtree(copied / "evaluations")
    assert bench.run("--home", str(copied), "judge", "story@1").code == 12

    assert bench.run("audit", "verify", "story").code == 0
    assert bench.run("history", "story").code == 0
    assert bench.run("compare", "story@1", "story@3").code == 0
    differences = bench.json("diff", "story@1", "story@3")
    assert differences["decoding"] == [
        {"part": "decoding.num_speculative_tokens", "before": "3", "after": "2"}
    ]
    assert not differences["files"] and not differences["models"]

    assert bench.run("judge", "story@1").code == 0
    folder = next(p for p in (bench.home / "evaluations").glob("story@1-*") if p.is_dir())
    next(iter(sorted((folder / "traces").glob("speed-*.parquet")))).unlink()
    lost = bench.run("judge", "story@1")
    assert lost.code == 14, lost.err

    pulled = bench.root / "pulled"
    assert bench.run("pull", "story@production", "--to", str(pulled)).code == 0
    original = (bench.root / "target" / "model.safetensors").read_bytes()
    assert (pulled / "target" / "model.safetensors").read_bytes() == original


def test_a_killed_evaluation_resumes_as_the_same_attempt(bench: Bench) -> None:
    assert _register(bench, "target", 5).out.startswith("story@")
    number = max(v["version"] for v in _status(bench)["versions"])
    running = bench.start("evaluate", f"story@{number}")
    traces = bench.home / "evaluations"
    deadline = time.monotonic() + 120
    while not list(traces.glob(f"story@{number}-*/traces/acceptance-*.parquet")):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.communicate()

    folder = next(traces.glob(f"story@{number}-*/traces"))
    kept = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.parquet")}
    again = bench.run("evaluate", f"story@{number}")
    assert again.code == 0, again.out + again.err
    assert "resum" in again.err
    assert {p.name: p.stat().st_mtime_ns for p in folder.glob("*.parquet")}.items() >= kept.items()
    rows = bench.json("show", f"story@{number}")
    assert isinstance(rows, dict)
    assert [row["attempt"] for row in rows["evaluations"]] == [1]
