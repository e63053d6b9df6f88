"""Build, load and export the Llama models."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from common import EOS, Preset, Work, directory_written_whole
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM


def build_model(work: Work, preset: Preset, layers: int, seed: int) -> LlamaForCausalLM:
    tokenizer = AutoTokenizer.from_pretrained(work.tokenizer)
    eos = tokenizer.convert_tokens_to_ids(EOS)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=preset.hidden,
        intermediate_size=preset.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.heads,
        head_dim=preset.hidden // preset.heads,
        max_position_embeddings=preset.positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).to(torch.bfloat16)


def load_checkpoint(work: Work, model: LlamaForCausalLM, name: str) -> LlamaForCausalLM:
    state = torch.load(work.checkpoint(name), weights_only=True)
    model.load_state_dict(state["model"])
    return model


def export(work: Work, model: LlamaForCausalLM, name: str) -> Path:
    """Weights in bfloat16, config, generation config and tokenizer, in one complete directory."""
    tokenizer = AutoTokenizer.from_pretrained(work.tokenizer)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id
    )
    with directory_written_whole(work.model(name)) as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        # Copied, not saved again: all four models then hold the same tokenizer, byte for byte.
        for path in work.tokenizer.iterdir():
            shutil.copy(path, folder)
        for path in folder.iterdir():
            path.chmod(0o644)  # safetensors writes for its owner alone
    return work.model(name)
