"""How long the release commands take, against the time of importing their libraries.

    python benchmarks/commands.py [--runs N] [--json FILE]

The yardstick is `python -c 'import click, sqlalchemy, alembic'` on the same machine in the same
minutes: every run times the yardstick and each command once, in turn, so that a slow spell of the
machine hits all of them. Reported is the median over the runs, as a ratio. Before anything is timed
the commands' effect is checked. Exit code 1: a check failed or a target was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

YARDSTICK = (sys.executable, "-c", "import click, sqlalchemy, alembic")
TARGETS = {"--help": 0.3, "status": 1.0, "promote": 1.0, "rollback": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """`seconds` is a median; `ratio` is to the median of the yardstick."""

    name: str
    seconds: float
    ratio: float
    target: float


def write_tiny_model(folder: Path, *, fill: float) -> Path:
    """A model folder of some hundred bytes that registers without any framework: one tensor of
    equal values, a tokenizer of four tokens."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 4,
        "hidden_size": 2,
        "intermediate_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "max_position_embeddings": 64,
    }
    vocabulary = {"a": 0, "b": 1, "c": 2, "d": 3}
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    data = struct.pack("<8f", *[fill] * 8)
    tensor = {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, len(data)]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A registry with lines `line-0`…, each with version 1 in production and version 2 waiting."""

    folder: Path

    def run(self, *arguments: str) -> str:
        """stdout of a `pairgate …` process; any exit code but 0 ends the benchmark."""
        done = subprocess.run(
            [sys.executable, "-m", "pairgate", *arguments],
            env={**os.environ, "PAIRGATE_HOME": str(self.folder)},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            shown = " ".join(arguments)
            raise SystemExit(f"`pairgate {shown}` ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def pointers(self, line: str) -> tuple[int | None, int | None]:
        """(production, previous) as `status --json` says it."""
        head = json.loads(self.run("status", line, "--json"))[0]["head"]
        return head["production"], head["previous"]


def make_home(folder: Path, n_lines: int) -> Home:
    """Through the commands themselves, so the benchmark stands on what a user has."""
    target = write_tiny_model(folder / "target", fill=0.5)
    drafts = [write_tiny_model(folder / f"draft-{i}", fill=float(i)) for i in (1, 2)]
    home = Home(folder=folder / "home")
    for i in range(n_lines):
        home.run("init", f"line-{i}")
        for draft in drafts:
            models = ("--target", str(target), "--draft", str(draft))
            home.run("register", f"line-{i}", *models, "-k", "2")
        home.run("promote", f"line-{i}@1", "--override", "benchmark")
    return home


def check(home: Home, line: str) -> None:
    """What is timed also does what it says."""
    assert "rollback" in home.run("--help")
    assert home.pointers(line) == (1, None)
    home.run("promote", f"{line}@2", "--override", "benchmark")
    assert home.pointers(line) == (2, 1)
    home.run("rollback", line, "--reason", "benchmark")
    assert home.pointers(line) == (1, None)


def measure(home: Home, lines: list[str]) -> list[Timing]:
    """One run per line, the yardstick and the commands alternating within it."""
    seconds: dict[str, list[float]] = {"yardstick": [], **{name: [] for name in TARGETS}}
    for line in lines:
        commands = {
            "--help": ("--help",),
            "status": ("status", line),
            "promote": ("promote", f"{line}@2", "--override", "benchmark"),
            "rollback": ("rollback", line, "--reason", "benchmark"),
        }
        started = time.perf_counter()
        subprocess.run(YARDSTICK, check=True)
        seconds["yardstick"].append(time.perf_counter() - started)
        for name, arguments in commands.items():
            started = time.perf_counter()
            home.run(*arguments)
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        Timing(
            name=name,
            seconds=medians[name],
            ratio=medians[name] / medians["yardstick"],
            target=target,
        )
        for name, target in TARGETS.items()
    ]


def main() -> int:
    """Prints one line per command; 1 when a target was missed."""
    parser = argparse.ArgumentParser(description="Ratios of command times to library imports.")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    # A promotion leaves a delivery running that may still write while the folder goes away.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = make_home(Path(folder), options.runs + 1)
        check(home, f"line-{options.runs}")
        timings = measure(home, [f"line-{i}" for i in range(options.runs)])
    for t in timings:
        verdict = "ok" if t.ratio <= t.target else "MISSED"
        print(f"{t.name:9} {t.seconds * 1e3:6.0f} ms  x{t.ratio:.2f} (<= {t.target})  {verdict}")
    if options.json:
        rows = {t.name: {"ms": t.seconds * 1e3, "ratio": t.ratio} for t in timings}
        options.json.write_text(json.dumps(rows, indent=2))
    return int(any(t.ratio > t.target for t in timings))


if __name__ == "__main__":
    sys.exit(main())
