"""Tiny random models of many architectures, and small runs of the batched decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from pairgate.domain.trace import RequestTrace
from pairgate.domain.traffic import Request, Sampling
from pairgate.engines.native.batched import BatchedDecoder, DecoderSettings
from pairgate.engines.native.loading import LoadedModel, wrap_model
from pairgate.engines.native.row import Ends

CPU = torch.device("cpu")
VOCAB = 96

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral-sliding": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2-mixed": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {}),
    "gemma": ("Gemma", {}),
    "gemma2-softcap": ("Gemma2", {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "olmo2": ("Olmo2", {}),
    "gpt-neox": ("GPTNeoX", {}),
    "phi": ("Phi", {}),
}


def build(architecture: str = "llama", *, seed: int = 0, scale: float = 6.0, **changes: Any) -> Any:
    """A random model whose logits are spread enough (`scale`) for its argmax to be clear."""
    torch.manual_seed(seed)
    if architecture == "gpt2":
        config = transformers.GPT2Config(**(_GPT2 | {"eos_token_id": None} | changes))
        model = transformers.GPT2LMHeadModel(config)
    else:
        name, special = ARCHITECTURES[architecture]
        fields = _SMALL | special | changes
        if name == "GPTNeoX":
            fields = {
                k: v for k, v in fields.items() if k not in ("num_key_value_heads", "head_dim")
            }
        config = getattr(transformers, f"{name}Config")(**fields)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight.copy_(torch.randn_like(head.weight) * scale / head.weight.shape[1] ** 0.5)
    if architecture.startswith("gemma2"):
        model.set_attn_implementation("eager")
    return model.eval()


def loaded(model: Any, role: str = "target") -> LoadedModel:
    return wrap_model(model, role, device=CPU)


def request(
    i: int,
    prompt: Sequence[int],
    *,
    max_tokens: int = 12,
    stop: tuple[str, ...] = (),
    **sampling: Any,
) -> Request:
    return Request(
        id=f"r{i}",
        domain="tests",
        body="{}",
        max_tokens=max_tokens,
        token_ids=tuple(prompt),
        stop=stop,
        sampling=Sampling(**({"temperature": 0.0} | sampling)),
    )


def run(
    target: LoadedModel,
    draft: LoadedModel | None,
    requests: Sequence[Request],
    *,
    k: int = 3,
    n_rows: int = 3,
    max_model_len: int = 100,
    eos: frozenset[int] = frozenset(),
    **settings: Any,
) -> list[RequestTrace]:
    """All traces in the order of the requests."""
    decoder = BatchedDecoder(
        target,
        draft,
        DecoderSettings(
            k=k,
            n_rows=n_rows,
            max_model_len=max_model_len,
            **({"run_seed": 7, "with_draft": draft is not None} | settings),
        ),
        ends=Ends(eos=eos, decode=lambda ids: "".join(chr(97 + i % 26) for i in ids)),
        encode=lambda r: list(r.token_ids or ()),
    )
    return sorted(decoder.run(enumerate(requests)), key=lambda t: t.index)


def prompts(n: int, *, seed: int = 3, longest: int = 20, vocab: int = VOCAB) -> list[list[int]]:
    """Ragged random prompts."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, longest + 1, (n,), generator=generator).tolist()
    return [torch.randint(0, vocab, (size,), generator=generator).tolist() for size in sizes]
