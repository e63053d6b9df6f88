"""What engines say about decoding, what a pair says, and where the two must agree."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pairgate.app.decoding import DecodingOptions, resolve_decoding
from pairgate.app.evaluate import length_notes
from pairgate.app.profiles import profile_from_command
from pairgate.compat.decoding import read_speculative_config, require_agreement
from pairgate.compat.engines import RUNS, engines_for, require_engine
from pairgate.domain.pair import DecodingConfig, Method
from pairgate.domain.profile import ServingProfile, check_profile_name
from pairgate.errors import InvalidInput, Refused
from tests.release.story import make_pair


def profile(command: str, *, version: str = "0.14.0", name: str = "h100") -> ServingProfile:
    return profile_from_command(
        command, name, engine_version=version, hardware_class="h100x8", concurrencies=(1, 64)
    )


# --- the speculative config -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "method", "k"),
    [
        ({"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}, Method.EAGLE3, 3),
        ({"method": "qwen3_next_mtp", "num_speculative_tokens": 2}, Method.MTP, 2),
        ({"model": "[ngram]", "num_speculative_tokens": 4}, Method.NGRAM, 4),
        ({"speculative-algorithm": "EAGLE3", "speculative-num-steps": 3}, Method.EAGLE3, 3),
        ({"speculative-algorithm": "nextn"}, Method.MTP, None),
        # A tree of drafts has no draft length, and EAGLE may be two methods.
        (
            {
                "speculative-algorithm": "EAGLE",
                "speculative-num-steps": 5,
                "speculative-eagle-topk": 8,
            },
            None,
            None,
        ),
        ({"model-draft": "d.gguf", "draft-max": 8}, Method.DRAFT_MODEL, 8),
        ({}, None, None),
    ],
)
def test_both_dialects_are_read(value: dict[str, object], method: Method | None, k) -> None:
    found = read_speculative_config(json.dumps(value))
    assert (found.method, found.num_speculative_tokens) == (method, k)


def test_sampling_and_kv_dtype_are_read() -> None:
    text = '{"method": "eagle3", "draft_sample_method": "greedy", "kv_cache_dtype": "fp8"}'
    found = read_speculative_config(text)
    assert (found.draft_sampling, found.kv_dtype_draft) == ("greedy", "fp8")
    older = read_speculative_config('{"draft_kv_cache_dtype": "fp8_e5m2"}')
    assert older.kv_dtype_draft == "fp8_e5m2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ('{"method": "medusa"}', "method 'medusa' is not one"),
        ('{"rejection_sample_method": "synthetic"}', "rejection_sample_method is 'synthetic'"),
        ('{"draft_sample_method": "beam"}', "draft_sample_method is 'beam'"),
        ('{"speculative-num-steps": "3"}', "speculative-num-steps is '3'"),
    ],
)
def test_what_is_not_registered(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_speculative_config(text)


# --- the pair's settings --------------------------------------------------------------------


def test_the_serving_command_gives_the_kv_dtypes_unless_they_were_said() -> None:
    served = profile("vllm serve m --kv-cache-dtype fp8")
    ngram = DecodingOptions(method=Method.NGRAM)
    found = resolve_decoding(ngram, None, served)
    assert (found.kv_dtype_target, found.kv_dtype_draft) == ("fp8", "auto")  # it has no cache
    found = resolve_decoding(DecodingOptions(method=Method.MTP), None, served)
    assert (found.kv_dtype_target, found.kv_dtype_draft) == ("fp8", "fp8")
    text = '{"method": "mtp", "kv_cache_dtype": "auto"}'
    found = resolve_decoding(DecodingOptions(speculative_config=text), None, served)
    assert (found.kv_dtype_target, found.kv_dtype_draft) == ("fp8", "auto")
    assert found.speculative_config == text
    said = DecodingOptions(method=Method.MTP, kv_dtype_target="bfloat16", kv_dtype_draft="fp8")
    found = resolve_decoding(said, None, None)
    assert (found.kv_dtype_target, found.kv_dtype_draft) == ("bfloat16", "fp8")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (DecodingOptions(k=3), "draft length"),
        (DecodingOptions(method=Method.NGRAM), "method"),
        (DecodingOptions(draft_sampling="sampled"), "draft sampling"),
        (DecodingOptions(kv_dtype_draft="auto"), "KV dtype of the draft"),
    ],
)
def test_contradictions_are_refused(options: DecodingOptions, what: str) -> None:
    text = json.dumps(
        {
            "method": "mtp",
            "num_speculative_tokens": 2,
            "draft_sample_method": "greedy",
            "kv_cache_dtype": "fp8",
        }
    )
    with pytest.raises(InvalidInput, match=f"the {what} is"):
        resolve_decoding(replace(options, speculative_config=text), None)


def test_the_config_names_the_draft_that_is_missing() -> None:
    text = '{"method": "eagle3", "model": "acme/head"}'
    with pytest.raises(InvalidInput, match="--draft acme/head"):
        resolve_decoding(DecodingOptions(speculative_config=text), None)


# --- agreement ------------------------------------------------------------------------------

EAGLE = DecodingConfig(method=Method.EAGLE3, num_speculative_tokens=3)


def test_a_profile_without_a_speculative_config_takes_the_pairs() -> None:
    require_agreement(EAGLE, profile("vllm serve m -tp 8"), label="code@3")


def test_a_pair_without_a_draft_is_served_without_it() -> None:
    command = """vllm serve m --speculative-config '{"method": "eagle3"}'"""
    require_agreement(DecodingConfig(method=Method.NONE), profile(command), label="code@3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('{"method": "mtp", "num_speculative_tokens": 3}', "its method is mtp, the pair's eagle3"),
        ('{"num_speculative_tokens": 5}', "its draft length is 5, the pair's 3"),
        ('{"draft_sample_method": "greedy"}', "its draft sampling is greedy, the pair's sampled"),
        ('{"kv_cache_dtype": "fp8"}', "KV cache of the draft is fp8, the pair's auto"),
    ],
)
def test_another_decoding_than_the_pairs_is_refused(options: str, message: str) -> None:
    found = profile(f"vllm serve m --speculative-config '{options}'")
    with pytest.raises(Refused, match=message):
        require_agreement(EAGLE, found, label="code@3")


def test_the_target_kv_cache_belongs_to_the_pair() -> None:
    with pytest.raises(Refused, match="KV cache is fp8, the pair's auto"):
        require_agreement(EAGLE, profile("vllm serve m --kv-cache-dtype fp8"), label="code@3")


def test_a_verbatim_config_must_be_the_same_but_for_the_place_of_the_draft() -> None:
    text = '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3, "draft_tp": 1}'
    pair = DecodingConfig(method=Method.EAGLE3, num_speculative_tokens=3, speculative_config=text)
    moved = text.replace("a/b", "/models/head")
    require_agreement(pair, profile(f"vllm serve m -sc '{moved}'"), label="code@3")
    other = text.replace('"draft_tp": 1', '"draft_tp": 2')
    with pytest.raises(Refused, match="its draft_tp is 2, the pair's 1"):
        require_agreement(pair, profile(f"vllm serve m -sc '{other}'"), label="code@3")


def test_which_engine_runs_which_method() -> None:
    assert engines_for(Method.DFLASH) == ("vllm", "sglang")
    for method in Method:
        require_engine("an engine of your own", method, line="code", label="code@3")
        if method in RUNS["native"]:
            require_engine("native", method, line="code", label="code@3")
        else:
            with pytest.raises(Refused, match=f"method {method}, which the native engine"):
                require_engine("native", method, line="code", label="code@3")


# --- commands -------------------------------------------------------------------------------


def test_two_ways_to_write_a_command_are_one_profile() -> None:
    one = profile(
        "VLLM_USE_V1=1 vllm serve acme/model -tp 8 --max_model_len 8192 --kv-cache-dtype=fp8 "
        "--enforce-eager --port 8000 --api-key secret"
    )
    two = profile(
        "VLLM_USE_V1=1 HF_TOKEN=secret python3 -m vllm.entrypoints.openai.api_server --model x "
        "--enforce-eager --kv-cache-dtype fp8 --tensor-parallel-size=8 --max-model-len 8192"
    )
    assert one == two
    assert one.digest == two.digest
    assert "secret" not in two.document().decode()
    assert one.arguments == (
        "--enforce-eager",
        "--kv-cache-dtype", "fp8",
        "--max-model-len", "8192",
        "--tensor-parallel-size", "8",
    )  # fmt: skip
    assert one.environment == ("VLLM_USE_V1=1",)
    assert (one.tensor_parallel_size, one.max_model_len, one.kv_cache_dtype) == (8, 8192, "fp8")


def test_what_is_unknown_stays_verbatim() -> None:
    found = profile(
        "vllm serve m --compilation-config '{\"level\": 3}' --limit-mm a=1 b=2 --seed -1"
    )
    assert found.arguments == (
        "--compilation-config", '{"level": 3}', "--limit-mm", "a=1", "b=2", "--seed", "-1",
    )  # fmt: skip


def test_the_known_options_are_read() -> None:
    found = profile(
        "vllm serve m -q fp8 -pp 2 --max-num-seqs 128 --no-enable-prefix-caching "
        """-sc '{"method": "mtp", "num_speculative_tokens": 1}'"""
    )
    assert (found.quantization, found.pipeline_parallel_size) == ("fp8", 2)
    assert (found.max_num_seqs, found.prefix_caching) == (128, False)
    assert found.speculative_config == '{"method": "mtp", "num_speculative_tokens": 1}'
    assert "mtp" not in " ".join(found.arguments)


def test_prefix_caching_is_the_engines_default_where_nothing_is_said() -> None:
    assert profile("vllm serve m").prefix_caching
    assert not profile("vllm serve m", version="0.6.4").prefix_caching
    assert profile("vllm serve m --enable-prefix-caching", version="0.6.4").prefix_caching
    assert profile("python -m sglang.launch_server --model-path m").prefix_caching
    assert not profile("python -m sglang.launch_server --disable-radix-cache").prefix_caching


def test_speculative_options_of_other_engines_become_the_config() -> None:
    dotted = profile(
        "vllm serve m --speculative-config.method mtp --speculative_config.num_speculative_tokens 2"
    )
    assert json.loads(dotted.speculative_config or "") == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    sglang = profile(
        "python -m sglang.launch_server --model-path m --tp 4 --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path d --speculative-num-steps 3 --context-length 4096"
    )
    assert (sglang.engine, sglang.tensor_parallel_size, sglang.max_model_len) == (
        "sglang",
        4,
        4096,
    )
    require_agreement(EAGLE, sglang, label="code@3")
    llama = profile("llama-server -m t.gguf -md d.gguf --draft-max 8 -np 4 -ctk q8_0")
    assert (llama.engine, llama.max_num_seqs, llama.kv_cache_dtype) == ("llamacpp", 4, "q8_0")
    assert read_speculative_config(llama.speculative_config or "").num_speculative_tokens == 8


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "empty"),
        ("vllm serve 'm", "cannot be read"),
        ("vllm serve m -tp eight", "'eight', not a whole number"),
        ("vllm serve m stray", "'stray' belongs to no option"),
        ("vllm serve m --config serve.yaml", "settings from 'serve.yaml'"),
    ],
)
def test_commands_that_are_no_profile(command: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        profile(command)


def test_profiles_of_older_homes_keep_their_digest() -> None:
    """Fields that came later are left out where they are not set."""
    made = ServingProfile(
        name="native-cpu",
        engine="native",
        engine_version="1.2.3",
        hardware_class="x86_64-avx512",
        concurrencies=(1, 8),
    )
    assert made.digest == (
        "sha256:dd43e11f180969ddd42eeb6b61fba7e0638a934f7e845b5168078e0d566d3437"
    )
    assert b"max_num_seqs" not in made.document()


@pytest.mark.parametrize("name", ["a@1", "", "a b", "a\x1b[31m", "-a", "é"])
def test_names_that_no_command_could_take(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a profile name"):
        check_profile_name(name)


@pytest.mark.parametrize(("positions", "n_notes"), [(0, 0), (63, 1), (64, 0)])
def test_a_slice_that_is_longer_than_the_draft_reads_is_noted(positions: int, n_notes: int) -> None:
    pair = make_pair(b"target", b"draft")
    assert pair.draft is not None
    architecture = replace(pair.draft.architecture, max_position_embeddings=positions)
    short = replace(pair, draft=replace(pair.draft, architecture=architecture))
    assert len(length_notes(short, 64)) == n_notes
    assert length_notes(make_pair(b"target", None), 64) == ()
