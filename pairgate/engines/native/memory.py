"""What a pair needs: bytes of weights, caches and workspace, measured and by an analytic bound."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from pairgate.engines.native.loading import LoadedModel

_STATUS = Path("/proc/self/status")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_PREFILL_CHUNK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Analytic bound in bytes, without what the process holds before the models."""

    weights_target: int
    weights_draft: int
    kv_target: int
    kv_draft: int
    workspace: int

    @property
    def total(self) -> int:
        parts = (self.weights_target, self.weights_draft, self.kv_target, self.kv_draft)
        return sum(parts) + self.workspace


def bound(
    target: LoadedModel, draft: LoadedModel | None, *, k: int, n_rows: int, n_positions: int
) -> Bound:
    """The most that `n_rows` requests of `n_positions` tokens can need (gate.md, Memory)."""
    return Bound(
        weights_target=target.weight_bytes,
        weights_draft=draft.weight_bytes if draft else 0,
        kv_target=_kv_bytes(target) * n_rows * n_positions,
        kv_draft=_kv_bytes(draft) * n_rows * n_positions if draft else 0,
        workspace=_workspace(target, k=k if draft else 0, n_rows=n_rows, n_positions=n_positions),
    )


def _kv_bytes(loaded: LoadedModel) -> int:
    """Keys and values of one position over all layers; multi-query models count as they are."""
    config = loaded.model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * loaded.n_layers * kv_heads * head_dim * loaded.dtype.itemsize)


def _workspace(target: LoadedModel, *, k: int, n_rows: int, n_positions: int) -> int:
    """Activations of the widest pass, masks, and the laws of K + 1 positions.

    The widest pass is a prefill chunk or a verification; about a dozen tensors of hidden size and
    three of intermediate size live at once. Logits, sorted logits, laws and running sums: eight
    float32 values for every vocabulary entry of every position.
    """
    config = target.model.config.get_text_config(decoder=True)
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    width = max(min(_PREFILL_CHUNK, n_positions), n_rows * (k + 1))
    activations = width * (12 * hidden + 3 * inner) * 4
    scores = width * n_positions * (config.num_attention_heads + 2) * 4
    laws = n_rows * (k + 1) * target.vocab_size * 8 * 4
    return int(activations + scores + laws)


class PeakMemory:
    """Peak bytes between `reset` and `read`: CUDA's allocator on a GPU, else the resident set."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kind = "cuda" if device.type == "cuda" else "rss"

    def current(self) -> int:
        if self.kind == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return _status_bytes("VmRSS") or _max_rss()

    def reset(self) -> None:
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        # Linux: makes VmHWM start again from now. Where that is not allowed, the peak is that of
        # the whole process: an upper bound.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def read(self) -> int:
        if self.kind == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _status_bytes("VmHWM") or _max_rss()

    def budget(self) -> int:
        """What the machine allows: GPU memory, or physical memory within the cgroup's limit."""
        if self.kind == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
        except OSError:
            return physical
        return min(physical, int(limit)) if limit.isdigit() else physical


def _status_bytes(field: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith(field + ":")]
    return int(found[0]) * 1024 if found else 0


def _max_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
