"""Architectures, heads and what the native engine can run, from configs and headers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pairgate.compat.architecture import read_architecture
from pairgate.compat.check import check_pair, read_model
from pairgate.compat.decoding import head_method, read_speculative_config
from pairgate.compat.heads import suggested_tokens
from pairgate.compat.native import model_obstacle
from pairgate.domain.pair import Method
from pairgate.errors import InvalidInput, Refused

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 50,
}


def architecture(config: Mapping[str, Any]):
    return read_architecture(config, {}, role="target")


def test_grouped_queries_and_derived_head_size() -> None:
    found = architecture(LLAMA)
    assert (found.n_kv_heads, found.head_dim, found.class_name) == (2, 8, "LlamaForCausalLM")
    assert found.kv_bytes_per_token(2) == 2 * 4 * 2 * 8 * 2


def test_older_names_and_absent_kv_heads() -> None:
    found = architecture(GPT2)
    assert (found.hidden_size, found.n_kv_heads, found.max_position_embeddings) == (32, 4, 64)
    assert architecture(GPT2 | {"multi_query": True}).n_kv_heads == 1


def test_multimodal_configs_are_read_where_the_language_model_is() -> None:
    config = {"model_type": "llava", "architectures": ["Llava"], "text_config": LLAMA}
    assert architecture(config).model_type == "llama"


def test_what_a_config_leaves_out_is_the_default_of_its_class() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2}
    found = architecture({"model_type": "gemma3", "text_config": text})
    assert (found.hidden_size, found.n_layers) == (64, 2)
    assert (found.n_heads, found.n_kv_heads, found.head_dim) == (8, 4, 256)


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": "64"}, {"num_hidden_layers": -1}, {"vocab_size": True}, {"hidden_size": 0}],
)
def test_configs_that_are_no_models(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="target"):
        architecture(LLAMA | change)
    with pytest.raises(InvalidInput, match="model_type"):
        architecture({k: v for k, v in LLAMA.items() if k != "model_type"})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "mamba"}, "mamba is not among"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_what_the_native_engine_would_refuse(config: dict[str, Any], reason: str | None) -> None:
    found = model_obstacle(config, role="target", model_type=config["model_type"], flags=())
    assert (found is None) == (reason is None)
    assert reason is None or (reason in found and "vllm" in found)


def model(folder: Path, role: str, config: Mapping[str, Any], tensors: Mapping[str, Any]):
    folder.mkdir(exist_ok=True)
    path = folder / f"{role}.safetensors"
    save_file(dict(tensors), path)
    documents = {"config.json": json.dumps(config).encode()}
    return read_model(role, documents, {"model.safetensors": path}, ())


HEAD = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "draft_vocab_size": 4,
}
TAKEN = [1, 5, 7, 99]


def head_tensors(
    d2t: list[int] | None = None, t2d: list[int] = TAKEN, width: int = 3 * 64
) -> dict[str, Any]:
    offsets = [t - i for i, t in enumerate(TAKEN)] if d2t is None else d2t
    mask = np.zeros(100, np.bool_)
    mask[t2d] = True
    return {
        "fc.weight": np.zeros((64, width), np.float32),
        "d2t": np.array(offsets, np.int64),
        "t2d": mask,
    }


def check_head(folder: Path, tensors: Mapping[str, Any], **config: object):
    target = model(folder, "target", LLAMA, {"w": np.zeros(1, np.float32)})
    return check_pair(target, model(folder, "draft", HEAD | config, tensors), Method.EAGLE3)


def test_an_eagle3_head_that_fits(tmp_path: Path) -> None:
    found = check_head(tmp_path, head_tensors())
    assert found.tokenizers is None
    assert found.warnings == (found.native_obstacle,)
    assert "eagle3" in (found.native_obstacle or "")


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (head_tensors(width=3 * 32), {}, "hidden states of 96 values, the target gives 192"),
        (head_tensors(d2t=[0, 0, 0]), {}, "4 values of I64"),
        (head_tensors(d2t=[0, 0, 0, 200]), {}, "maps 1 draft ids outside"),
        (head_tensors(d2t=[1, 0, 0, 0]), {}, "1 onto an id that is taken"),
        (head_tensors(t2d=[1, 5, 7]), {}, "does not mark the 4 ids"),
        ({"fc.weight": np.zeros((64, 192), np.float32)}, {}, "holds no d2t"),
        (head_tensors(), {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, r"layers \[9\]"),
    ],
)
def test_heads_of_another_target(tmp_path, tensors, config, message: str) -> None:
    with pytest.raises(Refused, match=message):
        check_head(tmp_path, tensors, **config)


@pytest.mark.parametrize(
    "config",
    [
        {"draft_vocab_size": "4"},
        {"eagle_aux_hidden_state_layer_ids": ["1"]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": 3}},
    ],
)
def test_head_configs_of_the_wrong_type(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="of the draft"):
        check_head(tmp_path, head_tensors(), **config)


def test_a_speculators_checkpoint_says_what_it_is() -> None:
    config = {
        "speculators_model_type": "eagle3",
        "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
    }
    assert (head_method(config), suggested_tokens(config)) == (Method.EAGLE3, 5)
    assert (head_method(HEAD), suggested_tokens(HEAD)) == (Method.EAGLE3, None)
    assert head_method(LLAMA) is None


def test_mtp_layers_must_be_in_the_files(tmp_path: Path) -> None:
    config = LLAMA | {"num_nextn_predict_layers": 1}
    weight = np.zeros(1, np.float32)
    kept = model(tmp_path, "target", config, {"model.layers.4.enorm.weight": weight})
    check_pair(kept, None, Method.MTP)
    dropped = model(tmp_path, "target", config, {"model.layers.3.x.weight": weight})
    with pytest.raises(Refused, match="announces 1 MTP layers and its files hold none"):
        check_pair(dropped, None, Method.MTP)


def test_serving_engines_name_mtp_in_many_ways() -> None:
    text = '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'
    found = read_speculative_config(text)
    assert (found.method, found.num_speculative_tokens) == (Method.MTP, 1)
    with pytest.raises(InvalidInput, match="num_speculative_tokens"):
        read_speculative_config('{"num_speculative_tokens": "3"}')


def test_a_draft_without_tokenizer_cannot_be_compared(tmp_path: Path) -> None:
    one = model(tmp_path, "target", LLAMA, {"w": np.zeros(1, np.float32)})
    two = model(tmp_path, "draft", LLAMA, {"w": np.zeros(1, np.float32)})
    with pytest.raises(Refused, match="has no tokenizer"):
        check_pair(one, two, Method.DRAFT_MODEL)


def test_pickled_weights_are_sized_without_unpickling(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", b"never read")
        archive.writestr("m/data/0", struct.pack("<10f", *range(10)))
    documents = {"config.json": json.dumps(LLAMA | {"dtype": "float32"}).encode()}
    found = read_model("target", documents, {path.name: path}, ("pickle",))
    assert (found.architecture.n_parameters, found.architecture.dtype) == (10, "float32")
    path.write_bytes(b"\x80\x02 an old pickle")
    with pytest.raises(Refused, match="without running it"):
        read_model("target", documents, {path.name: path}, ("pickle",))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"a": 1, "a": 2}'])
def test_broken_configs_name_the_file(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"config\.json of the draft"):
        read_model("draft", {"config.json": data}, {}, ())
    with pytest.raises(InvalidInput, match=r"the draft has no config\.json"):
        read_model("draft", {}, {}, ())
