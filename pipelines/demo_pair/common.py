"""Sizes, paths and small helpers that all parts of the recipe share."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DOMAINS = ("python", "manual", "sql", "scripture", "general")
BASE_DOMAINS = ("python", "manual", "general")
RELEASE_DOMAINS = ("python", "manual", "sql", "scripture")
EOS = "<|endoftext|>"


@dataclass(frozen=True)
class Preset:
    """Everything that differs between the shipped pair and the smoke run."""

    vocab: int = 2048
    hidden: int = 192
    heads: int = 3  # 3 x 64: vLLM's attention kernels want a head size of 64
    intermediate: int = 512
    target_layers: int = 12
    draft_layers: int = 1
    positions: int = 1024
    window: int = 320  # longest prompt (200) + longest output (96), and some room
    batch: int = 12
    target_steps: int = 760
    tune_steps: int = 300
    draft_steps: int = 550
    redraft_steps: int = 1000
    target_lr: float = 2e-3
    tune_lr: float = 1.2e-3
    draft_lr: float = 3e-3
    sampled_sequences: int = 512
    sampled_batch: int = 128
    train_chars: int = 5_000_000  # for each domain, at most
    heldout_chars: int = 300_000
    requests: int = 120  # for each domain
    new_tokens: int = 96
    offline: bool = False


FULL = Preset()
SMOKE = Preset(
    vocab=512,
    hidden=64,
    heads=1,
    intermediate=128,
    target_layers=2,
    batch=8,
    target_steps=30,
    tune_steps=30,
    draft_steps=30,
    redraft_steps=30,
    sampled_sequences=32,
    sampled_batch=32,
    train_chars=300_000,
    heldout_chars=60_000,
    requests=8,
    offline=True,
)


@dataclass(frozen=True)
class Work:
    """Where a run keeps its files. `root` is scratch, `ship` is what goes into the repository."""

    root: Path
    ship: Path

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    def train_text(self, domain: str) -> Path:
        return self.root / "corpus" / f"{domain}.train.jsonl"

    def heldout_text(self, domain: str) -> Path:
        return self.root / "corpus" / f"{domain}.heldout.jsonl"

    def tokens(self, domain: str) -> Path:
        return self.root / "tokens" / f"{domain}.npy"

    def checkpoint(self, name: str) -> Path:
        return self.root / "checkpoints" / f"{name}.pt"

    def sampled(self, name: str) -> Path:
        return self.root / "sampled" / f"{name}.npy"

    def model(self, name: str) -> Path:
        return self.ship / "models" / name

    def slice(self, name: str) -> Path:
        return self.ship / "slices" / f"{name}.jsonl"


def read_jsonl(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_text_atomically(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_jsonl(path: Path, rows: list[dict]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_text_atomically(path, "".join(lines))


@contextmanager
def directory_written_whole(final: Path) -> Iterator[Path]:
    """Fill a neighbour of `final`, then swap it in, so that `final` is always complete."""
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.partial")
    old = final.with_name(f".{final.name}.old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    yield partial
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def timed(work: Work, part: str) -> Iterator[None]:
    """Append how long a part took to timings.jsonl (several lines when it was resumed)."""
    start = time.monotonic()
    print(f"== {part}", flush=True)
    yield
    row = {"part": part, "seconds": round(time.monotonic() - start, 1)}
    with (work.root / "timings.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(f"== {part}: {row['seconds']} s", flush=True)
