"""Heads and MTP layers, on small checkpoints with the keys and names of public models."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pairgate.compat.check import Compatibility, Model, check_pair, read_model
from pairgate.compat.decoding import head_method
from pairgate.compat.heads import named_verifier, suggested_tokens
from pairgate.compat.mtp import Located, mtp_tensors, n_not_finite, same_bytes
from pairgate.compat.weights import Tensor
from pairgate.domain.pair import Method
from pairgate.errors import IntegrityError, Refused
from tests.compat import checkpoints as c


def read(
    folder: Path, role: str, config: Mapping[str, Any], tensors: c.Tensors, origin: str = ""
) -> Model:
    c.write_model(folder / role, config, tensors)
    documents = {"config.json": (folder / role / "config.json").read_bytes()}
    weights = {"model.safetensors": folder / role / "model.safetensors"}
    return read_model(role, documents, weights, (), origin=origin)


def check_mtp(folder: Path, config: Mapping[str, Any], tensors: c.Tensors) -> Compatibility:
    return check_pair(read(folder, "target", config, tensors), None, Method.MTP)


# --- MTP ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (c.DEEPSEEK, c.deepseek_mtp()),
        (c.DEEPSEEK, c.deepseek_mtp(dtype="F8_E4M3")),
        (c.QWEN3_NEXT, c.qwen3_next_mtp()),  # announces no number of layers
        (c.QWEN3_NEXT | {"mtp_num_hidden_layers": 1}, c.qwen3_next_mtp(dtype="F16")),
        (c.DEEPSEEK, {"model.mtp_layers.0.token_layernorm.weight": c.random_tensor((16,))}),
    ],
)
def test_layers_that_are_there(tmp_path: Path, config: dict[str, Any], layers: c.Tensors) -> None:
    found = check_mtp(tmp_path, config, c.trunk() | layers)
    assert found.warnings == (found.native_obstacle,)
    assert "vllm, sglang" in (found.native_obstacle or "")


def test_the_head_is_told_from_the_target_itself(tmp_path: Path) -> None:
    layers = c.deepseek_mtp()
    vision = {"vision_tower.encoder.layers.26.mlp.fc1.weight": c.random_tensor((16,))}
    target = read(tmp_path, "target", c.DEEPSEEK, c.trunk() | layers | vision)
    assert mtp_tensors(target.config, target.headers, target.weights).keys() == layers.keys()


@pytest.mark.parametrize(
    ("config", "layers", "message"),
    [
        (c.DEEPSEEK, {}, r"(?m)announces 1 MTP layers and its files hold none$"),
        (c.TARGET, {}, "announces 0 MTP layers and its files hold none"),
        (c.DEEPSEEK | {"num_nextn_predict_layers": 2}, c.deepseek_mtp(), "2 MTP layers .* hold 1"),
        (
            c.DEEPSEEK | {"quantization_config": {"quant_method": "awq"}},
            {},
            "quantised, which may have dropped them",
        ),
        (
            c.DEEPSEEK | {"quantization_config": {"ignore": ["lm_head", "re:.*layers\\.4.*"]}},
            {},
            r"ignore list .* names them \(re:\.\*layers",
        ),
        (
            c.QWEN3_NEXT | {"quantization_config": {"modules_to_not_convert": ["mtp"]}},
            {},
            r"ignore list .* names them \(mtp\)",
        ),
    ],
)
def test_layers_that_were_dropped(tmp_path: Path, config, layers, message: str) -> None:
    with pytest.raises(Refused, match=message):
        check_mtp(tmp_path, config, c.trunk() | layers)


NAN = {
    "BF16": struct.pack("<H", 0x7FC0),
    "F16": struct.pack("<H", 0x7E00),
    "F32": struct.pack("<f", float("nan")),
    "F8_E4M3": b"\xff",
    "F8_E5M2": b"\x7e",
}


@pytest.mark.parametrize("dtype", NAN)
def test_nan_in_the_layers_is_refused_in_every_dtype(tmp_path: Path, dtype: str) -> None:
    name = f"model.layers.{c.LAYERS}.mlp.down_proj.weight"
    layers = c.deepseek_mtp(dtype=dtype)
    _, shape, data = layers[name]
    broken = data[: -len(NAN[dtype])] + NAN[dtype]
    layers[name] = (dtype, shape, broken)
    with pytest.raises(Refused, match=rf"1 tensors .* first {name} \(1 of 512\)"):
        check_mtp(tmp_path, c.DEEPSEEK, c.trunk() | layers)


@pytest.mark.parametrize(("dtype", "kind"), [("F16", np.float16), ("F32", np.float32)])
def test_the_scan_counts_what_numpy_counts(tmp_path: Path, dtype: str, kind: type) -> None:
    data = np.random.default_rng(1).integers(0, 256, 40000, np.uint8).tobytes()
    (tmp_path / "raw").write_bytes(data)
    n = len(data) // np.dtype(kind).itemsize
    tensor = Tensor(name="t", dtype=dtype, shape=(n,), begin=0, end=len(data))
    expected = int((~np.isfinite(np.frombuffer(data, kind))).sum())
    assert expected > 0
    assert n_not_finite(Located(tensor=tensor, file=tmp_path / "raw")) == expected


def test_all_float8_and_bfloat16_values_against_torch(tmp_path: Path) -> None:
    import torch

    for dtype, kind in {
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
        "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
        "F8_E8M0": torch.float8_e8m0fnu,
        "BF16": torch.bfloat16,
    }.items():
        if dtype == "BF16":
            data = np.arange(65536, dtype="<u2").tobytes()
        else:
            data = bytes(range(256))
        (tmp_path / "raw").write_bytes(data)
        values = torch.frombuffer(bytearray(data), dtype=kind).float()
        tensor = Tensor(name="t", dtype=dtype, shape=(len(values),), begin=0, end=len(data))
        found = n_not_finite(Located(tensor=tensor, file=tmp_path / "raw"))
        assert found == int((~values.isfinite()).sum()), dtype


def test_a_file_that_shrinks_while_it_is_read_is_no_traceback(tmp_path: Path) -> None:
    model = read(tmp_path, "target", c.DEEPSEEK, c.trunk() | c.deepseek_mtp())
    path = tmp_path / "target" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="changed while it was read"):
        check_pair(model, None, Method.MTP)


def test_a_stale_head_is_told_from_a_trained_one(tmp_path: Path) -> None:
    def located(folder: str, seed: int, head: int) -> Mapping[str, Located]:
        tensors = c.trunk(seed=seed) | c.deepseek_mtp(seed=head)
        model = read(tmp_path / folder, "target", c.DEEPSEEK, tensors)
        return mtp_tensors(model.config, model.headers, model.weights)

    before = located("a", seed=0, head=90)
    assert same_bytes(before, located("b", seed=5, head=90))
    assert not same_bytes(before, located("c", seed=5, head=91))
    assert not same_bytes({}, {})


@pytest.mark.parametrize(
    ("quantization", "n_warnings"),
    [
        ({"quant_method": "fp8"}, 1),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.4"]}, 0),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["re:x"]}}}, 0),
        ({"config_groups": {"a": {"targets": ["Linear"]}}, "ignore": ["lm_head"]}, 1),
        ({"config_groups": {"a": {"targets": ["Linear"]}}, "ignore": ["re:.*layers.4.*"]}, 0),
        # An expression that could run for ever is not run, so it names nothing.
        ({"quant_method": "fp8", "ignore": ["re:(m|mo)+(del)+$"]}, 1),
    ],
)
def test_plain_layers_in_a_quantised_target(tmp_path, quantization, n_warnings: int) -> None:
    config = c.DEEPSEEK | {"quantization_config": quantization}
    found = check_mtp(tmp_path, config, c.trunk() | c.deepseek_mtp())
    said = [w for w in found.warnings if "stored unquantised" in w]
    assert len(said) == n_warnings
    quantised = check_mtp(tmp_path, config, c.trunk() | c.deepseek_mtp(dtype="F8_E4M3"))
    assert not [w for w in quantised.warnings if "stored unquantised" in w]


# --- EAGLE-3 and DFlash ---------------------------------------------------------------------


def check_head(
    folder: Path,
    config: Mapping[str, Any],
    tensors: c.Tensors,
    *,
    method: Method = Method.EAGLE3,
    origin: str = "hf://acme/target@main",
) -> tuple[str, ...]:
    target = read(folder, "target", c.TARGET, c.trunk(), origin=origin)
    found = check_pair(target, read(folder, "draft", config, tensors), method)
    return tuple(w for w in found.warnings if w != found.native_obstacle)


def test_a_speculators_head_says_method_length_and_verifier() -> None:
    config = c.eagle3_speculator("acme/target")
    assert head_method(config) is Method.EAGLE3
    assert suggested_tokens(config) == 5  # of the default proposal method, not of the first
    assert named_verifier(config) == "acme/target"
    assert (head_method(c.DFLASH), suggested_tokens(c.DFLASH)) == (Method.DFLASH, 7)
    hostile = {"speculators_config": {"proposal_methods": 3, "verifier": "x"}, "dflash_config": 1}
    assert (suggested_tokens(hostile), named_verifier(hostile)) == (None, None)


def test_heads_that_fit(tmp_path: Path) -> None:
    assert check_head(tmp_path, c.eagle3_speculator("Acme/Target"), c.eagle3_tensors()) == ()
    assert check_head(tmp_path, c.DFLASH, c.dflash_tensors(), method=Method.DFLASH) == ()


def test_another_verifier_is_flagged(tmp_path: Path) -> None:
    config = c.eagle3_speculator("acme/other")
    config["speculators_config"]["verifier"]["architectures"] = ["Qwen3ForCausalLM"]
    name, architecture = check_head(tmp_path, config, c.eagle3_tensors())
    assert "trained for acme/other, and the target is hf://acme/target@main" in name
    assert "trained for a Qwen3ForCausalLM, this is a LlamaForCausalLM" in architecture


def test_a_map_without_its_inverse_is_flagged(tmp_path: Path) -> None:
    tensors = c.eagle3_tensors()
    del tensors["t2d"]
    (said,) = check_head(tmp_path, c.eagle3_speculator("acme/target"), tensors)
    assert "without t2d" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_target_layers": 36}, "made for a target of 36 layers, this one has 4"),
        ({"dflash_config": {"target_layer_ids": [1, 4]}}, r"layers \[4\] of a target that has 4"),
        ({"dflash_config": {"target_layer_ids": [1, 2, 3]}}, "32 values, the target gives 48"),
    ],
)
def test_dflash_heads_of_another_target(tmp_path: Path, change, message: str) -> None:
    with pytest.raises(Refused, match=message):
        check_head(tmp_path, c.DFLASH | change, c.dflash_tensors(), method=Method.DFLASH)
