"""Small checkpoints with the shapes, tensor names and config keys of public models.

DeepSeek-V3 (MTP as the layer after the last), Qwen3-Next (`mtp.*`), an EAGLE-3 head in the
speculators format, a DFlash head. The values are random, the tokenizers come from the caller.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, LAYERS, VOCAB = 16, 4, 320
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "BOOL": 1}
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""name -> (dtype in the header, shape, little-endian bytes)"""


def random_tensor(
    shape: tuple[int, ...], *, dtype: str = "BF16", seed: int = 0
) -> tuple[str, tuple[int, ...], bytes]:
    """Finite values: small exponents only, in every dtype."""
    data = np.random.default_rng(seed).integers(0, 64, math.prod(shape) * _BYTES[dtype])
    return dtype, shape, data.astype(np.uint8).tobytes()


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """The format by hand: NumPy has neither bfloat16 nor float8."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    blob = struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values())
    path.write_bytes(blob)


def write_model(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, tokenizer_json: str | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer_json is not None:
        (folder / "tokenizer.json").write_text(tokenizer_json)
        (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


TARGET: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
}


def trunk(*, seed: int = 0) -> Tensors:
    """The layers of a small target; another seed is another fine-tune."""
    named: Tensors = {"model.embed_tokens.weight": random_tensor((VOCAB, HIDDEN), seed=seed)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        named[name] = random_tensor((HIDDEN, HIDDEN), seed=seed + layer)
    return named


DEEPSEEK = TARGET | {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_nextn_predict_layers": 1,
    "head_dim": 8,
}
QWEN3_NEXT = TARGET | {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "head_dim": 8,
}


def deepseek_mtp(*, dtype: str = "BF16", seed: int = 90) -> Tensors:
    """Layer 61 of DeepSeek-V3, which here is layer 4."""
    at = f"model.layers.{LAYERS}"
    return {
        f"{at}.embed_tokens.weight": random_tensor((VOCAB, HIDDEN), seed=seed),
        f"{at}.enorm.weight": random_tensor((HIDDEN,), seed=seed),
        f"{at}.hnorm.weight": random_tensor((HIDDEN,), seed=seed),
        f"{at}.eh_proj.weight": random_tensor((HIDDEN, 2 * HIDDEN), seed=seed),
        f"{at}.self_attn.o_proj.weight": random_tensor((HIDDEN, HIDDEN), dtype=dtype, seed=seed),
        f"{at}.mlp.down_proj.weight": random_tensor((HIDDEN, 32), dtype=dtype, seed=seed + 1),
        f"{at}.shared_head.norm.weight": random_tensor((HIDDEN,), seed=seed),
        f"{at}.shared_head.head.weight": random_tensor((VOCAB, HIDDEN), seed=seed + 2),
    }


def qwen3_next_mtp(*, dtype: str = "BF16", seed: int = 90) -> Tensors:
    return {
        "mtp.fc.weight": random_tensor((HIDDEN, 2 * HIDDEN), seed=seed),
        "mtp.norm.weight": random_tensor((HIDDEN,), seed=seed),
        "mtp.pre_fc_norm_embedding.weight": random_tensor((HIDDEN,), seed=seed),
        "mtp.pre_fc_norm_hidden.weight": random_tensor((HIDDEN,), seed=seed),
        "mtp.layers.0.self_attn.q_proj.weight": random_tensor(
            (2 * HIDDEN, HIDDEN), dtype=dtype, seed=seed
        ),
        "mtp.layers.0.mlp.gate.weight": random_tensor((8, HIDDEN), seed=seed),
    }


N_DRAFT_IDS = 40
TAKEN = tuple(range(0, 2 * N_DRAFT_IDS, 2))


def eagle3_speculator(verifier: str) -> dict[str, Any]:
    """config.json in the speculators format."""
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculator_model",
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": N_DRAFT_IDS,
        "target_hidden_size": HIDDEN,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "sample", "speculative_tokens": 7},
                {"proposal_type": "greedy", "speculative_tokens": 5, "accept_tolerance": 0.0},
            ],
            "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": TARGET | {"num_hidden_layers": 1},
    }


def eagle3_tensors() -> Tensors:
    offsets = np.array([t - i for i, t in enumerate(TAKEN)], "<i8")
    mask = np.zeros(VOCAB, np.uint8)
    mask[list(TAKEN)] = 1
    return {
        "fc.weight": random_tensor((HIDDEN, 3 * HIDDEN)),
        "layers.0.self_attn.q_proj.weight": random_tensor((HIDDEN, 2 * HIDDEN)),
        "lm_head.weight": random_tensor((N_DRAFT_IDS, HIDDEN)),
        "d2t": ("I64", (N_DRAFT_IDS,), offsets.tobytes()),
        "t2d": ("BOOL", (VOCAB,), mask.tobytes()),
    }


DFLASH: dict[str, Any] = TARGET | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "head_dim": 8,
    "num_hidden_layers": 2,
    "num_target_layers": LAYERS,
    "block_size": 8,
    "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [1, 3]},
}


def dflash_tensors() -> Tensors:
    return {
        "fc.weight": random_tensor((HIDDEN, 2 * HIDDEN)),
        "hidden_norm.weight": random_tensor((HIDDEN,)),
        "layers.0.self_attn.q_proj.weight": random_tensor((HIDDEN, HIDDEN)),
    }
