"""Trace blocks on disk: one Parquet file per block, whole and verified, or not there at all.

Per-request columns are plain columns, ragged ones are list columns, so any Parquet reader can
look into them. The block's metadata and a digest of its content stand in the schema's metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pairgate.domain.canonical import canonical_json
from pairgate.domain.trace import (
    REQUEST_COLUMNS,
    ROUND_COLUMNS,
    TOKEN_COLUMNS,
    Arm,
    Phase,
    TraceBatch,
)
from pairgate.errors import IntegrityError, PairgateError
from pairgate.store.streams import naming

_META = b"pairgate.block"
_SUFFIX = ".parquet"
_OFFSETS = dict.fromkeys(ROUND_COLUMNS, "round_offsets") | {
    name: f"{name}_offsets" for name in TOKEN_COLUMNS
}
# Columns that blocks of earlier releases lack, with what stands for "not recorded".
_LATER = {"cached_tokens": -1}
_STRINGS = tuple(name for name, dtype in REQUEST_COLUMNS.items() if dtype is np.str_)


class ParquetTraces:
    """A `TraceSink` over one folder; the folder is made by the first `save`."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def save(self, key: str, batch: TraceBatch) -> None:
        """Write the block so that a kill at any moment leaves the old state or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        # One process works in a folder at a time: what a killed one left is written over.
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with naming(path), temporary.open("wb") as file:
                _write(file, key, batch)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _fsync_folder(self.folder)

    def load(self, key: str) -> TraceBatch | None:
        """The block, or None when it is absent or does not match its own digest.

        A damaged file is renamed to `….corrupt`: kept for inspection, never read again.
        """
        path = self._path(key)
        try:
            return _read(path.read_bytes(), key)
        except FileNotFoundError:
            return None
        except _Damaged:
            path.replace(path.with_name(path.name + ".corrupt"))
            return None

    def keys(self) -> tuple[str, ...]:
        """Keys of the stored blocks, sorted."""
        return tuple(unquote(p.name[: -len(_SUFFIX)]) for p in self._paths())

    def load_all(self) -> tuple[TraceBatch, ...]:
        """Every stored block in the order of `keys()`.

        Raises `IntegrityError` when one is damaged: a verdict over what happens to be left would
        be another verdict.
        """
        return tuple(self._load_or_raise(key) for key in self.keys())

    def files(self) -> tuple[tuple[str, str], ...]:
        """(file name, sha256 digest of the file) of every stored block, sorted by name."""
        return tuple((path.name, _file_digest(path)) for path in self._paths())

    def _load_or_raise(self, key: str) -> TraceBatch:
        path = self._path(key)
        try:
            return _read(path.read_bytes(), key)
        except _Damaged as damage:
            raise IntegrityError(
                f"trace block {path} is damaged: {damage}",
                hint="restore the file, or delete it and evaluate again: only it is replayed",
            ) from damage

    def _path(self, key: str) -> Path:
        # Reversible, flat and safe: a slash in a key never becomes a folder.
        return self.folder / (quote(key, safe="=+, ") + _SUFFIX)

    def _paths(self) -> Iterator[Path]:
        names = self.folder.glob(f"*{_SUFFIX}") if self.folder.is_dir() else ()
        return iter(sorted(path for path in names if not path.name.startswith(".")))


def block_digest(batch: TraceBatch, *, without: frozenset[str] = frozenset()) -> str:
    """sha256 digest of a block's content: metadata, and every column's name, dtype and bytes;
    `without` the columns that the block's file lacks."""
    sha = hashlib.sha256(canonical_json(_scalars(batch)))
    for name in (*REQUEST_COLUMNS, *_OFFSETS, *sorted(set(_OFFSETS.values()))):
        if name in without:
            continue
        values = np.ascontiguousarray(getattr(batch, name))
        sha.update(f"\n{name} {values.dtype.str} {len(values)}\n".encode())
        sha.update(values.view(np.uint8).data)
    return f"sha256:{sha.hexdigest()}"


class _Damaged(Exception):
    """The bytes are not the block that they claim to be."""


def _scalars(batch: TraceBatch) -> dict[str, str | int]:
    return {
        "arm": batch.arm.value,
        "phase": batch.phase.value,
        "concurrency": batch.concurrency,
        "block": batch.block,
        "wall_s": float(batch.wall_s).hex(),
        "definition": batch.definition,
    }


def _write(file: io.BufferedWriter, key: str, batch: TraceBatch) -> None:
    meta = _scalars(batch) | {"key": key, "digest": block_digest(batch)}
    meta |= {f"dtype.{name}": getattr(batch, name).dtype.str for name in _STRINGS}
    columns = {name: _flat(getattr(batch, name)) for name in REQUEST_COLUMNS}
    for name, offsets in _OFFSETS.items():
        columns[name] = pa.LargeListArray.from_arrays(
            pa.array(getattr(batch, offsets)), pa.array(np.ascontiguousarray(getattr(batch, name)))
        )
    table = pa.table(columns).replace_schema_metadata({_META: canonical_json(meta)})
    pq.write_table(
        table, file, compression="zstd", write_statistics=False, write_page_checksum=True
    )


def _flat(values: NDArray[Any]) -> pa.Array:
    if values.dtype.kind != "U":
        return pa.array(np.ascontiguousarray(values))
    texts = values.tolist()  # from a NumPy array, pyarrow would cut a text at its first NUL
    try:
        return pa.array(texts, pa.string())
    except (pa.ArrowInvalid, UnicodeError):
        # Text with a lone surrogate has no UTF-8; such a column is stored as bytes.
        return pa.array([text.encode("utf-8", "surrogatepass") for text in texts], pa.binary())


def _read(data: bytes, key: str) -> TraceBatch:
    try:
        # Page checksums first: decoding flipped bits can ask for absurd amounts of memory.
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        table = file.read()
        meta = json.loads(table.schema.metadata[_META])
        batch = _batch(table, meta)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, PairgateError) as error:
        raise _Damaged(
            str(error).splitlines()[0] if str(error) else type(error).__name__
        ) from error
    if meta["key"] != key:
        raise _Damaged(f"it holds the block {meta['key']!r}")
    absent = frozenset(_LATER) - set(table.column_names)
    if meta["digest"] != block_digest(batch, without=absent):
        raise _Damaged("its content differs from its digest")
    return batch


def _batch(table: pa.Table, meta: dict[str, Any]) -> TraceBatch:
    columns: dict[str, Any] = {}
    for name, dtype in REQUEST_COLUMNS.items():
        if name in _LATER and name not in table.column_names:
            columns[name] = np.full(table.num_rows, _LATER[name], dtype)
            continue
        values = table[name].to_numpy()
        if name in _STRINGS:
            if table[name].type == pa.binary():
                values = [value.decode("utf-8", "surrogatepass") for value in values]
            values = np.asarray(values, dtype=meta[f"dtype.{name}"])
        columns[name] = np.array(values)
    for name, offsets in _OFFSETS.items():
        lists = table[name].combine_chunks()
        lists = lists if isinstance(lists, pa.Array) else pa.concat_arrays(lists.chunks)
        ends = lists.offsets.to_numpy() if len(lists) else np.zeros(1, np.int64)
        # Copies, so that a block is writable like one that was just replayed.
        columns[name] = np.array(lists.flatten().to_numpy())
        columns[offsets] = ends - ends[0]
    return TraceBatch(
        arm=Arm(meta["arm"]),
        phase=Phase(meta["phase"]),
        concurrency=meta["concurrency"],
        block=meta["block"],
        wall_s=float.fromhex(meta["wall_s"]),
        definition=meta["definition"],
        **columns,
    )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
