"""Small real model folders: a config, safetensors of random values, a trained tokenizer."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


# --- a stand-in for S3: moto's server, a process of its own on loopback ------------------------


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("moto") / "log").open("wb")
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1"]
    server = subprocess.Popen([*command, "-p", str(port)], stdout=log, stderr=log)
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait()
    log.close()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server's file system; `s3.bucket` is new."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "stand-in")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem(use_listings_cache=False)
    fs.bucket = f"bucket-{secrets.token_hex(6)}"
    fs.mkdir(fs.bucket)
    yield fs
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def remote_ws(tmp_path: Path, s3: Any) -> Iterator[Workspace]:
    """A workspace whose store is on the stand-in."""
    home, url = str(tmp_path / "home"), f"s3://{s3.bucket}/pairs"
    workspace = Workspace.open(home=home, store_url=url, create=True)
    workspace.registry.create_line("chat", now())
    yield workspace
    workspace.close()
