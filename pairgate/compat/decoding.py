"""What serving engines and checkpoints say about decoding, in our words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pairgate.domain.pair import Method
from pairgate.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """The parts of an engine's JSON that pairgate checks; the text itself is kept verbatim."""

    method: Method | None
    num_speculative_tokens: int | None


def read_speculative_config(text: str) -> SpeculativeConfig:
    """Read `--speculative-config` (vLLM's). Raises `InvalidInput` for what it does not know."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--speculative-config is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput("--speculative-config is not a JSON object")
    k = value.get("num_speculative_tokens")
    if k is not None and type(k) is not int:
        raise InvalidInput(f"--speculative-config: num_speculative_tokens is {k!r}")
    name = value.get("method")
    return SpeculativeConfig(
        method=None if name is None else _method(name), num_speculative_tokens=k
    )


def head_method(config: Mapping[str, Any]) -> Method | None:
    """The method of a speculators or EAGLE-3 checkpoint, from its own config."""
    name = str(config.get("speculators_model_type") or "")
    classes = " ".join(map(str, config.get("architectures") or ()))
    for method in (Method.EAGLE3, Method.DFLASH):
        if name == method or method in classes.lower():
            return method
    return None


def _method(name: Any) -> Method:
    known = [m.value for m in Method]
    if name in known:
        return Method(name)
    if isinstance(name, str) and name.endswith("mtp"):  # deepseek_mtp, qwen3_next_mtp, …
        return Method.MTP
    raise InvalidInput(
        f"--speculative-config: method {name!r} is not one that pairgate registers",
        hint=f"known methods: {', '.join(known)}",
    )
