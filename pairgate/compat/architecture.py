"""The architecture of a model, from config.json and the headers of its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pairgate.compat.weights import Header, main_dtype, n_parameters
from pairgate.domain.pair import Architecture
from pairgate.errors import InvalidInput, MissingExtra

_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "vocab_size": ("vocab_size",),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "kv_channels"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
    ),
}
_WORD = re.compile(r"[\w.:-]{0,200}\Z", re.ASCII)
_REQUIRED = ("hidden_size", "n_layers", "vocab_size")
# Absent in models without attention or without a fixed length; 0 then.
_OPTIONAL = ("n_heads", "max_position_embeddings")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model, also in multimodal and head
    configs."""
    for key in ("text_config", "llm_config", "language_config", "transformer_layer_config"):
        nested = config.get(key)
        if isinstance(nested, dict):
            return nested
    return config


def read_architecture(
    config: Mapping[str, Any], weights: Mapping[str, Header], *, role: str
) -> Architecture:
    """What config.json says, completed by the defaults of its class where it leaves them out.

    Raises `InvalidInput` when the config does not describe a model, `MissingExtra` when only
    transformers knows the defaults.
    """
    text = text_config(config)
    model_type = text.get("model_type") or config.get("model_type")
    numbers = {field: _number(text, names, role) for field, names in _NAMES.items()}
    absent = [f for f in (*_REQUIRED, *_OPTIONAL) if numbers[f] is None]
    if absent and isinstance(model_type, str):
        text = _with_defaults(text, model_type, absent, role)
        numbers = {field: _number(text, names, role) for field, names in _NAMES.items()}
    missing = [f for f in _REQUIRED if not numbers[f]]
    if missing or not isinstance(model_type, str):
        raise InvalidInput(
            f"config.json of the {role} does not say {', '.join(missing) or 'model_type'}",
            hint="give a folder in the Hugging Face format, with config.json",
        )
    hidden_size, n_heads = numbers["hidden_size"] or 0, numbers["n_heads"] or 0
    n_kv_heads = numbers["n_kv_heads"] or (1 if text.get("multi_query") else n_heads)
    classes = config.get("architectures") or text.get("architectures") or []
    class_name = classes[0] if isinstance(classes, list) and classes else ""
    return Architecture(
        model_type=_word(model_type, "model_type", role),
        class_name=_word(class_name, "architectures", role),
        n_parameters=n_parameters(weights.values()),
        vocab_size=numbers["vocab_size"] or 0,
        max_position_embeddings=numbers["max_position_embeddings"] or 0,
        hidden_size=hidden_size,
        n_layers=numbers["n_layers"] or 0,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=numbers["head_dim"] or (hidden_size // n_heads if n_heads else 0),
        dtype=main_dtype(weights.values()),
    )


def _word(value: object, key: str, role: str) -> str:
    """A name of a class or family: what reading commands print, so nothing else is let in."""
    if not isinstance(value, str) or not _WORD.match(value):
        raise InvalidInput(f"config.json of the {role}: {key} is {value!r:.200}, not a name")
    return value


def _number(config: Mapping[str, Any], names: tuple[str, ...], role: str) -> int | None:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < 2**31:
            raise InvalidInput(f"config.json of the {role}: {name} is {value!r:.50}, not a count")
        return value
    return None


def _with_defaults(
    text: Mapping[str, Any], model_type: str, absent: list[str], role: str
) -> Mapping[str, Any]:
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        if not set(absent) & set(_REQUIRED):
            return text
        raise MissingExtra("transformers", "native") from None
    if model_type not in CONFIG_MAPPING:
        return text
    try:
        defaults: Mapping[str, Any] = CONFIG_MAPPING[model_type](**text).to_dict()
    except Exception as error:  # the classes validate in ways of their own
        raise InvalidInput(
            f"config.json of the {role} is no valid {model_type} config: {error}"
        ) from error
    return defaults
