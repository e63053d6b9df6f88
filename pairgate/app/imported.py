"""`import`: numbers of other tools, for comparison. They are marked and are never evidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pairgate.errors import InvalidInput
from pairgate.stats.running import RunningRatio
from pairgate.traffic.responses import ResponseCounts, definition_of, read_responses

ORIGIN = "imported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """`acceptance_rate` is accepted of proposed tokens, pooled, with a 95 % interval over
    requests. `definition` says whose counts they are: numbers under two definitions are not
    compared. None is what the file does not say."""

    origin: str
    definition: str
    n_requests: int
    n_failed: int
    n_with_counts: int
    acceptance_rate: float | None
    low: float | None
    high: float | None
    tokens_per_round: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None


def import_responses(path: Path, form: str) -> Imported:
    """Read a file of responses or records; registers nothing. Raises `InvalidInput`, `NotFound`."""
    rows = list(read_responses(path, form))
    if not rows:
        raise InvalidInput(f"{path} holds no response")
    fine = [r for r in rows if not r.failed]
    counted = [r for r in fine if r.n_proposed and r.n_accepted is not None]
    ratio = RunningRatio()
    if counted:
        ratio.add(
            np.array([r.n_accepted for r in counted], float),
            np.array([r.n_proposed for r in counted], float),
        )
    interval = ratio.interval() or (None, None)
    ttft = [r.ttft_ms for r in fine if r.ttft_ms is not None]
    return Imported(
        origin=ORIGIN,
        definition=definition_of(form),
        n_requests=len(rows),
        n_failed=len(rows) - len(fine),
        n_with_counts=len(counted),
        acceptance_rate=ratio.value,
        low=interval[0],
        high=interval[1],
        tokens_per_round=_tokens_per_round(counted),
        ttft_p50_ms=_quantile(ttft, 0.5),
        ttft_p95_ms=_quantile(ttft, 0.95),
        tpot_p50_ms=_quantile(_tpot(fine), 0.5),
    )


def _tokens_per_round(rows: list[ResponseCounts]) -> float | None:
    """1 + accepted / rounds, where rounds are counted."""
    known = [r for r in rows if r.n_rounds]
    if not known:
        return None
    return 1.0 + sum(r.n_accepted or 0 for r in known) / sum(r.n_rounds or 0 for r in known)


def _tpot(rows: list[ResponseCounts]) -> list[float]:
    """Time after the first token, per further token."""
    return [
        (r.latency_ms - r.ttft_ms) / (n - 1)
        for r in rows
        if r.latency_ms is not None
        and r.ttft_ms is not None
        and (n := r.completion_tokens or 0) > 1
    ]


def _quantile(values: list[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if values else None
