"""Safetensors headers: broken and hostile files are refused before anything reads a tensor."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pairgate.compat.weights import check_index, main_dtype, n_parameters, read_header
from pairgate.errors import InvalidInput


def header_file(folder: Path, header: object, n_data: int, *, announced: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "m.safetensors"
    n_header = len(raw) if announced is None else announced
    path.write_bytes(struct.pack("<Q", n_header) + raw + b"\0" * n_data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_real_file_is_read_as_the_library_wrote_it(tmp_path: Path) -> None:
    tensors = {
        "a": np.zeros((3, 4), np.float16),
        "b": np.zeros(5, np.float32),
        "ids": np.zeros(7, np.int64),
    }
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    header = read_header(tmp_path / "m.safetensors", "m")
    assert {name: t.shape for name, t in header.items()} == {"a": (3, 4), "b": (5,), "ids": (7,)}
    assert n_parameters([header]) == 17  # id maps and masks are no parameters
    assert main_dtype([header]) == "float16"


@pytest.mark.parametrize(
    ("header", "n_data", "announced", "message"),
    [
        ({}, 0, 2**63, "announces a header of 9223372036854775808 bytes"),
        ({}, 0, 1 << 40, "Git LFS"),
        (b"not json", 0, None, "broken"),
        (b"[" * 50_000, 0, None, "broken"),
        (b"[1]", 0, None, "broken"),
        (b'{"a":1,"a":2}', 0, None, "stands twice"),
        ({"a": entry(0, 8, [2])}, 4, None, "describes"),
        ({"a": entry(0, 8, [2])}, 12, None, "describes"),
        ({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, 12, None, "'b' starts at byte"),
        ({"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, 20, None, "'b' starts at byte"),
        ({"a": entry(0, 8, [3])}, 8, None, "spans 8 bytes"),
        ({"a": entry(8, 0, [2])}, 8, None, "spans -8 bytes"),
        ({"a": entry(0, 8, [-2])}, 8, None, "shape"),
        ({"a": entry(0, 8, [True, 2])}, 8, None, "shape"),
        ({"a": entry(0, 8, [2**70])}, 8, None, "shape"),
        ({"a": entry(0, 8, [2], "F99")}, 8, None, "unknown dtype"),
        ({"a": 3}, 0, None, "broken"),
    ],
)
def test_broken_headers(tmp_path, header, n_data, announced, message) -> None:
    path = header_file(tmp_path, header, n_data, announced=announced)
    with pytest.raises(InvalidInput) as caught:
        read_header(path, "m.safetensors")
    assert message in str(caught.value)
    assert "m.safetensors" in caught.value.message


@pytest.mark.parametrize("data", [b"", b"\1\0\0", b"version https://git-lfs.github.com/spec/v1\n"])
def test_files_of_another_kind(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match="not a safetensors file"):
        read_header(path, "m.safetensors")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(data)
    try:
        header = read_header(path, "any")
    except InvalidInput:
        return
    assert header == {}  # random bytes can only announce an empty header


def test_the_index_and_the_shards_must_agree(tmp_path: Path) -> None:
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "1.safetensors")
    shards = {"1.safetensors": read_header(tmp_path / "1.safetensors", "1")}
    check_index({"weight_map": {"a": "1.safetensors"}}, shards, "target")
    for weight_map, message in [
        ({"a": "1.safetensors", "b": "1.safetensors"}, "'b'"),
        ({"a": "2.safetensors"}, "does not hold"),
        ({}, "no weight_map"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            check_index({"weight_map": weight_map}, shards, "target")
    with pytest.raises(InvalidInput, match="does not name, first 'a'"):
        save_file({"c": np.zeros(1, np.float32)}, tmp_path / "3.safetensors")
        shards["3.safetensors"] = read_header(tmp_path / "3.safetensors", "3")
        check_index({"weight_map": {"c": "3.safetensors"}}, shards, "target")
