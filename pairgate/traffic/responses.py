"""Logged responses of serving engines, and AIPerf's records: what each says about one request.

One JSON object per line. The definitions, written down from public documentation and public logged
responses; only vLLM's was read off a server that we ran:

- `vllm.per_request.v1`: `metrics.speculative_decoding`, counts over draft steps before any cut.
- `sglang.meta_info.v1`: proposed and correct drafts over verify steps. Three generations of names:
  `spec_num_proposed_drafts`, `spec_proposed_drafts`, `spec_draft_token_num`, in `meta_info` of the
  response, of its choice, or in `sglext.spec_tokens_details`. Its accept length is completion
  tokens per verify step.
- `llamacpp.timings.v1`: `timings.draft_n` and `timings.draft_n_accepted`; it counts no rounds.
- `trtllm.perf_metrics.v1`: `perf_metrics.speculative_decoding`, totals over the request; no rounds.
- `aiperf.records.v1`: AIPerf's `profile_export.jsonl`; times and lengths, nothing about drafts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairgate.errors import InvalidInput, NotFound

_SGLANG_NAMES = (
    ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ("spec_accepted_drafts", "spec_proposed_drafts"),
    ("spec_accept_token_num", "spec_draft_token_num"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCounts:
    """One request; None is what the line does not say. Times in ms."""

    n_proposed: int | None = None
    n_accepted: int | None = None
    n_rounds: int | None = None
    completion_tokens: int | None = None
    ttft_ms: float | None = None
    latency_ms: float | None = None
    failed: bool = False


def definition_of(form: str) -> str:
    """The id under which numbers of this kind are kept apart from others."""
    return _FORMS[form][0]


def read_responses(path: Path, form: str) -> Iterator[ResponseCounts]:
    """The requests of a file, in its order.

    Raises `InvalidInput` for a line that is no object, or that cannot be true, with its number;
    `NotFound`.
    """
    read = _FORMS[form][1]
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = read(_object(json.loads(line)))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInput(f"{path}, line {number}: {error}") from None
        if found.n_accepted is not None and not 0 <= found.n_accepted <= (found.n_proposed or 0):
            raise InvalidInput(
                f"{path}, line {number}: {found.n_accepted} of {found.n_proposed} proposed tokens "
                "were accepted"
            )
        yield found


def _vllm(row: Mapping[str, Any]) -> ResponseCounts:
    counts = _object((row.get("metrics") or {}).get("speculative_decoding") or {})
    return ResponseCounts(
        n_proposed=_number(counts, "num_draft_tokens"),
        n_accepted=_number(counts, "num_accepted_draft_tokens"),
        n_rounds=_number(counts, "num_spec_steps"),
        completion_tokens=_completion(row),
        failed=bool(row.get("error")),
    )


def _sglang(row: Mapping[str, Any]) -> ResponseCounts:
    choices = row.get("choices") or [{}]
    meta = (
        row.get("meta_info")
        or choices[0].get("meta_info")
        or (row.get("sglext") or {}).get("spec_tokens_details")
        or {}
    )
    accepted, proposed = next((names for names in _SGLANG_NAMES if names[1] in meta), (None, None))
    completion = _number(meta, "completion_tokens")
    return ResponseCounts(
        n_proposed=None if proposed is None else _number(meta, proposed),
        n_accepted=None if accepted is None else _number(meta, accepted),
        n_rounds=_number(meta, "spec_verify_ct"),
        completion_tokens=_completion(row) if completion is None else completion,
        failed=bool(row.get("error")),
    )


def _llamacpp(row: Mapping[str, Any]) -> ResponseCounts:
    timings = _object(row.get("timings") or {})
    predicted = _number(timings, "predicted_n")
    return ResponseCounts(
        n_proposed=_number(timings, "draft_n"),
        n_accepted=_number(timings, "draft_n_accepted"),
        completion_tokens=_completion(row) if predicted is None else predicted,
        failed=bool(row.get("error")),
    )


def _trtllm(row: Mapping[str, Any]) -> ResponseCounts:
    metrics = _object(row.get("perf_metrics") or {})
    counts = _object(metrics.get("speculative_decoding") or {})
    return ResponseCounts(
        n_proposed=_number(counts, "total_draft_tokens"),
        n_accepted=_number(counts, "total_accepted_draft_tokens"),
        completion_tokens=_completion(row),
        failed=bool(row.get("error")),
    )


def _aiperf(row: Mapping[str, Any]) -> ResponseCounts:
    metrics = _object(row.get("metrics") or {})
    length = _metric(metrics, "output_sequence_length")
    return ResponseCounts(
        completion_tokens=None if length is None else round(length),
        ttft_ms=_metric(metrics, "time_to_first_token"),
        latency_ms=_metric(metrics, "request_latency"),
        failed=row.get("error") is not None,
    )


_FORMS: dict[str, tuple[str, Callable[[Mapping[str, Any]], ResponseCounts]]] = {
    "vllm": ("vllm.per_request.v1", _vllm),
    "sglang": ("sglang.meta_info.v1", _sglang),
    "llamacpp": ("llamacpp.timings.v1", _llamacpp),
    "trtllm": ("trtllm.perf_metrics.v1", _trtllm),
    "aiperf": ("aiperf.records.v1", _aiperf),
}
FORMS = tuple(_FORMS)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is no JSON object")
    return value


def _number(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r:.40}, no count")
    return value


def _metric(metrics: Mapping[str, Any], name: str) -> float | None:
    """AIPerf's `{"value": …, "unit": …}`; times in ms."""
    found = metrics.get(name)
    if found is None:
        return None
    value, unit = float(found["value"]), str(found.get("unit", ""))
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "sec": 1e3, "s": 1e3, "tokens": 1.0}.get(unit)
    if scale is None or not 0.0 <= value < float("inf"):
        raise ValueError(f"{name} is {value} {unit!r}")
    return value * scale


def _completion(row: Mapping[str, Any]) -> int | None:
    return _number(_object(row.get("usage") or {}), "completion_tokens")
