"""Multi-token-prediction layers: they lie in the target's own files, and are easily lost.

Quantisation tools leave them out or keep them unquantised without saying so, fine-tuning leaves
them as they were, and a broken export fills them with NaN: an engine serves all of that, with
nothing accepted. Names: DeepSeek-V3 and GLM continue the numbers of the layers
(`model.layers.61.eh_proj`), Qwen3-Next writes `mtp.layers.0`, MiMo `model.mtp_layers.0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairgate.compat.architecture import text_config
from pairgate.compat.weights import Header, Tensor, read_tensor_bytes
from pairgate.errors import Refused

if TYPE_CHECKING:
    from pairgate.ports import ByteRanges

if TYPE_CHECKING:
    from pairgate.ports import ByteRanges

_ANNOUNCED = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")
_OWN_NAME = re.compile(r"(?:^|\.)mtp[a-z_]*\.(?:layers\.)?(?:(\d+)\.)?")
_LAYER = re.compile(r"(?:^|\.)(?:model|language_model)\.layers\.(\d+)\.")
_IGNORE_LISTS = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude")
_SIMPLE_PATTERN = re.compile(r"\^?(?:[\w:-]|\\\.|\.\*|\.)*\$?\Z")
_PLAIN = ("BF16", "F16", "F32")
_CHUNK_BYTES = 8 << 20
# dtype -> (unsigned integer of its size, mask, what the masked bits are in NaN and infinities)
_NOT_FINITE: dict[str, tuple[str, int, int]] = {
    "BF16": ("<u2", 0x7F80, 0x7F80),
    "F16": ("<u2", 0x7C00, 0x7C00),
    "F32": ("<u4", 0x7F800000, 0x7F800000),
    "F64": ("<u8", 0x7FF0 << 48, 0x7FF0 << 48),
    "F8_E5M2": ("u1", 0x7C, 0x7C),
    "F8_E4M3": ("u1", 0x7F, 0x7F),  # no infinities
    "F8_E5M2FNUZ": ("u1", 0xFF, 0x80),
    "F8_E4M3FNUZ": ("u1", 0xFF, 0x80),
    "F8_E8M0": ("u1", 0xFF, 0xFF),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A tensor and the file that holds it."""

    tensor: Tensor
    file: Path | ByteRanges

    def chunks(self) -> Iterator[bytes]:
        """The stored bytes, a few MiB at a time."""
        for begin in range(self.tensor.begin, self.tensor.end, _CHUNK_BYTES):
            end = min(begin + _CHUNK_BYTES, self.tensor.end)
            yield read_tensor_bytes(self.file, replace(self.tensor, begin=begin, end=end))


def mtp_tensors(
    config: Mapping[str, Any],
    headers: Mapping[str, Header],
    files: Mapping[str, Path | ByteRanges],
) -> dict[str, Located]:
    """The tensors of the prediction layers by name."""
    depth = text_config(config).get("num_hidden_layers", 0)
    return {
        name: Located(tensor=tensor, file=files[file])
        for file, header in headers.items()
        for name, tensor in header.items()
        if _layer(name, depth) is not None
    }


def check_mtp(config: Mapping[str, Any], tensors: Mapping[str, Located]) -> tuple[str, ...]:
    """Raises `Refused` unless the layers that the config announces are there and finite; returns
    warnings. Reads every byte of them."""
    text = text_config(config)
    n_announced = next((text[n] for n in _ANNOUNCED if isinstance(text.get(n), int)), 0)
    depth = text.get("num_hidden_layers", 0)
    n_found = len({_layer(name, depth) for name in tensors})
    if n_found == 0 or n_found < n_announced:
        raise Refused(
            f"the target announces {n_announced} MTP layers and its files hold {n_found or 'none'}"
            f"{_why_dropped(config, depth)}",
            hint="use a checkpoint that kept its MTP layers, or another --method",
        )
    broken = {name: n for name, located in tensors.items() if (n := n_not_finite(located))}
    if broken:
        first = min(broken)
        raise Refused(
            f"{len(broken)} tensors of the MTP layers hold NaN or infinite values, first {first} "
            f"({broken[first]} of {tensors[first].tensor.n_elements})",
            hint="export the MTP layers again",
        )
    return _unquantised(config, tensors)


def n_not_finite(located: Located) -> int:
    """How many values are NaN or infinite; 0 for dtypes that have neither."""
    import numpy as np

    if located.tensor.dtype not in _NOT_FINITE:
        return 0
    kind, mask, value = _NOT_FINITE[located.tensor.dtype]
    dtype = np.dtype(kind)
    return sum(
        int(np.count_nonzero((np.frombuffer(data, dtype) & dtype.type(mask)) == value))
        for data in located.chunks()
    )


def same_bytes(one: Mapping[str, Located], other: Mapping[str, Located]) -> bool:
    """Whether both hold the same tensors; stops at the first difference."""
    if one.keys() != other.keys() or not one:
        return False
    shapes = [{n: (t.tensor.dtype, t.tensor.shape) for n, t in x.items()} for x in (one, other)]
    return shapes[0] == shapes[1] and all(
        a == b
        for name in sorted(one)
        for a, b in zip(one[name].chunks(), other[name].chunks(), strict=True)
    )


def _layer(name: str, depth: int) -> int | None:
    """Which prediction layer a tensor belongs to; None for the model's own layers."""
    own = _OWN_NAME.search(name)
    if own:
        return int(own[1] or 0)
    numbered = _LAYER.search(name)
    if numbered and int(numbered[1]) >= depth > 0:
        return int(numbered[1]) - depth
    return None


def _ignored(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the quantisation left alone, by its own patterns."""
    quantization = _quantization(config)
    found = (quantization.get(name) for name in _IGNORE_LISTS)
    return tuple(p for patterns in found if isinstance(patterns, list) for p in map(str, patterns))


def _quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    return found if isinstance(found, dict) else {}


def _why_dropped(config: Mapping[str, Any], depth: int) -> str:
    samples = ("mtp.layers.0.mlp", "model.mtp_layers.0.mlp", f"model.layers.{depth}.mlp")
    named = [p for p in _ignored(config) if any(_matches(p, s) for s in samples)]
    if named:
        return f"; the ignore list of its quantisation names them ({named[0]}), so it dropped them"
    return "; it was quantised, which may have dropped them" if _quantization(config) else ""


def _unquantised(config: Mapping[str, Any], tensors: Mapping[str, Located]) -> tuple[str, ...]:
    """Layers stored in plain numbers that an engine would read as quantised ones."""
    quantization = _quantization(config)
    if not quantization or not _quantises_every_linear(quantization):
        return ()
    patterns = _ignored(config)
    modules = {name.rpartition(".")[0] for name in tensors}
    plain = [
        module
        for module in sorted(modules)
        if module.endswith("_proj")
        and not module.endswith("eh_proj")  # the engines build this one unquantised
        and _is_plain(module, tensors)
        and not any(_matches(p, module) for p in patterns)
    ]
    if not plain:
        return ()
    return (
        f"{len(plain)} linear layers of the MTP head are stored unquantised, but the ignore list "
        f"of the quantisation does not name them, first {plain[0]}: an engine may misread them",
    )


def _quantises_every_linear(quantization: Mapping[str, Any]) -> bool:
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict):
        return True
    targets = [g.get("targets") for g in groups.values() if isinstance(g, dict)]
    return any("Linear" in t for t in targets if isinstance(t, list))


def _is_plain(module: str, tensors: Mapping[str, Located]) -> bool:
    weight = tensors.get(f"{module}.weight")
    return weight is not None and weight.tensor.dtype in _PLAIN


def _matches(pattern: str, module: str) -> bool:
    """A module's name, a glob, or a simple `re:` pattern. Other expressions match nothing: a
    stranger's regular expression is never run."""
    if not pattern.startswith("re:"):
        return fnmatchcase(module, pattern) or f".{pattern}." in f".{module}."
    expression = pattern.removeprefix("re:")
    if not _SIMPLE_PATTERN.match(expression):
        return False
    glob = expression.lstrip("^").replace(r"\.", "\0").replace(".*", "*").replace(".", "?")
    ending = "" if glob.endswith("$") else "*"  # `re.match` looks at the beginning only
    return fnmatchcase(module, glob.removesuffix("$").replace("\0", ".") + ending)
