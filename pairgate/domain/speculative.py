"""The JSON of a pair's decoding settings as vLLM's `--speculative-config` takes it."""

from __future__ import annotations

import json
from typing import Any

from pairgate.domain.pair import DecodingConfig, Method


def speculative_json(decoding: DecodingConfig, draft: str | None) -> str:
    """The pair's own text where it has one, else what its settings mean there; `draft` is where
    the draft lies on the serving machine, None where the method stores none."""
    config: dict[str, Any] = json.loads(decoding.speculative_config or "{}")
    config.setdefault("method", str(decoding.method))
    config["num_speculative_tokens"] = decoding.num_speculative_tokens
    if draft is not None:
        config["model"] = draft
    if decoding.method is Method.DRAFT_MODEL and decoding.speculative_config is None:
        # vLLM's default is greedy; the pair says which one it is.
        sampled = decoding.draft_sampling == "sampled"
        config["draft_sample_method"] = "probabilistic" if sampled else "greedy"
    return json.dumps(config, sort_keys=True)
