"""Whether the native engine can run a pair, known at registration instead of at evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pairgate.compat.engines import RUNS, engines_for
from pairgate.domain.pair import Method

# Decoder-only models whose only state is one key and value per position (full or sliding
# attention; rotary or learned positions). State-space, linear-attention, ALiBi and
# encoder-decoder models need more than rolling back by position.
NATIVE_MODEL_TYPES = frozenset(
    {
        "cohere",
        "cohere2",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)


_SERVE = "needs a serving engine such as vllm"


def method_obstacle(method: Method) -> str | None:
    """Why the native engine cannot evaluate this method; None if it can."""
    if method in RUNS["native"]:
        return None
    return f"method {method} needs a serving engine: {', '.join(engines_for(method))}"


def model_obstacle(
    config: Mapping[str, Any], *, role: str, model_type: str, flags: tuple[str, ...]
) -> str | None:
    """Why the native engine would refuse this model; None if nothing speaks against it.

    `config` is the text part of config.json. The engine proves itself on every load; this says
    early what it would say late.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    scaling = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
    reasons = {
        "it brings its own code": "custom-code" in flags,
        "its weights are pickled": "pickle" in flags,
        "it is an encoder-decoder": bool(config.get("is_encoder_decoder")),
        "it uses ALiBi": bool(config.get("alibi")),
        f"its {scaling} rotary scaling depends on the whole batch": (
            scaling in ("dynamic", "longrope")
        ),
        f"{model_type} is not among the model types it is known to run": (
            model_type not in NATIVE_MODEL_TYPES
        ),
    }
    reason = next((text for text, applies in reasons.items() if applies), None)
    return (
        f"the native engine may not run the {role}: {reason}; it {_SERVE} then" if reason else None
    )
