"""Small real model folders: a config, safetensors of random values, a trained tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pairgate.app.workspace import Workspace, now

TEXTS = ["the draft proposes and the target decides"] * 4 + ["def f(x): return x + 1"] * 4
MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer.to_str()


@pytest.fixture
def make_model(tmp_path: Path, tokenizer_json: str) -> MakeModel:
    """make_model(name, seed=0, **config) writes a folder and returns it."""

    def make(name: str, *, seed: int = 0, **config: object) -> Path:
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        document = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 320,
            "max_position_embeddings": 64,
        } | config
        (folder / "config.json").write_text(json.dumps(document))
        (folder / "tokenizer.json").write_text(tokenizer_json)
        (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
        rng = np.random.default_rng(seed)
        weights = {
            "model.embed_tokens.weight": rng.standard_normal((320, 16)).astype(np.float32),
            "model.norm.weight": np.ones(16, np.float32),
        }
        save_file(weights, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture
def ws(tmp_path: Path):
    workspace = Workspace.open(home=str(tmp_path / "home"), create=True)
    workspace.registry.create_line("chat", now())
    yield workspace
    workspace.close()
