"""The serving command of each engine, in the words of its public documentation. Only what is
written for vLLM (0.32) was started by a test (docs/operations.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pairgate.domain.pair import Method, Pair
from pairgate.domain.profile import ServingProfile
from pairgate.domain.speculative import speculative_json
from pairgate.errors import InvalidInput
from pairgate.render.serve import (
    ConfigFile,
    Option,
    Places,
    Serve,
    grouped,
    says,
    served_digest,
    without,
)

_CPU = ("x86_64", "aarch64", "arm64")
_VLLM_OURS = frozenset(
    ("--model", "--served-model-name", "--speculative-config", "--host", "--port")
)
_SGLANG_OURS = frozenset(("--model-path", "--served-model-name", "--weight-version"))
_LLAMACPP_OURS = frozenset(("--model", "--alias"))
_SGLANG_METHODS = {
    Method.DRAFT_MODEL: "STANDALONE",
    Method.EAGLE3: "EAGLE3",
    Method.MTP: "NEXTN",
    Method.DFLASH: "DFLASH",
    Method.NGRAM: "NGRAM",
}
_TRTLLM_METHODS = {
    Method.DRAFT_MODEL: "DraftTarget",
    Method.EAGLE3: "Eagle",
    Method.MTP: "MTP",
    Method.NGRAM: "NGram",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is an engine's own of a `Serve`."""

    launch: tuple[str, ...]
    model: tuple[str, ...]
    options: tuple[Option, ...]
    files: tuple[ConfigFile, ...] = ()
    notes: tuple[str, ...] = ()


def serve_command(pair: Pair, line: str, label: str, profile: ServingProfile, at: Places) -> Serve:
    """The command that serves the pair as `line`, and under a name with its digest.

    Raises `InvalidInput` for an engine without a rendering.
    """
    made = _ENGINES.get(profile.engine)
    if made is None:
        raise InvalidInput(
            f"profile {profile.name} names the engine {profile.engine}, which serves nobody",
            hint=f"render knows {', '.join(_ENGINES)}: name such a profile with --profile",
        )
    parts = made(pair, line, profile, at)
    return Serve(
        engine=profile.engine,
        engine_version=profile.engine_version,
        label=label,
        pair_digest=pair.digest,
        profile=profile.name,
        environment=profile.environment,
        launch=parts.launch,
        model=parts.model,
        options=parts.options,
        files=parts.files,
        notes=parts.notes,
    )


def _vllm(pair: Pair, line: str, profile: ServingProfile, at: Places) -> _Parts:
    options = list(without(grouped(profile.arguments), _VLLM_OURS))
    own: list[Option] = [("--served-model-name", line, f"{line}@{served_digest(pair.digest)}")]
    if at.revision is not None:
        own.append(("--revision", at.revision))
    if "://" in at.target and not says(options, "--load-format"):
        own.append(("--load-format", "runai_streamer"))
    dtype = pair.decoding.compute_dtype
    if not says(options, "--dtype"):
        if dtype != "auto":
            own.append(("--dtype", dtype))
        elif profile.hardware_class.startswith(_CPU):
            own.append(("--dtype", "float32"))  # as it was evaluated
    filled = (
        ("--max-model-len", profile.max_model_len, None),
        ("--max-num-seqs", profile.max_num_seqs, None),
        ("--tensor-parallel-size", profile.tensor_parallel_size, 1),
        ("--pipeline-parallel-size", profile.pipeline_parallel_size, 1),
        ("--quantization", profile.quantization, None),
        ("--kv-cache-dtype", profile.kv_cache_dtype, "auto"),
    )
    own += [(n, str(v)) for n, v, default in filled if v != default and not says(options, n)]
    caching = ("--enable-prefix-caching", "--no-enable-prefix-caching")
    if not says(options, *caching):
        own.append((caching[0] if profile.prefix_caching else caching[1],))
    if pair.decoding.method is not Method.NONE:
        own.append(("--speculative-config", _vllm_speculative(pair, at)))
    notes: tuple[str, ...] = ()
    if not says((*own, *options), "--max-model-len"):
        notes = (f"profile {profile.name} names no maximum length: vLLM takes the model's own",)
    return _Parts(
        launch=("vllm", "serve"), model=(at.target,), options=(*own, *options), notes=notes
    )


def _vllm_speculative(pair: Pair, at: Places) -> str:
    text = speculative_json(pair.decoding, at.draft)
    if at.draft_revision is None:
        return text
    return json.dumps({**json.loads(text), "revision": at.draft_revision}, sort_keys=True)


def _sglang(pair: Pair, line: str, profile: ServingProfile, at: Places) -> _Parts:
    """SGLang has one served name; the digest is its `--weight-version`, which it sends with every
    answer. It counts K + 1 draft tokens where it proposes a chain of K steps."""
    options = tuple(without(grouped(profile.arguments), _SGLANG_OURS))
    own: list[Option] = [
        ("--served-model-name", line),
        ("--weight-version", served_digest(pair.digest)),
    ]
    if at.revision is not None:
        own.append(("--revision", at.revision))
    filled = (
        ("--context-length", profile.max_model_len, None),
        ("--max-running-requests", profile.max_num_seqs, None),
        ("--tensor-parallel-size", profile.tensor_parallel_size, 1),
        ("--pipeline-parallel-size", profile.pipeline_parallel_size, 1),
        ("--quantization", profile.quantization, None),
        ("--kv-cache-dtype", profile.kv_cache_dtype, "auto"),
    )
    own += [(n, str(v)) for n, v, default in filled if v != default and not says(options, n)]
    if not profile.prefix_caching and not says(options, "--disable-radix-cache"):
        own.append(("--disable-radix-cache",))
    method, k = pair.decoding.method, pair.decoding.num_speculative_tokens
    if method is not Method.NONE:
        values: dict[str, Any] = {"speculative-algorithm": _SGLANG_METHODS[method]}
        if method is Method.NGRAM:
            values["speculative-num-draft-tokens"] = k + 1
        else:
            values |= {
                "speculative-num-steps": k,
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": k + 1,
            }
        values |= _own_words(pair, "speculative-")
        if at.draft is not None:
            values["speculative-draft-model-path"] = at.draft
        if at.draft_revision is not None:
            values["speculative-draft-model-revision"] = at.draft_revision
        own += [(f"--{name}", str(value)) for name, value in sorted(values.items())]
    launch = ("python3", "-m", "sglang.launch_server")
    return _Parts(launch=launch, model=("--model-path", at.target), options=(*own, *options))


def _llamacpp(pair: Pair, line: str, profile: ServingProfile, at: Places) -> _Parts:
    """llama.cpp reads GGUF, which pairgate does not make; it stands beside the folders."""
    options = tuple(without(grouped(profile.arguments), _LLAMACPP_OURS))
    own: list[Option] = [("--alias", f"{line},{line}@{served_digest(pair.digest)}")]
    if at.draft is not None:
        own.append(("--model-draft", f"{at.draft}.gguf"))
    if pair.decoding.method is not Method.NONE:
        k = pair.decoding.num_speculative_tokens
        values: dict[str, Any] = {"draft-max": k, **_own_words(pair, "draft-")}
        own += [(f"--{name}", str(value)) for name, value in sorted(values.items())]
    if profile.max_model_len and not says(options, "--ctx-size"):
        # The context is shared by all slots.
        slots = profile.max_num_seqs or 1
        own.append(("--ctx-size", str(profile.max_model_len * slots)))
    if profile.max_num_seqs and not says(options, "--parallel"):
        own.append(("--parallel", str(profile.max_num_seqs)))
    note = (
        "llama.cpp reads GGUF: convert target/ and draft/ with its convert_hf_to_gguf.py. The "
        "digest is that of the files before the conversion"
    )
    return _Parts(
        launch=("llama-server",),
        model=("--model", f"{at.target}.gguf"),
        options=(*own, *options),
        notes=(note,),
    )


def _trtllm(pair: Pair, line: str, profile: ServingProfile, at: Places) -> _Parts:
    """TensorRT-LLM takes speculation from a file of options."""
    # A profile keeps the canonical name, trtllm-serve knows its own.
    options = tuple(
        ("--tp_size", *o[1:]) if o[0] == "--tensor-parallel-size" else o
        for o in without(grouped(profile.arguments), frozenset(("--extra_llm_api_options",)))
    )
    files: tuple[ConfigFile, ...] = ()
    own: list[Option] = []
    filled = (
        ("--max_seq_len", profile.max_model_len, None),
        ("--max_batch_size", profile.max_num_seqs, None),
        ("--tp_size", profile.tensor_parallel_size, 1),
    )
    own += [
        (name, str(v))
        for name, v, default in filled
        if v != default and not says(options, name, name.replace("_", "-"))
    ]
    if pair.decoding.method is not Method.NONE:
        speculative: dict[str, Any] = {
            "decoding_type": _TRTLLM_METHODS[pair.decoding.method],
            "max_draft_len": pair.decoding.num_speculative_tokens,
        }
        if pair.decoding.method is Method.MTP:
            k = speculative.pop("max_draft_len")
            speculative["num_nextn_predict_layers"] = k
        if at.draft is not None:
            speculative["speculative_model_dir"] = at.draft
        text = json.dumps({"speculative_config": speculative}, indent=2, sort_keys=True) + "\n"
        files = (ConfigFile(name=f"{line}.trtllm.yaml", text=text),)
        own.append(("--extra_llm_api_options", files[0].name))
    note = (
        "trtllm-serve names the model after its folder: nothing that it serves carries the digest"
    )
    return _Parts(
        launch=("trtllm-serve",),
        model=(at.target,),
        options=(*own, *options),
        files=files,
        notes=(note,),
    )


def _own_words(pair: Pair, prefix: str) -> dict[str, Any]:
    """What the pair says in this engine's own words, but for where the draft lies."""
    said: dict[str, Any] = json.loads(pair.decoding.speculative_config or "{}")
    return {
        name: value
        for name, value in said.items()
        if name.startswith(prefix) and not name.endswith("model-path")
    }


_ENGINES: dict[str, Callable[[Pair, str, ServingProfile, Places], _Parts]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llamacpp": _llamacpp,
    "trtllm": _trtllm,
}
