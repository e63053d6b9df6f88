"""Train the tokenizer that all four models share, and encode the training text with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from common import DOMAINS, EOS, Preset, Work, directory_written_whole, read_jsonl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

CHARS_PER_DOMAIN = 2_000_000  # enough for 2,000 merges, and no domain outweighs another


def train(work: Work, preset: Preset) -> None:
    if work.tokenizer.exists():
        return
    texts = []
    for domain in DOMAINS:
        chars = 0
        for row in read_jsonl(work.train_text(domain)):
            if chars >= CHARS_PER_DOMAIN:
                break
            texts.append(row["text"])
            chars += len(row["text"])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=preset.vocab,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=preset.positions,
        clean_up_tokenization_spaces=False,
    )
    with directory_written_whole(work.tokenizer) as folder:
        fast.save_pretrained(folder)
        make_portable(folder / "tokenizer_config.json")


def make_portable(path: Path) -> None:
    """Name the class that every transformers version knows; drop what describes this machine."""
    config = json.loads(path.read_text())
    for key in ("backend", "is_local", "local_files_only"):
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")


def encode(work: Work) -> None:
    tokenizer = AutoTokenizer.from_pretrained(work.tokenizer)
    for domain in DOMAINS:
        path = work.tokens(domain)
        if path.exists():
            continue
        texts = [row["text"] for row in read_jsonl(work.train_text(domain))]
        stream: list[int] = []
        for ids in tokenizer(texts)["input_ids"]:
            stream += [*ids, tokenizer.eos_token_id]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, np.array(stream, dtype=np.uint16))
        partial.rename(path)
        chars = sum(len(text) for text in texts)
        print(f"{domain}: {len(stream)} tokens, {chars / len(stream):.2f} characters a token")
