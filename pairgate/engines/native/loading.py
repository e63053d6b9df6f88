"""Load a causal LM from a local folder, and prove that it can run with ragged rows.

No list of architectures: a model is supported when its only state is a KV cache by position and
its batched pass with our cache and mask gives the logits of its own plain pass. The proof is run
on every load (a few tokens); what does not pass is refused by name.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairgate.engines.native.cache import RaggedCache
from pairgate.errors import InvalidInput, Refused

_SERVE_INSTEAD = "evaluate this pair with a serving engine instead (profile engine: vllm or server)"
_STATELESS_LAYERS = {"full_attention", "sliding_attention"}
_PROBE_TOKENS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    """A model ready for passes. `sliding_window` None means full attention in every layer;
    `mixed` says that sliding and full layers alternate (one mask each)."""

    model: Any
    role: str
    vocab_size: int
    n_layers: int
    max_positions: int
    sliding_window: int | None
    mixed: bool
    cache_argument: str
    keeps_logits: bool
    device: torch.device
    dtype: torch.dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, tied ones once."""
        found = {p.data_ptr(): p.nbytes for p in self.model.parameters()}
        return sum(found.values())

    def new_cache(self, n_rows: int, n_positions: int) -> RaggedCache:
        return RaggedCache(self.n_layers, n_rows, n_positions)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: RaggedCache,
        *,
        first: int,
        length: int,
        last_only: bool = False,
    ) -> Tensor:
        """One pass: tokens and positions [rows, q] of the cache's rows first, first + 1, …

        `length` > max(positions) bounds what attention looks at. Returns raw logits
        [rows, q, vocab], or [rows, 1, vocab] with `last_only`.
        """
        cache.place(positions, first, length)
        keywords: dict[str, Any] = {self.cache_argument: cache.cache}
        if last_only and self.keeps_logits:
            keywords["logits_to_keep"] = 1
        output = self.model(
            input_ids=tokens,
            attention_mask=self._mask(positions, length),
            position_ids=positions,
            use_cache=True,
            **keywords,
        )
        logits: Tensor = output.logits
        return logits[:, -1:] if last_only else logits

    def _mask(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Additive mask [rows, 1, q, length]: 0 where a token may look, else −inf."""
        keys = torch.arange(length, device=positions.device)
        queries = positions[:, None, :, None]
        hidden = keys > queries
        if self.sliding_window is None:
            return self._additive(hidden)
        sliding = self._additive(hidden | (keys <= queries - self.sliding_window))
        if not self.mixed:
            return sliding
        return {"full_attention": self._additive(hidden), "sliding_attention": sliding}

    def _additive(self, hidden: Tensor) -> Tensor:
        zeros = torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device)
        return zeros.masked_fill_(hidden, -torch.inf)


def resolve_dtype(compute_dtype: str, device: torch.device) -> torch.dtype | str:
    """`auto` is the checkpoint's dtype on a GPU and float32 on a CPU."""
    if compute_dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    dtype = getattr(torch, compute_dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidInput(
            f"compute_dtype {compute_dtype!r} is not a floating dtype of torch",
            hint="use auto, float32, bfloat16 or float16",
        )
    return dtype


def load_model(
    folder: Path, role: str, *, device: torch.device, compute_dtype: str = "auto"
) -> LoadedModel:
    """Load safetensors weights from `folder`; no network, no code from the folder.

    Raises Refused for a model that the native engine cannot run exactly.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the evaluation has a progress line of its own
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **local)
        _refuse_by_config(config, role)
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=resolve_dtype(compute_dtype, device),
            use_safetensors=True,
            attn_implementation=_attention(config),
            **local,
        )
    except (OSError, ValueError, KeyError) as error:
        raise Refused(
            f"transformers cannot load the {role} as a causal LM: {str(error).splitlines()[0]}",
            hint=_SERVE_INSTEAD,
        ) from error
    return wrap_model(model, role, device=device)


def wrap_model(model: Any, role: str, *, device: torch.device) -> LoadedModel:
    """Prepare a transformers model that is already in memory; see `load_model`."""
    model = model.to(device).eval()
    _refuse_by_config(model.config, role)
    config = model.config.get_text_config(decoder=True)
    accepted = inspect.signature(model.forward).parameters
    if "position_ids" not in accepted:
        raise _refusal(role, config, "it takes no position_ids (e.g. ALiBi)")
    window = _window(config)
    types = set(getattr(config, "layer_types", None) or ())
    loaded = LoadedModel(
        model=model,
        role=role,
        vocab_size=model.get_output_embeddings().weight.shape[0],
        n_layers=config.num_hidden_layers,
        max_positions=int(getattr(config, "max_position_embeddings", None) or 2**31),
        sliding_window=window,
        mixed=len(types) > 1,
        cache_argument="cache" if "cache" in accepted else "past_key_values",
        keeps_logits="logits_to_keep" in accepted,
        device=device,
        dtype=next(model.parameters()).dtype,
    )
    _prove(loaded, config)
    return loaded


def eos_ids(model: Any) -> frozenset[int]:
    """Of the generation config, which is what serving engines use, else of the config."""
    found: set[int] = set()
    for config in (getattr(model, "generation_config", None), model.config):
        given = getattr(config, "eos_token_id", None)
        if given is not None:
            found.update([given] if isinstance(given, int) else given)
            break
    return frozenset(found)


def _refuse_by_config(config: Any, role: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(role, config, "it is an encoder-decoder")
    text = config.get_text_config(decoder=True)
    other = set(getattr(text, "layer_types", None) or ()) - _STATELESS_LAYERS
    if other:
        raise _refusal(role, config, f"it has layers of type {', '.join(sorted(other))}")
    if getattr(text, "alibi", False):
        raise _refusal(role, config, "it uses ALiBi")
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("dynamic", "longrope"):
        raise _refusal(role, config, f"its {kind} rotary scaling depends on the whole batch")


def _attention(config: Any) -> str:
    """Soft-capped attention (Gemma 2) exists only in the eager implementation."""
    text = config.get_text_config(decoder=True)
    return "eager" if getattr(text, "attn_logit_softcapping", None) else "sdpa"


def _window(config: Any) -> int | None:
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if types is not None:
        return window if "sliding_attention" in types else None
    return window if getattr(config, "use_sliding_window", True) else None


def _refusal(role: str, config: Any, why: str) -> Refused:
    return Refused(
        f"the native engine cannot run the {role} ({config.model_type}): {why}",
        hint=_SERVE_INSTEAD,
    )


@torch.inference_mode()
def _prove(loaded: LoadedModel, config: Any) -> None:
    """Two rows of unequal length in one pass against each row's plain pass."""
    generator = torch.Generator().manual_seed(1)
    high = min(loaded.vocab_size, 1000)
    tokens = torch.randint(0, high, (2, _PROBE_TOKENS), generator=generator).to(loaded.device)
    plain = loaded.model(input_ids=tokens, use_cache=False).logits.float()
    try:
        ragged = _ragged_logits(loaded, tokens).float()
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        why = f"a batched pass raises {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        raise _refusal(loaded.role, config, why) from error
    wanted = torch.stack([plain[0, -3:], plain[1, -6:-3]])
    if not torch.isfinite(wanted).all():
        return  # broken weights: the requests will say so by name
    scale = wanted.std().clamp(min=1e-6)
    worst = ((ragged - wanted).abs().max() / scale).item()
    allowed = 1e-3 if loaded.dtype == torch.float32 else 0.2
    if worst > allowed:
        why = f"its batched logits differ from its plain ones by {worst:.2g} standard deviations"
        raise _refusal(loaded.role, config, why)


def _ragged_logits(loaded: LoadedModel, tokens: Tensor) -> Tensor:
    """[2, 3, vocab]: the last three tokens of row 0, and of row 1 without its last three."""
    n = tokens.shape[1]
    cache = loaded.new_cache(2, n + 4)
    for row, size in enumerate((n - 3, n - 6)):
        positions = torch.arange(size, device=tokens.device)[None]
        loaded.forward(tokens[row : row + 1, :size], positions, cache, first=row, length=size)
    start = torch.tensor([[n - 3], [n - 6]], device=tokens.device)
    positions = start + torch.arange(3, device=tokens.device)
    return loaded.forward(tokens.gather(1, positions), positions, cache, first=0, length=n)
