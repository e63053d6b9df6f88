"""Requests, a pair and an engine on fakes, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fake_vllm import Running

from pairgate.domain.pair import (
    Architecture,
    DecodingConfig,
    FileEntry,
    Method,
    ModelRef,
    Pair,
)
from pairgate.domain.profile import ServingProfile
from pairgate.domain.trace import RequestTrace
from pairgate.domain.traffic import Request, Sampling
from pairgate.engines.hardware import cpu_hardware_class
from pairgate.engines.server import Attached, Attachment, ServerEngine
from pairgate.engines.server.vllm import VllmDialect
from pairgate.ports import EngineLimits, GenerateOptions, MaterialisedPair

_FILE = FileEntry(path="model.safetensors", size=1, sha256=f"sha256:{'0' * 64}")
_SMALL = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    n_parameters=1000,
    vocab_size=251,
    max_position_embeddings=512,
    hidden_size=8,
    n_layers=1,
    n_heads=1,
    n_kv_heads=1,
    head_dim=8,
    dtype="float32",
)


def a_pair(**decoding: object) -> MaterialisedPair:
    config = DecodingConfig(
        **{"method": Method.DRAFT_MODEL, "num_speculative_tokens": 4, **decoding}  # type: ignore[arg-type]
    )
    draft = ModelRef(role="draft", files=(_FILE,), architecture=_SMALL)
    has_draft = config.method.has_draft_files
    return MaterialisedPair(
        pair=Pair(
            target=ModelRef(role="target", files=(_FILE,), architecture=_SMALL),
            draft=draft if has_draft else None,
            decoding=config,
        ),
        target_dir=Path("target"),
        draft_dir=Path("draft") if has_draft else None,
    )


def a_profile(*arguments: str, hardware_class: str | None = None) -> ServingProfile:
    return ServingProfile(
        name="vllm",
        engine="vllm",
        engine_version="0.32.0",
        hardware_class=hardware_class or cpu_hardware_class(),
        concurrencies=(1, 4),
        arguments=arguments,
        prefix_caching=True,
    )


def a_request(
    number: int, *, max_tokens: int = 12, session: str | None = None, **body: object
) -> Request:
    values = {"prompt": f"request {number}", "max_tokens": max_tokens, "temperature": 0, **body}
    return Request(
        id=f"r{number}",
        domain="chat",
        body=json.dumps(values),
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0.0),
        session=session,
        text=str(values["prompt"]),
        unsupported=tuple(k for k in ("ignore_eos", "logit_bias") if k in body),
    )


def attached(spec: Running, target: Running) -> ServerEngine:
    pair = a_pair()
    attachment = Attachment(
        endpoint=spec.url,
        baseline_endpoint=f"{target.url}/v1/",
        serves="line@1",
        pair_digest=pair.pair.digest,
    )
    dialect = VllmDialect()
    return ServerEngine(dialect, Attached(dialect, attachment), a_profile())


def generate(
    engine: ServerEngine,
    requests: Sequence[Request],
    *,
    with_draft: bool = True,
    concurrency: int = 4,
    watchdog_s: float = 5.0,
) -> list[RequestTrace]:
    limits = EngineLimits(
        max_model_len=512, max_concurrency=concurrency, seed=1, watchdog_s=watchdog_s
    )
    engine._limits, engine._pair = limits, a_pair()  # no tokenizer is needed here
    options = GenerateOptions(with_draft=with_draft, concurrency=concurrency, seed=1)
    return sorted(engine.generate(enumerate(requests), options), key=lambda t: t.index)
