"""A home, real tiny models on disk with a real tokenizer, and the installed command line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [
    "select",
    "from",
    "where",
    "group",
    "order",
    "join",
    "insert",
    "into",
    "values",
    "table",
    "index",
    "key",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The folder of one story and the command line in it."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "PAIRGATE_HOME": str(self.home),
            "PAIRGATE_DELIVERY": "off",
            "PAIRGATE_MLFLOW": "off",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pairgate", *args],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str) -> Ran:
        process = self.start(*args)
        out, err = process.communicate(timeout=300)
        return Ran(code=process.returncode, out=out, err=err)

    def json(self, *args: str) -> object:
        ran = self.run(*args, "--json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)


def _tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>")


def _model(folder: Path, tokenizer: PreTrainedTokenizerFast, *, layers: int, seed: int) -> None:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _slice(path: Path) -> None:
    rng = random.Random(7)
    with path.open("w") as file:
        for i in range(120):
            body = {
                "prompt": " ".join(rng.choices(WORDS, k=rng.randint(4, 12))) + f" {i}",
                "max_tokens": rng.randint(12, 24),
                "temperature": 0 if i % 2 else 0.9,
                "seed": i,
            }
            record = {"id": f"r{i}", "domain": "ab"[i % 2], "session": None, "body": body}
            file.write(json.dumps(record) + "\n")


POLICY = """
name = "story"
[rules.acceptance]
mode = "gate"
rate = "token_acceptance"
threshold = 0.7
[rules.fidelity]
mode = "gate"
min_tokens = 500
[rules.memory]
mode = "gate"
[rules.speedup]
mode = "advise"
[replay]
min_blocks = 3
max_blocks = 3
"""


def make_bench(root: Path) -> Bench:
    """Models `target`, `other` (another random draft) and a slice of 120 requests."""
    tokenizer = _tokenizer()
    _model(root / "target", tokenizer, layers=2, seed=0)
    _model(root / "other", tokenizer, layers=1, seed=1)
    _slice(root / "slice.jsonl")
    (root / "policy.toml").write_text(POLICY)
    return Bench(root=root)
