"""A static KV cache with a write position of its own per row, so that rollback is arithmetic.

transformers asks a cache layer for one thing: take these keys and values, give back all that
attention may look at. Ours writes at positions chosen by the caller; a rejected token's entry
stays behind, masked, until the next token of that position overwrites it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class Placement:
    """Where the running pass writes and reads; shared by all layers of one cache.

    `first` and `last` bound the rows, `length` the positions that attention sees, `flat`
    [rows × q] is row × n_positions + position of each new token.
    """

    __slots__ = ("first", "flat", "last", "length")

    def __init__(self) -> None:
        self.first = self.last = self.length = 0
        self.flat: Tensor = torch.empty(0, dtype=torch.int64)


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, stored as [rows, positions, heads, head_dim]."""

    is_sliding = False

    def __init__(self, placement: Placement, n_rows: int, n_positions: int) -> None:
        super().__init__()
        self.placement = placement
        self.shape = (n_rows, n_positions)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Zeros, not empty: masked entries are multiplied by 0, and 0 × NaN is NaN.
        self.keys, self.values = (
            torch.zeros(*self.shape, x.shape[1], x.shape[3], dtype=x.dtype, device=x.device)
            for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """key_states, value_states [rows, heads, q, head_dim] -> all of them up to `length`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        at = self.placement
        return _write(self.keys, key_states, at), _write(self.values, value_states, at)

    def get_seq_length(self) -> int:
        return self.placement.length

    def get_max_length(self) -> int:
        return self.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.placement.length, 0


def _write(stored: Tensor | None, new: Tensor, at: Placement) -> Tensor:
    assert stored is not None
    flat = stored.view(-1, *stored.shape[2:])
    flat.index_copy_(0, at.flat, new.transpose(1, 2).reshape(-1, *stored.shape[2:]))
    return stored[at.first : at.last, : at.length].transpose(1, 2)


class RaggedCache:
    """The cache of one model for `n_rows` requests of up to `n_positions` tokens."""

    def __init__(self, n_layers: int, n_rows: int, n_positions: int) -> None:
        self.placement = Placement()
        self.n_rows, self.n_positions = n_rows, n_positions
        self.layers = [RaggedLayer(self.placement, n_rows, n_positions) for _ in range(n_layers)]
        self.cache = Cache(layers=list(self.layers))

    @property
    def n_bytes(self) -> int:
        """Bytes allocated so far."""
        return sum(x.nbytes for x in self._stored())

    def place(self, positions: Tensor, first: int, length: int) -> None:
        """The next pass writes rows first, first + 1, … at positions [rows, q]."""
        rows = torch.arange(first, first + len(positions), device=positions.device)
        at = self.placement
        at.first, at.last, at.length = first, first + len(positions), length
        at.flat = (positions + (rows * self.n_positions)[:, None]).view(-1)

    def copy(self, source: int, destination: int, length: int) -> None:
        for stored in self._stored():
            stored[destination, :length] = stored[source, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        for stored in self._stored():
            kept = stored[one, :length].clone()
            stored[one, :length] = stored[other, :length]
            stored[other, :length] = kept

    def clear(self, row: int) -> None:
        """Zero a row whose request failed: a NaN left behind would reach the row's next user."""
        for stored in self._stored():
            stored[row] = 0

    def _stored(self) -> list[Tensor]:
        return [x for layer in self.layers for x in (layer.keys, layer.values) if x is not None]
