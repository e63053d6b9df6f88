"""What a replay saw: one `TraceBatch` of columns per block, one `RequestTrace` per request.

The batch is what flows from replay to measure and what is stored (one Parquet file per block);
30 million rounds as Python objects would take minutes and gigabytes. A `RequestTrace` is one row,
made by engines and by tests.

Counting (Leviathan et al. 2023, arXiv 2211.17192, section 2; one draft round = one propose and
verify step): `proposed` tokens were drafted, the first `accepted` of them passed verification
(whether or not there was room for them), `emitted` tokens reached the user. A round emits its
accepted tokens and one more: the *recovered* token after a rejection or the *bonus* token when all
were accepted; EOS, a stop or max_tokens may cut it. `completion_tokens` = the first token (from
prefill) + the sum of `emitted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairgate.errors import InvalidEvaluation


class Arm(StrEnum):
    """What is replayed; people read `with draft` and `without draft`."""

    SPEC = "spec"
    TARGET = "target"
    INCUMBENT = "incumbent"
    CARRY_OVER = "carry-over"


class Phase(StrEnum):
    """Which pass of the replay a block belongs to."""

    BOUNDARY = "boundary"
    ACCEPTANCE = "acceptance"
    SPEED = "speed"
    CONTROL = "control"


class RoundState(IntEnum):
    """Only DRAFTED rounds enter a denominator."""

    DRAFTED = 0
    FALLEN_BACK = 1  # the request had left speculation
    SKIPPED = 2  # drafting was impossible, e.g. beyond the draft's context
    TARGET_ONLY = 3  # the arm has no draft
    UNCOUNTED = 4  # the server said nothing about its drafting; one token each, never judged


class Finish(IntEnum):
    LENGTH = 0
    EOS = 1
    STOP = 2
    ERROR = 3
    EXCLUDED = 4  # counts did not add up; kept, counted, never judged


def _ints() -> NDArray[np.int16]:
    return np.empty(0, np.int16)


def _floats() -> NDArray[np.float32]:
    return np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTrace:
    """One replayed request; a failed one has `finish=ERROR` and a message in `error`.

    Arrays over its rounds: `proposed`, `accepted`, `emitted` (int16), `round_state` (uint8) and
    `round_ms` (float32, since the previous emission). `tokens` (int32, [completion_tokens]) are
    the emitted ids. `overlap` (float32, [sum of proposed over DRAFTED rounds]) is the sum of
    min(p, q) at each proposed position, in order, or empty where the engine does not give it;
    `margin` (float32, [completion_tokens]) the target's top-2 logit gap, or empty.
    `cached_tokens` of the prompt came out of the engine's prefix cache; −1 where it does not say.
    """

    index: int
    request_id: str
    domain: str
    temperature: float
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float
    latency_ms: float
    finish: Finish
    session: str = ""
    error: str = ""
    fell_back_at: int = -1
    n_returns: int = 0
    cached_tokens: int = -1
    proposed: NDArray[np.int16] = field(default_factory=_ints)
    accepted: NDArray[np.int16] = field(default_factory=_ints)
    emitted: NDArray[np.int16] = field(default_factory=_ints)
    round_state: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    round_ms: NDArray[np.float32] = field(default_factory=_floats)
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    overlap: NDArray[np.float32] = field(default_factory=_floats)
    margin: NDArray[np.float32] = field(default_factory=_floats)

    @property
    def ok(self) -> bool:
        return self.finish not in (Finish.ERROR, Finish.EXCLUDED)


# Column name -> dtype, for the per-request and the per-round columns of a batch.
REQUEST_COLUMNS: dict[str, Any] = {
    "index": np.int64,
    "request_id": np.str_,
    "domain": np.str_,
    "session": np.str_,
    "temperature": np.float64,
    "prompt_tokens": np.int32,
    "completion_tokens": np.int32,
    "ttft_ms": np.float64,
    "latency_ms": np.float64,
    "finish": np.uint8,
    "error": np.str_,
    "fell_back_at": np.int32,
    "n_returns": np.int32,
    "cached_tokens": np.int32,
}
ROUND_COLUMNS: dict[str, Any] = {
    "proposed": np.int16,
    "accepted": np.int16,
    "emitted": np.int16,
    "round_state": np.uint8,
    "round_ms": np.float32,
}
# Further ragged columns, each with offsets of its own.
TOKEN_COLUMNS: dict[str, Any] = {"tokens": np.int32, "overlap": np.float32, "margin": np.float32}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceBatch:
    """One block of a replay, as columns.

    Per request [n]: see `RequestTrace`. Ragged columns are flat, with offsets [n + 1]:
    `round_offsets` for the five round columns, `tokens_offsets`, `overlap_offsets`,
    `margin_offsets`. `wall_s` is the block's own duration, `definition` the id of the counting
    definition (numbers under different definitions are never compared).
    """

    arm: Arm
    phase: Phase
    concurrency: int
    block: int
    wall_s: float
    definition: str
    index: NDArray[np.int64]
    request_id: NDArray[np.str_]
    domain: NDArray[np.str_]
    session: NDArray[np.str_]
    temperature: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    completion_tokens: NDArray[np.int32]
    ttft_ms: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    finish: NDArray[np.uint8]
    error: NDArray[np.str_]
    fell_back_at: NDArray[np.int32]
    n_returns: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]
    round_offsets: NDArray[np.int64]
    proposed: NDArray[np.int16]
    accepted: NDArray[np.int16]
    emitted: NDArray[np.int16]
    round_state: NDArray[np.uint8]
    round_ms: NDArray[np.float32]
    tokens_offsets: NDArray[np.int64]
    tokens: NDArray[np.int32]
    overlap_offsets: NDArray[np.int64]
    overlap: NDArray[np.float32]
    margin_offsets: NDArray[np.int64]
    margin: NDArray[np.float32]

    def __post_init__(self) -> None:
        n = len(self.index)
        for name in REQUEST_COLUMNS:
            if len(getattr(self, name)) != n:
                raise InvalidEvaluation(f"trace column {name} has another length than index ({n})")
        for values, offsets in _RAGGED.items():
            ends = getattr(self, offsets)
            if len(ends) != n + 1 or ends[-1] != len(getattr(self, values)):
                raise InvalidEvaluation(f"trace column {values} does not fit its {offsets}")

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """[n] which requests are neither failed nor excluded."""
        return (self.finish != Finish.ERROR) & (self.finish != Finish.EXCLUDED)

    @property
    def round_request(self) -> NDArray[np.int64]:
        """[rounds] the row of the request that each round belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.round_offsets))

    def row(self, i: int) -> RequestTrace:
        """The i-th request as a value."""
        fields: dict[str, Any] = {name: getattr(self, name)[i].item() for name in REQUEST_COLUMNS}
        fields["finish"] = Finish(fields["finish"])
        for values, offsets in _RAGGED.items():
            ends = getattr(self, offsets)
            fields[values] = getattr(self, values)[ends[i] : ends[i + 1]]
        return RequestTrace(**fields)

    def rows(self) -> Iterator[RequestTrace]:
        return (self.row(i) for i in range(len(self)))

    def where(self, keep: NDArray[np.bool_]) -> TraceBatch:
        """The requests for which `keep` [n] holds, with their rounds and tokens."""
        columns: dict[str, Any] = {name: getattr(self, name)[keep] for name in REQUEST_COLUMNS}
        for values, offsets in _RAGGED.items():
            lengths = np.diff(getattr(self, offsets))
            columns[values] = getattr(self, values)[np.repeat(keep, lengths)]
            columns[offsets] = np.concatenate(([0], np.cumsum(lengths[keep]))).astype(np.int64)
        return replace(self, **columns)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[RequestTrace],
        *,
        arm: Arm,
        phase: Phase,
        concurrency: int,
        block: int,
        wall_s: float,
        definition: str,
        order: Sequence[int] | None = None,
    ) -> TraceBatch:
        """Columns from rows, in the order of their `index`, or in that of the indices `order`."""
        place = None if order is None else {index: i for i, index in enumerate(order)}
        ordered = sorted(rows, key=lambda r: r.index if place is None else place.get(r.index, -1))
        columns: dict[str, Any] = {}
        for name, dtype in REQUEST_COLUMNS.items():
            columns[name] = np.array([getattr(r, name) for r in ordered], dtype=dtype)
        for values, offsets in _RAGGED.items():
            parts = [getattr(r, values) for r in ordered]
            columns[values] = _joined(parts, _DTYPES[values])
            columns[offsets] = np.concatenate(([0], np.cumsum([len(p) for p in parts]))).astype(
                np.int64
            )
        return cls(
            arm=arm,
            phase=phase,
            concurrency=concurrency,
            block=block,
            wall_s=wall_s,
            definition=definition,
            **columns,
        )

    @classmethod
    def concat(cls, batches: Sequence[TraceBatch]) -> TraceBatch:
        """One batch of several blocks of the same arm, phase and definition; walls add up."""
        first = batches[0]
        if {(b.arm, b.phase, b.definition) for b in batches} != {
            (first.arm, first.phase, first.definition)
        }:
            raise InvalidEvaluation("blocks of different arms, phases or definitions do not add up")
        columns: dict[str, Any] = {}
        for name in (*REQUEST_COLUMNS, *_RAGGED):
            columns[name] = np.concatenate([getattr(b, name) for b in batches])
        for offsets in set(_RAGGED.values()):
            lengths = np.concatenate([np.diff(getattr(b, offsets)) for b in batches])
            columns[offsets] = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return cls(
            arm=first.arm,
            phase=first.phase,
            concurrency=first.concurrency,
            block=first.block,
            wall_s=sum(b.wall_s for b in batches),
            definition=first.definition,
            **columns,
        )


_RAGGED = dict.fromkeys(ROUND_COLUMNS, "round_offsets") | {
    name: f"{name}_offsets" for name in TOKEN_COLUMNS
}
_DTYPES = ROUND_COLUMNS | TOKEN_COLUMNS


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)
