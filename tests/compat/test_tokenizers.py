"""Tokenizers compared by content: built with the tokenizers package, read from their files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from pairgate.compat.match import MatchKind, compare_tokenizers, require_match
from pairgate.compat.tokenizer import Tokenizer, read_tokenizer
from pairgate.errors import InvalidInput, Refused

TEXTS = ["the draft proposes, the target decides. naïve 東京 🙂"] * 5


def byte_level(vocab_size: int = 300) -> HfTokenizer:
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def sentencepiece_like() -> HfTokenizer:
    """Llama 2's kind: visible spaces, bytes as <0xNN>."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["\u2581", "t", "h", "e", "\u2581t", "he", "\u2581the"]
    merges = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he")]
    vocab = {p: i for i, p in enumerate(pieces)}
    tokenizer = HfTokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def unigram() -> HfTokenizer:
    pieces = [("<unk>", 0.0), ("\u2581the", -1.0), ("\u2581", -2.0), ("t", -3.0)]
    tokenizer = HfTokenizer(models.Unigram(pieces, 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def read(spec: HfTokenizer | str, **config: object) -> Tokenizer:
    text = spec if isinstance(spec, str) else spec.to_str()
    documents = {
        "tokenizer.json": text.encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    tokenizer = read_tokenizer(documents, role="target")
    assert tokenizer is not None
    return tokenizer


def compare(target: Tokenizer, draft: Tokenizer, target_size: int = 400, draft_size: int = 400):
    return compare_tokenizers(
        target, draft, target_vocab_size=target_size, draft_vocab_size=draft_size
    )


def edited(tokenizer: HfTokenizer, edit: Callable[[dict[str, Any]], None]) -> str:
    spec = json.loads(tokenizer.to_str())
    edit(spec)
    return json.dumps(spec)


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, unigram])
def test_the_bytes_of_tokens_are_what_the_library_decodes(make) -> None:
    hf = make()
    tokenizer = read(hf)
    assert len(tokenizer.tokens) == hf.get_vocab_size()
    for text in ("the the", "the"):
        ids = hf.encode(text).ids
        assert b"".join(tokenizer.tokens[i] for i in ids).lstrip() == text.encode()


def test_every_text_is_the_bytes_of_its_ids() -> None:
    hf = byte_level()
    tokenizer = read(hf)

    @given(st.text(max_size=40))
    def check(text: str) -> None:
        ids = hf.encode(text, add_special_tokens=False).ids
        if "<|end|>" not in text:
            assert b"".join(tokenizer.tokens[i] for i in ids) == text.encode()

    check()


def test_equal_and_padded() -> None:
    one, two = read(byte_level()), read(byte_level())
    assert one.digest == two.digest
    assert compare(one, two).kind is MatchKind.EQUAL
    padded = compare(one, two, 400, 512)
    assert padded.kind is MatchKind.PADDED_TAIL
    require_match(padded)


def test_how_the_file_is_written_does_not_matter() -> None:
    hf = byte_level()

    def older(spec: dict[str, Any]) -> None:
        model = spec["model"]
        model["merges"] = [" ".join(pair) for pair in model["merges"]]
        model["vocab"] = dict(reversed(model["vocab"].items()))
        del model["dropout"]
        spec["truncation"] = {"max_length": 5}

    one, two = read(hf, eos_token="<|end|>"), read(edited(hf, older), eos_token="<|end|>")
    assert one.digest == two.digest
    old_pair = {
        "vocab.json": json.dumps(hf.get_vocab()).encode(),
        "merges.txt": b"#version: 0.2\n"
        + "\n".join(" ".join(m) for m in json.loads(hf.to_str())["model"]["merges"]).encode(),
    }
    gpt2_like = read_tokenizer(old_pair, role="draft")
    assert gpt2_like is not None
    assert gpt2_like.tokens == one.tokens


def test_other_content_of_equal_size_is_refused_with_the_first_ids() -> None:
    def swap(spec: dict[str, Any]) -> None:
        vocab = spec["model"]["vocab"]
        vocab["the"], vocab["a"] = vocab["a"], vocab["the"]

    hf = byte_level()
    one, two = read(hf), read(edited(hf, swap))
    assert one.digest != two.digest
    match = compare(one, two)
    assert match.kind is MatchKind.INCOMPATIBLE
    assert match.n_differing == 2
    assert hf.get_vocab()["a"] == match.differences[0].token_id
    with pytest.raises(Refused, match=r"target 'a', draft 'the'"):
        require_match(match)


def test_another_kind_of_tokenizer_is_incompatible() -> None:
    match = compare(read(byte_level()), read(sentencepiece_like()))
    assert match.kind is MatchKind.INCOMPATIBLE
    assert len(match.differences) == 5


def test_more_added_tokens_on_one_side_are_a_subset() -> None:
    larger = byte_level()
    larger.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    one, two = read(byte_level()), read(larger)
    for target, draft in ((one, two), (two, one)):
        match = compare(target, draft)
        assert (match.kind, match.n_differing) == (MatchKind.SUBSET, 2)
        require_match(match)


def test_a_draft_without_an_embedding_for_the_targets_tokens_is_refused() -> None:
    larger = byte_level()
    size = larger.get_vocab_size()
    larger.add_special_tokens(["<|im_end|>"])
    match = compare(read(larger), read(byte_level()), 400, size)
    assert (match.kind, match.n_unreadable) == (MatchKind.SUBSET, 1)
    with pytest.raises(Refused, match="no embedding for 1 of"):
        require_match(match)


def test_equal_ids_with_other_merges_specials_or_template_warn() -> None:
    def fewer_merges(spec: dict[str, Any]) -> None:
        spec["model"]["merges"].pop()

    hf = byte_level()
    one = read(hf, eos_token="<|end|>", chat_template="a")
    two = read(edited(hf, fewer_merges), eos_token={"content": "the"}, chat_template="b")
    match = compare(one, two)
    assert match.kind is MatchKind.EQUAL
    assert len(match.warnings) == 3
    assert one.digest != two.digest
    assert one.digest == read(hf, eos_token="<|end|>", chat_template="b").digest


@pytest.mark.parametrize(
    "edit",
    [
        lambda spec: spec["model"]["vocab"].update({"x" * 9: 3}),
        lambda spec: spec["model"]["vocab"].update({"x" * 9: -1}),
        lambda spec: spec["model"]["vocab"].update({"x" * 9: "7"}),
        lambda spec: spec.pop("model"),
        lambda spec: spec.update(model=[]),
        lambda spec: spec.update(added_tokens=[{"id": 1}]),
    ],
)
def test_tokenizers_that_contradict_themselves(edit) -> None:
    with pytest.raises(InvalidInput, match="tokenizer"):
        read(edited(byte_level(), edit))


def test_no_tokenizer_is_none() -> None:
    assert read_tokenizer({"config.json": b"{}"}, role="draft") is None


def test_a_sentencepiece_model_is_converted(tmp_path) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    documents = {
        "tokenizer.model": model.getvalue(),
        "config.json": b'{"model_type": "llama"}',
        "tokenizer_config.json": b'{"tokenizer_class": "LlamaTokenizer"}',
    }
    tokenizer = read_tokenizer(documents, role="target")
    assert tokenizer is not None
    assert {b" the", bytes([0xFF])} <= set(tokenizer.tokens.values())
