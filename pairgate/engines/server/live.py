"""Live counters of servers: their own /metrics, or what a Prometheus has collected of them.

Definition, read off vLLM 0.32: `vllm:spec_decode_num_drafts` are draft steps of one request,
`…num_draft_tokens` the tokens proposed in them, `…num_accepted_tokens` those that verification
accepted, before any cut. It is `vllm.per_request.v1` summed over requests.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pairgate.domain.observation import LiveCounters, Reading
from pairgate.engines.server.asking import base_url, get_json, get_text
from pairgate.errors import MissingExtra, PairgateError, Unavailable

_TOTALS = {
    "n_drafts": "vllm:spec_decode_num_drafts_total",
    "n_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "n_accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "n_generated": "vllm:generation_tokens_total",
    "n_finished": "vllm:request_success_total",
    "n_cache_queries": "vllm:prefix_cache_queries_total",
    "n_cache_hits": "vllm:prefix_cache_hits_total",
    "n_preemptions": "vllm:num_preemptions_total",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_PROCESS_START = "process_start_time_seconds"
# When the counters began, for servers of several processes, which do not tell their own start.
_COUNTERS_START = "vllm:generation_tokens_created"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")


def read_replica(url: str) -> Reading:
    """A server by its address (with or without /metrics); what keeps it from answering is in the
    reading's `error`."""
    root = base_url(url.removesuffix("/metrics"))
    try:
        reading = reading_of(root, samples_of(get_text(f"{root}/metrics")))
        models = get_json(f"{root}/v1/models").get("data") or []
        version = get_json(f"{root}/version").get("version") or ""
    except PairgateError as error:
        if isinstance(error, MissingExtra):
            raise
        return Reading(replica=root, error=error.message)
    names = tuple(str(m["id"]) for m in models if isinstance(m, dict) and "id" in m)
    return replace(reading, engine_version=str(version), served_names=names)


def read_prometheus(url: str, selector: str) -> tuple[Reading, ...]:
    """All instances that a selector such as `{job="vllm"}` picks out of a Prometheus.

    Only the first served name of a server is a label there, and no engine version.
    Raises `Unavailable` when it does not answer, or knows no such instance.
    """
    root, inside = url.rstrip("/"), selector.strip().removeprefix("{").removesuffix("}").strip(" ,")
    wanted = "|".join((*_TOTALS.values(), _PER_POSITION, _PROCESS_START, _COUNTERS_START))
    query = f'{{__name__=~"{wanted}"{"," if inside else ""}{inside}}}'
    answer = get_json(f"{root}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    if answer.get("status") != "success":
        raise Unavailable(f"{root} refuses {query}: {answer.get('error', '')}")
    by_instance: dict[str, list[Sample]] = {}
    for row in answer["data"]["result"]:
        labels = dict(row["metric"])
        sample = Sample(
            name=labels.pop("__name__"), labels=tuple(labels.items()), value=float(row["value"][1])
        )
        by_instance.setdefault(sample.label("instance"), []).append(sample)
    if not by_instance:
        raise Unavailable(f"{root} has no vLLM server with {selector}")
    return tuple(reading_of(name, samples) for name, samples in sorted(by_instance.items()))


def samples_of(text: str) -> Iterator[Sample]:
    """The samples of a Prometheus text; raises `Unavailable` for what is none."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise MissingExtra("prometheus_client", "server") from None
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sample.labels.items())
                yield Sample(name=sample.name, labels=labels, value=sample.value)
    except (ValueError, IndexError) as error:
        raise Unavailable(f"its metrics cannot be read: {error}") from error


def reading_of(replica: str, samples: Iterable[Sample]) -> Reading:
    """The counters among the samples of one server, summed over engines and labels."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    names: dict[str, None] = {}
    for sample in samples:
        if sample.name == _PER_POSITION:
            position = int(sample.label("position") or 0)
            positions[position] = positions.get(position, 0.0) + sample.value
        elif sample.name in (_PROCESS_START, _COUNTERS_START):
            sums[sample.name] = max(sums.get(sample.name, 0.0), sample.value)
        else:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        if sample.name == _TOTALS["n_generated"] and sample.label("model_name"):
            names[sample.label("model_name")] = None
    found = {field: round(sums[name]) for field, name in _TOTALS.items() if name in sums}
    if not found:
        return Reading(replica=replica, error="it has no counters of vLLM")
    return Reading(
        replica=replica,
        counters=LiveCounters(
            per_position=tuple(round(positions[p]) for p in sorted(positions)), **found
        ),
        served_names=tuple(names),
        started_at=sums.get(_PROCESS_START) or sums.get(_COUNTERS_START) or 0.0,
    )
