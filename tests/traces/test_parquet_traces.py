"""Blocks come back exactly, and a damaged file is never read as data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, TraceBatch
from pairgate.errors import IntegrityError
from pairgate.store.traces import ParquetTraces, block_digest

TEXT = st.text(st.characters(exclude_categories=()), max_size=6)


def assert_same(a: TraceBatch, b: TraceBatch) -> None:
    for field in dataclasses.fields(TraceBatch):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        else:
            assert left == right and type(left) is type(right), field.name


def batch(rows: list[RequestTrace], block: int = 0) -> TraceBatch:
    return TraceBatch.from_rows(
        rows,
        arm=Arm.SPEC,
        phase=Phase.ACCEPTANCE,
        concurrency=4,
        block=block,
        wall_s=0.1 + 0.2,
        definition="pairgate.rounds.v1",
    )


@st.composite
def traces(draw: st.DrawFn, index: int) -> RequestTrace:
    n = draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_tokens, n_overlap = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    return RequestTrace(
        index=index,
        request_id=draw(TEXT),
        domain=draw(TEXT),
        session=draw(TEXT),
        error=draw(TEXT),
        temperature=draw(st.floats(allow_nan=True)),
        prompt_tokens=draw(st.integers(0, 2**31 - 1)),
        completion_tokens=n_tokens,
        ttft_ms=draw(st.floats(0, 1e9)),
        latency_ms=draw(st.floats(0, 1e9)),
        finish=draw(st.sampled_from(Finish)),
        fell_back_at=draw(st.integers(-1, 99)),
        proposed=rng.integers(0, 9, n).astype(np.int16),
        accepted=rng.integers(0, 9, n).astype(np.int16),
        emitted=rng.integers(0, 9, n).astype(np.int16),
        round_state=rng.integers(0, 4, n).astype(np.uint8),
        round_ms=rng.random(n, np.float32),
        tokens=rng.integers(0, 2**31 - 1, n_tokens).astype(np.int32),
        overlap=rng.random(n_overlap, np.float32),
    )


@st.composite
def batches(draw: st.DrawFn) -> TraceBatch:
    return batch([draw(traces(i)) for i in range(draw(st.integers(0, 4)))])


def test_a_message_with_a_nul_comes_back_whole(tmp_path: Path) -> None:
    broken = dataclasses.replace(row(0), finish=Finish.ERROR, error="\x000 and a\x00b")
    ParquetTraces(tmp_path).save("k", batch([broken]))
    loaded = ParquetTraces(tmp_path).load("k")
    assert loaded is not None
    assert loaded.error.tolist() == [broken.error]


@given(batches())
@settings(max_examples=60, deadline=None)
def test_a_block_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, b: TraceBatch
) -> None:
    sink = ParquetTraces(tmp_path_factory.mktemp("traces"))
    sink.save("acceptance/0", b)
    loaded = sink.load("acceptance/0")
    assert loaded is not None
    assert_same(loaded, b)
    assert block_digest(loaded) == block_digest(b)


def row(index: int, tokens: int = 3) -> RequestTrace:
    return RequestTrace(
        index=index,
        request_id=f"r{index}",
        domain="sql",
        temperature=0.7,
        prompt_tokens=5,
        completion_tokens=tokens,
        ttft_ms=1.5,
        latency_ms=9.0,
        finish=Finish.EOS,
        tokens=np.arange(tokens, dtype=np.int32),
    )


def test_blocks_of_one_phase_join_after_loading(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path / "not-there-yet")
    first, second = batch([row(0), row(1, 0)]), batch([row(2, 7)], block=1)
    sink.save("b", second)
    sink.save("a", first)
    assert sink.keys() == ("a", "b")
    assert_same(TraceBatch.concat(sink.load_all()), TraceBatch.concat([first, second]))


def test_a_second_save_replaces_the_block(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path)
    sink.save("a", batch([row(0)]))
    sink.save("a", batch([row(0), row(1)]))
    loaded = sink.load("a")
    assert loaded is not None
    assert len(loaded) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_absent_is_none_and_an_absent_folder_is_empty(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path / "none")
    assert sink.load("a") is None
    assert sink.keys() == ()
    assert sink.load_all() == ()
    assert sink.files() == ()


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    sink = ParquetTraces(tmp_path)
    sink.save("a", batch([row(i) for i in range(50)]))
    path = tmp_path / "a.parquet"
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        del data[len(data) // 2 :]
    elif damage == "flip":
        data[60] ^= 0xFF
    elif damage == "empty":
        data.clear()
    else:
        data[:] = b"not a parquet file at all"
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="damaged"):
        sink.load_all()
    assert sink.load("a") is None
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet.corrupt"]
    assert sink.files() == ()


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path)
    b = batch([row(i) for i in range(3)])
    sink.save("a", b)
    path = tmp_path / "a.parquet"
    data = path.read_bytes()
    noticed = 0
    for at in range(0, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        loaded = sink.load("a")
        if loaded is None:
            noticed += 1
        else:
            assert_same(loaded, b)
    assert noticed > 30


def test_a_block_under_another_key_is_refused(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path)
    sink.save("a", batch([row(0)]))
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    assert sink.load("b") is None


def test_changed_content_with_valid_parquet_is_refused(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path)
    sink.save("a", batch([row(0)]))
    path = tmp_path / "a.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("ttft_ms")
    changed = table.set_column(at, table.schema.field(at), [[0.5]])
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    assert sink.load("a") is None


def test_files_lists_names_with_digests_and_skips_leftovers(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path)
    sink.save("speed/target/8/0", batch([row(0)]))
    (tmp_path / ".speed.parquet.x.tmp").write_bytes(b"killed while writing")
    ((name, digest),) = sink.files()
    assert name == "speed%2Ftarget%2F8%2F0.parquet"
    assert digest.startswith("sha256:")
    assert sink.keys() == ("speed/target/8/0",)


def test_a_block_of_a_release_without_the_cache_column_is_read(tmp_path: Path) -> None:
    block = batch(
        [
            RequestTrace(
                index=0,
                request_id="r",
                domain="d",
                temperature=0.0,
                prompt_tokens=3,
                completion_tokens=0,
                ttft_ms=1.0,
                latency_ms=1.0,
                finish=Finish.ERROR,
            )
        ]
    )
    sink = ParquetTraces(tmp_path)
    sink.save("k", block)
    path = next(tmp_path.glob("*.parquet"))
    table = pq.read_table(path)
    meta = json.loads(table.schema.metadata[b"pairgate.block"])
    meta["digest"] = block_digest(block, without=frozenset({"cached_tokens"}))
    older = table.drop_columns(["cached_tokens"]).replace_schema_metadata(
        {b"pairgate.block": json.dumps(meta).encode()}
    )
    pq.write_table(older, path, write_page_checksum=True)

    found = sink.load("k")
    assert found is not None
    assert found.cached_tokens.tolist() == [-1]
