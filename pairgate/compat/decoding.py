"""What serving engines and checkpoints say about decoding, in our words.

Two dialects are read: vLLM's `--speculative-config` (vllm/config/speculative.py), and the
`speculative-…` and `draft-…` options of SGLang and llama.cpp, which a profile keeps as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pairgate.domain.pair import DecodingConfig, Method
from pairgate.domain.profile import ServingProfile
from pairgate.errors import InvalidInput, Refused

# SGLang's `EAGLE` runs EAGLE-2 and MTP heads alike, so it says no method.
_SGLANG = {
    "EAGLE3": Method.EAGLE3,
    "NEXTN": Method.MTP,
    "STANDALONE": Method.DRAFT_MODEL,
    "NGRAM": Method.NGRAM,
    "DFLASH": Method.DFLASH,
}
_SAMPLING = {"greedy": "greedy", "probabilistic": "sampled"}
# Where the draft lies is where the pair put it.
_PLACES = ("model", "revision", "speculative-draft-model-path", "model-draft")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """The parts of an engine's JSON that pairgate checks; the text itself is kept verbatim.

    None is what it does not say. `draft` is where the engine would load the draft from.
    """

    method: Method | None
    num_speculative_tokens: int | None
    draft_sampling: str | None = None
    kv_dtype_draft: str | None = None
    draft: str | None = None


def read_speculative_config(text: str) -> SpeculativeConfig:
    """Raises `InvalidInput` for what is no config, and for what pairgate does not register."""
    value = _parsed(text)
    rejection = value.get("rejection_sample_method", "standard")
    if rejection != "standard":
        raise InvalidInput(
            f"--speculative-config: rejection_sample_method is {rejection!r}; pairgate's counts "
            "and its fidelity tests are defined for 'standard' only",
            hint="remove the key, or write 'standard'",
        )
    sampling = value.get("draft_sample_method")
    if sampling is not None and sampling not in _SAMPLING:
        raise InvalidInput(f"--speculative-config: draft_sample_method is {sampling!r}")
    kv_dtype = (
        value.get("kv_cache_dtype")
        or value.get("draft_kv_cache_dtype")
        or value.get("cache-type-k-draft")
    )
    draft = next((value[key] for key in _PLACES if isinstance(value.get(key), str)), None)
    return SpeculativeConfig(
        method=_method(value),
        num_speculative_tokens=_n_tokens(value),
        draft_sampling=None if sampling is None else _SAMPLING[sampling],
        kv_dtype_draft=None if kv_dtype is None else str(kv_dtype),
        draft=None if draft == "[ngram]" else draft,
    )


def head_method(config: Mapping[str, Any]) -> Method | None:
    """The method of a speculators, EAGLE-3 or DFlash checkpoint, from its own config."""
    name = str(config.get("speculators_model_type") or "")
    classes = " ".join(map(str, config.get("architectures") or ()))
    for method in (Method.EAGLE3, Method.DFLASH):
        if name == method or method in classes.lower():
            return method
    return Method.DFLASH if isinstance(config.get("dflash_config"), dict) else None


def require_agreement(decoding: DecodingConfig, profile: ServingProfile, *, label: str) -> None:
    """Raises `Refused` when the serving command decodes otherwise than the pair.

    A profile without a speculative config takes the pair's; a pair without a draft is served by
    the same command without it.
    """
    parts = []
    if decoding.kv_dtype_target != profile.kv_cache_dtype:
        parts.append(
            f"its KV cache is {profile.kv_cache_dtype}, the pair's {decoding.kv_dtype_target}"
        )
    if profile.speculative_config is not None and decoding.method is not Method.NONE:
        parts += _differences(decoding, profile.speculative_config)
    if parts:
        raise Refused(
            f"profile {profile.name} does not serve {label} as it was registered: "
            + "; ".join(parts),
            hint="decoding settings belong to the pair: register it with them, or correct the "
            "profile's command",
        )


def _differences(decoding: DecodingConfig, text: str) -> list[str]:
    said = read_speculative_config(text)
    compared = {
        "method": (said.method, decoding.method),
        "draft length": (said.num_speculative_tokens, decoding.num_speculative_tokens),
        "draft sampling": (said.draft_sampling, decoding.draft_sampling),
        "KV cache of the draft": (said.kv_dtype_draft, decoding.kv_dtype_draft),
    }
    parts = [
        f"its {what} is {theirs}, the pair's {ours}"
        for what, (theirs, ours) in compared.items()
        if theirs is not None and theirs != ours
    ]
    if decoding.speculative_config is not None and not parts:
        theirs, ours = (_settings(t) for t in (text, decoding.speculative_config))
        for key in sorted(theirs.keys() | ours.keys()):
            if theirs.get(key) != ours.get(key):
                parts.append(f"its {key} is {theirs.get(key)!r}, the pair's {ours.get(key)!r}")
    return parts


def _settings(text: str) -> dict[str, Any]:
    return {k: v for k, v in _parsed(text).items() if k not in _PLACES}


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--speculative-config is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput("--speculative-config is not a JSON object")
    return value


def _n_tokens(value: Mapping[str, Any]) -> int | None:
    """vLLM's and llama.cpp's draft length, or SGLang's number of steps of a chain."""
    name = next(
        (n for n in ("num_speculative_tokens", "speculative-num-steps", "draft-max") if n in value),
        None,
    )
    if name is None or (name == "speculative-num-steps" and _is_tree(value)):
        return None
    if type(value[name]) is not int:
        raise InvalidInput(f"--speculative-config: {name} is {value[name]!r}")
    return int(value[name])


def _is_tree(value: Mapping[str, Any]) -> bool:
    return value.get("speculative-eagle-topk", 1) != 1


def _method(value: Mapping[str, Any]) -> Method | None:
    if "speculative-algorithm" in value:
        return _SGLANG.get(str(value["speculative-algorithm"]).upper())
    name = value.get("method")
    if name is None:
        if value.get("model") == "[ngram]":
            return Method.NGRAM
        return Method.DRAFT_MODEL if "model-draft" in value else None
    known = [m.value for m in Method]
    if name in known:
        return Method(name)
    if isinstance(name, str) and name.endswith("mtp"):  # deepseek_mtp, qwen3_next_mtp, …
        return Method.MTP
    raise InvalidInput(
        f"--speculative-config: method {name!r} is not one that pairgate registers",
        hint=f"known methods: {', '.join(known)}",
    )
