"""Safetensors headers: what tensors a file holds, checked without reading the tensors.

Format: https://github.com/huggingface/safetensors (8 bytes little-endian header length, a JSON
header, then the data without holes).
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairgate.domain.documents import reject_duplicate_keys, reject_nan
from pairgate.errors import IntegrityError, InvalidInput, Refused
from pairgate.localfiles import open_regular

if TYPE_CHECKING:
    from pairgate.ports import ByteRanges

# Parsing takes thirty times the size in memory; this much names 300,000 tensors. (The reference
# implementation takes 100 MB.)
MAX_HEADER_BYTES = 32 << 20
_MAX_DIMENSIONS = 64  # those of torch
INDEX_NAME = "model.safetensors.index.json"

# name in the header -> (bits per element, name in torch)
_DTYPES: dict[str, tuple[int, str]] = {
    "BOOL": (8, "bool"),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F4": (4, "float4_e2m1fn_x2"),
    "F6_E2M3": (6, "float6_e2m3fn"),
    "F6_E3M2": (6, "float6_e3m2fn"),
    "I16": (16, "int16"),
    "U16": (16, "uint16"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "int32"),
    "U32": (32, "uint32"),
    "F32": (32, "float32"),
    "C64": (64, "complex64"),
    "F64": (64, "float64"),
    "I64": (64, "int64"),
    "U64": (64, "uint64"),
}
# Buffers such as positions, vocabulary maps and masks; weights are never stored like this.
_BUFFER_DTYPES = ("BOOL", "I64", "U64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One entry of a header; `begin` and `end` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


Header = Mapping[str, Tensor]


def read_header(file: Path | ByteRanges, name: str) -> Header:
    """The tensors of a safetensors file by name.

    Raises `InvalidInput` naming the file and what is wrong: a length beyond the file, a header
    that is not JSON, offsets that overlap, leave holes or do not match dtype and shape.
    """
    source = byte_ranges(file)
    size = source.size
    prefix = source.read(0, 8)
    if len(prefix) < 8:
        raise InvalidInput(f"{name} is not a safetensors file: it has {len(prefix)} bytes")
    (n_header,) = struct.unpack("<Q", prefix)
    if n_header > min(MAX_HEADER_BYTES, size - 8):
        raise InvalidInput(
            f"{name} is not a safetensors file: it announces a header of {n_header} bytes in "
            f"a file of {size} bytes",
            hint="the download may be incomplete, or this is a Git LFS pointer",
        )
    raw = source.read(8, n_header)
    try:
        document = json.loads(
            raw, object_pairs_hook=reject_duplicate_keys, parse_constant=reject_nan
        )
        _check_metadata(document.get("__metadata__", {}))
        tensors = [
            _tensor(key, value, 8 + n_header)
            for key, value in document.items()
            if key != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{name} has a broken safetensors header: {error}") from None
    _check_offsets(tensors, 8 + n_header, size, name)
    return {tensor.name: tensor for tensor in tensors}


def _check_metadata(value: Mapping[str, Any]) -> None:
    if not all(isinstance(text, str) for text in value.values()):
        raise ValueError("its metadata is not text")


def _tensor(name: str, value: Mapping[str, Any], data_start: int) -> Tensor:
    shape = tuple(value["shape"])
    if len(shape) > _MAX_DIMENSIONS:  # their product would take for ever
        raise ValueError(f"{name!r} has {len(shape)} dimensions")
    begin, end = value["data_offsets"]
    numbers = (*shape, begin, end)
    if not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise ValueError(f"{name!r} has shape {shape} and offsets {begin}, {end}")
    dtype = value["dtype"]
    if dtype not in _DTYPES:
        raise ValueError(f"{name!r} has the unknown dtype {dtype!r}")
    bits = math.prod(shape) * _DTYPES[dtype][0]
    if (end - begin) * 8 != bits:
        raise ValueError(f"{name!r} spans {end - begin} bytes, but {dtype} {shape} has {bits} bits")
    return Tensor(
        name=name, dtype=dtype, shape=shape, begin=data_start + begin, end=data_start + end
    )


def _check_offsets(tensors: Iterable[Tensor], data_start: int, size: int, name: str) -> None:
    at = data_start
    for tensor in sorted(tensors, key=lambda t: (t.begin, t.end)):
        if tensor.begin != at:
            raise InvalidInput(
                f"{name} has a broken safetensors header: {tensor.name!r} starts at byte "
                f"{tensor.begin}, the data before it ends at {at}"
            )
        at = tensor.end
    if at != size:
        raise InvalidInput(
            f"{name} holds {size} bytes, but its header describes {at}",
            hint="the download may be incomplete",
        )


def check_index(index: Mapping[str, Any], shards: Mapping[str, Header], role: str) -> None:
    """Raises `InvalidInput` unless the index and the shards name the same tensors."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidInput(f"{INDEX_NAME} of the {role} has no weight_map")
    for tensor, shard in weight_map.items():
        if shard not in shards or tensor not in shards[shard]:
            raise InvalidInput(
                f"{INDEX_NAME} of the {role} names {tensor!r} in {shard!r}, which does not hold it"
            )
    extra = sorted({name for header in shards.values() for name in header} - weight_map.keys())
    if extra:
        raise InvalidInput(
            f"the {role}'s shards hold {len(extra)} tensors that {INDEX_NAME} does not name, "
            f"first {extra[0]!r}"
        )


def n_parameters(headers: Iterable[Header]) -> int:
    """Elements of all weights as stored: tied weights once, packed integers as they are."""
    return sum(
        tensor.n_elements
        for header in headers
        for tensor in header.values()
        if tensor.dtype not in _BUFFER_DTYPES
    )


def main_dtype(headers: Iterable[Header]) -> str:
    """The torch name of the dtype that most weight bytes have."""
    n_bytes: Counter[str] = Counter()
    for header in headers:
        for tensor in header.values():
            if tensor.dtype not in _BUFFER_DTYPES:
                n_bytes[tensor.dtype] += tensor.end - tensor.begin
    if not n_bytes:
        return "unknown"
    return _DTYPES[n_bytes.most_common(1)[0][0]][1]


def read_tensor_bytes(file: Path | ByteRanges, tensor: Tensor) -> bytes:
    """The stored bytes of one small tensor (little-endian).

    Raises `IntegrityError` when the file became shorter since its header was read.
    """
    data = byte_ranges(file).read(tensor.begin, tensor.end - tensor.begin)
    if len(data) != tensor.end - tensor.begin:
        raise IntegrityError(
            f"the file of {tensor.name} changed while it was read",
            hint="register again once nothing writes to it any more",
        )
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalFile:
    path: Path
    size: int

    def read(self, offset: int, n_bytes: int) -> bytes:
        with open_regular(self.path, follow=True) as file:
            file.seek(offset)
            return file.read(n_bytes)


def byte_ranges(file: Path | ByteRanges) -> ByteRanges:
    """The file as something that can be read in ranges."""
    if isinstance(file, Path):
        return _LocalFile(path=file, size=file.stat().st_size)
    return file


def pickled_bytes(path: Path | ByteRanges, name: str) -> int:
    """Bytes of tensor data in a torch zip archive, from its directory: nothing is unpickled.

    Raises `Refused` for the format before torch 1.6, which only unpickling could read.
    """
    import zipfile

    if not isinstance(path, Path):
        raise Refused(
            f"{name} is pickled, and only safetensors can stay where they are",
            hint="convert it to safetensors, or copy it with --copy",
        )
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(i.file_size for i in archive.infolist() if "/data/" in i.filename)
    except zipfile.BadZipFile:
        raise Refused(
            f"{name} is no torch zip archive, so it cannot be inspected without running it",
            hint="convert it to safetensors",
        ) from None
