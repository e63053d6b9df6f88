"""vLLM (0.29 or newer): its per-request counts, its counters, its flags.

Definition `vllm.per_request.v1`, read off vLLM 0.32 with a real draft pair:

- `metrics.speculative_decoding` rides on the last usage chunk of a stream, when the server runs
  with `--per-request-spec-decode-metrics detailed` (which it refuses without a speculative
  config). `per_step_drafted[i]` tokens were proposed in the i-th draft step and
  `per_step_accepted[i]` of them accepted; a step yields its accepted tokens and one more.
- The first token comes from prefill and is no step. A step for which nothing was drafted is left
  out of the lists, e.g. the last one before the maximum length.
- Counts are taken before EOS, a stop token or max_tokens cuts the last step: see `rounds`.
- Of a prompt of which one token is left (it has one, or the prefix cache held the others) the
  prefill may be reported as a step with nothing accepted: it is none (`rounds`).
- A request that ends by a stop *string* carries no counts at all: the string is found by the API
  server, which then aborts the request in the engine. Its rounds are UNCOUNTED.
- With n > 1 there are none either; pairgate never asks for more than one choice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pairgate.domain.pair import Method
from pairgate.domain.speculative import speculative_json
from pairgate.engines.server.asking import get_json, get_text
from pairgate.engines.server.dialect import (
    Contradiction,
    Counters,
    Identity,
    RequestCounts,
    StepCounts,
    Uncounted,
)
from pairgate.engines.server.room import is_cpu
from pairgate.engines.server.wire import Reply
from pairgate.errors import InvalidEvaluation, Refused, Unavailable

if TYPE_CHECKING:
    from pairgate.domain.profile import ServingProfile
    from pairgate.ports import EngineLimits, MaterialisedPair

SERVED_NAME = "pairgate"
_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_GIB = 2**30
# Set by pairgate, so not taken from a profile: option -> whether a value follows it.
_OURS = {
    "--model": True,
    "--served-model-name": True,
    "--host": True,
    "--port": True,
    "--max-model-len": True,
    "--speculative-config": True,
    "--per-request-spec-decode-metrics": True,
    "--enable-prompt-tokens-details": False,
}


class VllmDialect:
    """Implements `dialect.Dialect` for vLLM's OpenAI-compatible server."""

    name = "vllm"
    definition = "vllm.per_request.v1"
    health_path = "/health"

    def identity(self, base_url: str) -> Identity:
        version = get_json(f"{base_url}/version").get("version")
        models = get_json(f"{base_url}/v1/models").get("data") or []
        if not version or not models or "id" not in models[0]:
            raise Unavailable(
                f"{base_url} is no vLLM server that serves a model: /version says {version!r}, "
                f"/v1/models lists {len(models)}"
            )
        cache = dict(_labels(get_text(f"{base_url}/metrics"), "vllm:cache_config_info"))
        first = models[0]
        return Identity(
            version=str(version),
            model=str(first["id"]),
            model_root=str(first.get("root") or ""),
            max_model_len=first.get("max_model_len"),
            resolved=(("cache_config", json.dumps(cache, sort_keys=True)),),
        )

    def counters(self, base_url: str) -> Counters:
        text = get_text(f"{base_url}/metrics")
        return Counters(
            n_finished=_total(text, "vllm:request_success_total"),
            n_running=_total(text, "vllm:num_requests_running"),
            n_waiting=_total(text, "vllm:num_requests_waiting"),
            n_generated=_total(text, "vllm:generation_tokens_total"),
            n_drafts=_total(text, "vllm:spec_decode_num_drafts_total"),
            n_draft_tokens=_total(text, "vllm:spec_decode_num_draft_tokens_total"),
            n_accepted=_total(text, "vllm:spec_decode_num_accepted_tokens_total"),
            n_preemptions=_total(text, "vllm:num_preemptions_total"),
        )

    def step_counts(self, reply: Reply, *, version: str) -> RequestCounts:
        metrics = json.loads(reply.final).get("metrics")
        found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if not isinstance(found, dict):
            if reply.finish_reason == "stop" and isinstance(reply.stop_reason, str):
                return Uncounted(reason="ended by a stop string, for which vLLM sends no counts")
            raise _changed(version, "metrics.speculative_decoding")
        n_steps = _field(found, "num_spec_steps", int, version)
        # A request without a single draft step has no lists.
        lists = [_field(found, name, list, version) for name in _PER_STEP] if n_steps else [[], []]
        drafted, accepted = (np.array(values, np.int64) for values in lists)
        sums = (
            ("num_spec_steps", n_steps, len(drafted)),
            ("num_spec_steps", n_steps, len(accepted)),
            ("num_draft_tokens", _field(found, "num_draft_tokens", int, version), drafted.sum()),
            (_ACCEPTED, _field(found, _ACCEPTED, int, version), accepted.sum()),
        )
        for name, said, summed in sums:
            if said != summed:
                return Contradiction(reason=f"{name} is {said}, the steps give {summed}")
        return StepCounts(drafted=drafted.astype(np.int16), accepted=accepted.astype(np.int16))

    def default_launch(self, python: Path) -> tuple[str, ...]:
        # The `vllm` script of the CPU package does not find its own metadata; the module works.
        return (str(python), "-m", "vllm.entrypoints.openai.api_server")

    def command(
        self,
        launch: Sequence[str],
        pair: MaterialisedPair,
        profile: ServingProfile,
        limits: EngineLimits,
        *,
        port: int,
        with_draft: bool,
    ) -> tuple[str, ...]:
        arguments = _without_ours(profile.arguments)
        dtype = pair.pair.decoding.compute_dtype
        on_cpu = is_cpu(profile)
        if "--dtype" not in arguments and (dtype != "auto" or on_cpu):
            arguments += ("--dtype", "float32" if dtype == "auto" else dtype)
        words = (
            *launch,
            *("--model", str(pair.target_dir), "--served-model-name", SERVED_NAME),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(limits.max_model_len)),
            "--enable-prompt-tokens-details",
            *arguments,
        )
        if not with_draft or pair.pair.decoding.method is Method.NONE:
            return words
        return (
            *words,
            *("--speculative-config", speculative_config(pair)),
            *("--per-request-spec-decode-metrics", "detailed"),
        )

    def environment(self, pair: MaterialisedPair, limits: EngineLimits) -> dict[str, str]:
        """Offline, no usage statistics, and on a CPU a cache that holds the largest batch."""
        models = [pair.pair.target, *((pair.pair.draft,) if pair.pair.draft else ())]
        per_token = sum(m.architecture.kv_bytes_per_token(4) for m in models)
        needed = per_token * limits.max_model_len * limits.max_concurrency
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, -(-2 * needed // _GIB))),
        }


_PER_STEP = ("per_step_drafted", "per_step_accepted")
_ACCEPTED = "num_accepted_draft_tokens"


def speculative_config(pair: MaterialisedPair) -> str:
    """The JSON for `--speculative-config`: the pair's own text where it has one, with this
    machine's paths. Raises `Refused` for acceptance that is not the target's law."""
    text = speculative_json(
        pair.pair.decoding, None if pair.draft_dir is None else str(pair.draft_dir)
    )
    rejection = json.loads(text).get("rejection_sample_method", "standard")
    if rejection != "standard":
        raise Refused(
            f"the pair's speculative config has rejection_sample_method {rejection!r}, whose "
            "acceptance is not that of the models",
            hint="register the pair without it; only 'standard' is evidence",
        )
    return text


def _without_ours(arguments: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name in _OURS:
            skip = _OURS[name] and not equals
            continue
        kept.append(word)
    return tuple(kept)


def _total(text: str, name: str) -> int | None:
    """Sum over engines and labels of one Prometheus sample; None where it does not occur."""
    found = [float(value) for found_name, _, value in _SAMPLE.findall(text) if found_name == name]
    return round(sum(found)) if found else None


def _labels(text: str, name: str) -> list[tuple[str, str]]:
    for found_name, labels, _ in _SAMPLE.findall(text):
        if found_name == name:
            return re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
    return []


def _field(found: dict[str, Any], name: str, kind: type, version: str) -> Any:
    value = found.get(name)
    whole = kind is not list or (
        isinstance(value, list) and all(type(v) is int and 0 <= v < 2**15 for v in value)
    )
    if not isinstance(value, kind) or not whole:
        raise _changed(version, f"metrics.speculative_decoding.{name}")
    return value


def _changed(version: str, name: str) -> InvalidEvaluation:
    return InvalidEvaluation(
        f"vLLM {version} sends no {name} as pairgate knows it",
        hint="start it with --per-request-spec-decode-metrics detailed; if it was, this version "
        "of vLLM counts in another way than pairgate's definition vllm.per_request.v1",
    )
