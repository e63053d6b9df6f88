"""What a tokenizer's ids mean, read from its files: the bytes of every token, merges, specials."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pairgate.compat.documents import Documents, parse_object
from pairgate.domain.canonical import digest_of
from pairgate.errors import InvalidInput, MissingExtra

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE_MARK = "\u2581"  # sentencepiece's visible space


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """`tokens` maps every id to its bytes; `special` maps a role such as `eos_token` to its id.

    `segmentation_digest` is over the model's merges or scores, normalizer and pre-tokenizer: how
    text is cut, given the same tokens.
    """

    tokens: Mapping[int, bytes]
    special: Mapping[str, int]
    added_ids: frozenset[int]
    segmentation_digest: str
    chat_template: str | None

    @property
    def digest(self) -> str:
        """Over the content, so that another way to write the same tokenizer does not change it;
        the chat template is left out."""
        return digest_of(
            {
                "tokens": [[i, self.tokens[i].hex()] for i in sorted(self.tokens)],
                "special": dict(self.special),
                "added": sorted(self.added_ids),
                "segmentation": self.segmentation_digest,
            }
        )


def read_tokenizer(documents: Documents, *, role: str) -> Tokenizer | None:
    """The tokenizer among a model's files; None when there is none.

    Raises `InvalidInput` for one that contradicts itself, `MissingExtra` for a sentencepiece
    model without transformers to convert it.
    """
    if "tokenizer.json" in documents:
        spec = parse_object(documents, "tokenizer.json", role)
    elif "vocab.json" in documents and "merges.txt" in documents:
        spec = _byte_level_spec(documents, role)
    elif any(name in documents for name in _SENTENCEPIECE):
        spec = _converted_spec(documents, role)
    else:
        return None
    config = parse_object(documents, "tokenizer_config.json", role)
    try:
        return _build(spec, config, _chat_template(documents, config, role))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise InvalidInput(f"the tokenizer of the {role} cannot be read: {error!r}") from error


def _build(spec: Mapping[str, Any], config: Mapping[str, Any], template: str | None) -> Tokenizer:
    model = spec["model"]
    to_bytes = _TokenBytes(spec)
    tokens: dict[int, bytes] = {}
    for text, token_id in _vocabulary(model):
        _check_token(text, token_id)
        if token_id in tokens:
            raise ValueError(f"two tokens have the id {token_id}")
        tokens[token_id] = to_bytes(text)
    added = {entry["content"]: entry["id"] for entry in spec.get("added_tokens") or ()}
    for text, token_id in added.items():
        _check_token(text, token_id)
        tokens[token_id] = text.encode("utf-8", "surrogatepass")
    ids = {**dict(_vocabulary(model)), **added}
    special = {name: ids[text] for name, text in _special_texts(config) if text in ids}
    segmentation = {
        "merges": [_merge(entry) for entry in model.get("merges") or ()],
        "scores": [piece[1] for piece in model["vocab"]] if _is_unigram(model) else [],
        "normalizer": spec.get("normalizer"),
        "pre_tokenizer": spec.get("pre_tokenizer"),
    }
    return Tokenizer(
        tokens=tokens,
        special=special,
        added_ids=frozenset(added.values()),
        segmentation_digest=digest_of(segmentation),
        chat_template=template,
    )


def _check_token(text: object, token_id: object) -> None:
    if not isinstance(text, str) or type(token_id) is not int or not 0 <= token_id < 2**31:
        raise ValueError(f"token {text!r:.80} has the id {token_id!r:.40}")


def _is_unigram(model: Mapping[str, Any]) -> bool:
    return isinstance(model["vocab"], list)


def _vocabulary(model: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    if _is_unigram(model):
        yield from ((piece[0], token_id) for token_id, piece in enumerate(model["vocab"]))
    else:
        yield from model["vocab"].items()


def _merge(entry: str | list[str]) -> list[str]:
    """Older files write a merge as "a b", newer ones as ["a", "b"]."""
    return entry.split(" ", 1) if isinstance(entry, str) else list(entry)


def _special_texts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _ROLES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            yield name, text


class _TokenBytes:
    """How a token's text in the vocabulary becomes bytes of output, by the decoder's kind."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        kinds = {
            node.get("type")
            for key in ("decoder", "pre_tokenizer")
            for node in _nodes(spec.get(key))
        }
        self._byte_level = "ByteLevel" in kinds
        marks = json.dumps([spec.get("decoder"), spec.get("normalizer")], ensure_ascii=False)
        self._space_marks = "Metaspace" in kinds or _SPACE_MARK in marks
        self._byte_fallback = bool(spec["model"].get("byte_fallback"))

    def __call__(self, text: str) -> bytes:
        if self._byte_level:
            table = _byte_level_alphabet()
            if all(char in table for char in text):
                return bytes(table[char] for char in text)
        elif self._byte_fallback and (byte := _BYTE_TOKEN.match(text)):
            return bytes.fromhex(byte[1])
        elif self._space_marks:
            text = text.replace(_SPACE_MARK, " ")
        return text.encode("utf-8", "surrogatepass")


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in a component of tokenizer.json, which may be a sequence of others."""
    if isinstance(value, dict):
        yield value
        for nested in value.values():
            yield from _nodes(nested)
    elif isinstance(value, list):
        for nested in value:
            yield from _nodes(nested)


@cache
def _byte_level_alphabet() -> Mapping[str, int]:
    """GPT-2's printable stand-in for each byte (Radford et al. 2019, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable}
    return {**table, **{chr(256 + n): b for n, b in enumerate(others)}}


def _byte_level_spec(documents: Documents, role: str) -> dict[str, Any]:
    """GPT-2's older pair of files, in the terms of tokenizer.json."""
    added = parse_object(documents, "added_tokens.json", role)
    merges = documents["merges.txt"].decode("utf-8-sig").splitlines()
    return {
        "model": {
            "vocab": parse_object(documents, "vocab.json", role),
            "merges": [m for m in merges if m.strip() and not m.startswith("#version")],
        },
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"content": text, "id": token_id} for text, token_id in added.items()],
    }


def _converted_spec(documents: Documents, role: str) -> dict[str, Any]:
    """A sentencepiece model, converted by transformers in a folder of its own."""
    import tempfile
    from pathlib import Path

    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", "native") from None
    with tempfile.TemporaryDirectory() as folder:
        for name, data in documents.items():
            if "/" not in name and not name.endswith(".py"):
                (Path(folder) / name).write_bytes(data)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            spec: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
        except Exception as error:  # conversion fails in many ways, all of them for one reason
            raise InvalidInput(
                f"the sentencepiece tokenizer of the {role} cannot be converted: {error}",
                hint="save it as tokenizer.json with transformers' save_pretrained first",
            ) from error
    return spec


def _chat_template(documents: Documents, config: Mapping[str, Any], role: str) -> str | None:
    if "chat_template.jinja" in documents:
        return documents["chat_template.jinja"].decode("utf-8", "replace")
    template = config.get("chat_template") or parse_object(
        documents, "chat_template.json", role
    ).get("chat_template")
    if isinstance(template, list):  # several named ones
        return json.dumps(template, sort_keys=True)
    return template if isinstance(template, str) else None
