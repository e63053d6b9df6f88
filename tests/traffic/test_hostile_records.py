"""Records made to break the reader: each is left out for its reason, and what follows is read."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput, NotFound
from pairgate.traffic import lines
from pairgate.traffic.importing import Format, ReadOptions, file_name, read_logs, settle
from pairgate.traffic.jsontext import MAX_DEPTH
from pairgate.traffic.report import ImportReport, Tally
from pairgate.traffic.shapes import Mapping
from pairgate.traffic.texts import SliceTexts

GOOD = '{"id": "good", "prompt": "good"}'
WHOLE = (
    '{"id": "r1", "prompt": "a\\u00e9 b\\n \\"q\\"", "temperature": 0.5e-1, "x": true, '
    '"y": null, "z": -12, "w": [false, {"k": 1.5}]}'
)


def read(path: Path, **options: Any) -> tuple[tuple[Request, ...], ImportReport]:
    tally = Tally()
    found = list(read_logs([str(path)], ReadOptions(**options), tally))
    report = tally.report((), len(found))
    assert report.n_read == report.n_kept + sum(left.n for left in report.left_out)
    return settle(found), report


def read_text(
    tmp_path: Path, text: str, name: str = "log.jsonl", **options: Any
) -> tuple[list[str], list[tuple[str, str]]]:
    """(ids that were kept, (reason, first place) of each that was not)."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    requests, report = read(path, **options)
    return [r.id for r in requests], [(x.reason, x.examples[0].place) for x in report.left_out]


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_a_line_cut_anywhere_is_truncated(tmp_path: Path, end: int) -> None:
    _, left = read_text(tmp_path, WHOLE[:end])
    assert left == [("truncated JSON", "log.jsonl:1")]


@pytest.mark.parametrize(
    "line", ["abc", '{"a": 1}e', '{"a": "\\ux", "b": 1}', '{"a": tru, "b": 1}', '{"a": 0., "b": 1}']
)
def test_what_is_wrong_before_its_end_is_invalid(tmp_path: Path, line: str) -> None:
    assert read_text(tmp_path, line)[1] == [("invalid JSON", "log.jsonl:1")]


@pytest.mark.parametrize(
    "line",
    [
        r'{"body": "{\"prompt\": \"a \ud83d b\"}"}',
        r'{"body": "{\"prompt\": \"a \\ud83d b\"}"}',
        r'{"messages": "[{\"role\": \"user\", \"content\": \"\ud83d\"}]"}',
        r'{"body": {"messages": "[{\"role\": \"user\", \"content\": \"\\ud83d\"}]"}}',
        r'{"conversations": [{"from": "human", "value": "\ud83d"}, {"from": "gpt", "value": ""}]}',
    ],
)
def test_lone_surrogates_in_json_inside_json(tmp_path: Path, line: str) -> None:
    kept, left = read_text(tmp_path, f"{line}\n{GOOD}")
    assert (kept, left) == (["good"], [("lone surrogate", "log.jsonl:1")])


@pytest.mark.parametrize(
    "line",
    [
        '{"messages": [{"role": "user", "content": "a", "weight": 1e999}]}',
        '{"id": 1e999, "prompt": "a"}',
        '{"prompt": "a", "tools": [-1e400]}',
    ],
)
def test_numbers_beyond_any_float(tmp_path: Path, line: str) -> None:
    kept, left = read_text(tmp_path, f"{line}\n{GOOD}")
    assert (kept, left) == (["good"], [("NaN or infinity", "log.jsonl:1")])


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 900, 985, 100_000])
def test_depth_has_a_limit_of_its_own(tmp_path: Path, depth: int) -> None:
    """Whatever is read can be stored and read again, however deep the program itself stands."""
    nested = "[" * (depth - 1) + "]" * (depth - 1)
    for line in (
        f'{{"prompt": "\\ud83d\\ude00", "x": {nested}}}',
        f'{{"prompt": "a", "timestamp": {nested}}}',
    ):
        kept, left = read_text(tmp_path, f"{line}\n{GOOD}")
        if depth <= MAX_DEPTH:
            assert (kept, left) == (["log.jsonl:1", "good"], [])
        else:
            assert (kept, left) == (["good"], [("nested too deeply", "log.jsonl:1")])
        path = tmp_path / "log.jsonl"
        texts = SliceTexts(tmp_path)
        requests = read(path)[0]
        texts.write("sha256:0", requests)
        assert texts.read("sha256:0") == requests
    line = f'{{"messages": {json.dumps(nested)}}}'  # JSON text in JSON: no message, or too deep
    kept, left = read_text(tmp_path, f"{line}\n{GOOD}")
    assert (kept, len(left)) == (["good"], 1)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0", "value out of range"),
        ("-4", "value out of range"),
        ('"64"', "wrong type"),
        ("1000000000000", "absurd size"),
    ],
)
def test_max_tokens_beside_a_body_is_checked(tmp_path: Path, value: str, reason: str) -> None:
    open_body = f'{{"body": {{"prompt": "a"}}, "max_tokens": {value}}}'
    stated = f'{{"id": "s", "body": {{"prompt": "b", "max_tokens": 5}}, "max_tokens": {value}}}'
    assert read_text(tmp_path, f"{open_body}\n{stated}") == (["s"], [(reason, "log.jsonl:1")])


def test_no_prompt_reaches_the_report_by_its_type(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"prompt": [1, "SECRET"]}')
    assert "SECRET" not in str(read(path)[1])


def test_turns_of_an_unnamed_conversation_share_a_session(tmp_path: Path) -> None:
    turns = [
        {"from": who, "value": text}
        for who, text in (("human", "q1"), ("gpt", "a1"), ("human", "q2"), ("gpt", "a2"))
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps({"conversations": t}) for t in (turns, turns[2:])))
    assert [r.session for r in read(path)[0]] == ["log.jsonl:1", "log.jsonl:1", "log.jsonl:2"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f'[{GOOD}, {{"seed": {"1" * 5000}}}]', [("value out of range", "log.json:1[2]")]),
        (f"[{GOOD}]\n[{GOOD}]", [("invalid JSON", "log.json:2[2]")]),
        (f"[{GOOD}] and more", [("invalid JSON", "log.json:1[2]")]),
        (f"[{GOOD}]\r\n  ", []),
    ],
)
def test_arrays(tmp_path: Path, text: str, left: list[tuple[str, str]]) -> None:
    assert read_text(tmp_path, text, "log.json") == (["good"], left)


def test_json_that_is_no_array(tmp_path: Path) -> None:
    kept, left = read_text(tmp_path, GOOD, format=Format.JSON)
    assert (kept, left) == ([], [("invalid JSON", "log.jsonl:1")])
    assert read_text(tmp_path, "", format=Format.JSON) == ([], [])


def test_the_size_of_an_element_is_counted_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_RECORD_BYTES", 100)
    text = f'[{{"prompt": "{"é" * 60}"}}, {GOOD}]'
    assert read_text(tmp_path, text, "log.json") == (["good"], [("absurd size", "log.json:1[1]")])


HEAD = "INFO 05-01 12:00:00 [logger.py:39] Received request "


@pytest.mark.parametrize(
    ("prompt", "more", "tokens", "reason"),
    [
        (r"'\xZZ'", "", "None", "invalid JSON"),
        ("'a\0b'", "", "None", "invalid JSON"),
        (r"'a\udc00'", "", "None", "lone surrogate"),
        ("'a'", "", "[1, , 2]", "invalid JSON"),
        ("'a'", "", f"[{'9' * 5000}]", "invalid JSON"),
        ("'a'", ", min_p=1e999", "None", "NaN or infinity"),
        ("'a'", ", seed=1j", "None", "wrong type"),
        ("'a'", ", stop={1, 2}", "None", None),
        ("'a'", ", custom={[]: 1}", "None", None),
        ("'a'", ", custom={(1, 2): b'x'}", "None", None),
        ("'a'", ", logit_bias={5: 1.0, 'b': 2}", "None", None),
    ],
)
def test_vllm_values(
    tmp_path: Path, prompt: str, more: str, tokens: str, reason: str | None
) -> None:
    params = f"SamplingParams(n=1, max_tokens=16{more}), prompt_token_ids: {tokens}, "
    line = f"{HEAD}bad: prompt: {prompt}, params: {params}lora_request: None."
    good = f"{HEAD}good: prompt: 'good', params: SamplingParams(max_tokens=1), lora_request: None."
    kept, left = read_text(tmp_path, f"{line}\n{good}", "server.log")
    if reason is None:
        assert (kept, left) == (["bad", "good"], [])
    else:
        assert (kept, left) == (["good"], [(reason, "server.log:1")])


@pytest.mark.parametrize("first", ["[2025-05-01 12:00:00] started", "[rank0]: started"])
def test_a_server_log_may_begin_with_a_bracket(tmp_path: Path, first: str) -> None:
    line = f"{HEAD}c: prompt: 'a', params: SamplingParams(max_tokens=1), lora_request: None."
    assert read_text(tmp_path, f"{first}\n{line}", "server.log") == (["c"], [])


def test_a_prompt_that_quotes_a_server_log_makes_none(tmp_path: Path) -> None:
    text = f'a torn line\n{{"id": "q", "prompt": "{HEAD}5: hello"}}\n{GOOD}'
    assert read_text(tmp_path, text)[0] == ["q", "good"]
    assert read_text(tmp_path, f"[\n{GOOD[:-1]}, \n{GOOD[1:]}]", "log.json")[0] == ["good"]


def test_parquet_values_that_python_lacks(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    broken = pa.array([b"\xff\xfe", b"ok", b"later"]).buffers()
    table = pa.table(
        {
            "prompt": pa.Array.from_buffers(pa.string(), 3, broken),
            "time": pa.array([1, 2, 2**61], pa.timestamp("us")),
            "temperature": pa.array([Decimal("0.25")] * 3),
        }
    )
    pq.write_table(table, path)
    (request,), report = read(path)
    assert (request.text, request.sampling.temperature) == ("ok", 0.25)
    assert [(x.reason, x.examples[0].place) for x in report.left_out] == [
        ("not UTF-8", "log.parquet:1"),
        ("value out of range", "log.parquet:3"),
    ]


def test_a_damaged_parquet_file_is_an_error_or_read(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"prompt": [f"p{i}" for i in range(50)]}), path)
    data = path.read_bytes()
    n_refused = 0
    for at in range(4, len(data), 5):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            read(path)
        except InvalidInput:
            n_refused += 1
    assert n_refused > 10


@pytest.mark.parametrize(("name", "text"), [("empty.jsonl", ""), ("folder.py", "x = 1")])
def test_folders_that_datasets_trips_over(tmp_path: Path, name: str, text: str) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text(text)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read(folder)


def test_names_of_files_and_domains(tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/\xff.jsonl")
    Path(name).write_text('{"prompt": "a"}')
    assert [r.id for r in read(Path(name))[0]] == ["\\udcff.jsonl:1"]
    assert file_name(name) == "\\udcff.jsonl"
    with pytest.raises(NotFound, match="there is no file"):
        read(tmp_path / ("x" * 300))
    with pytest.raises(InvalidInput, match="not UTF-8"):
        ReadOptions(default_domain="\udcff")


def test_a_mapped_list_with_odd_neighbours(tmp_path: Path) -> None:
    line = '{"id": "m", "prompt": "a", "tags": ["sql", "\\ud800"]}'
    mapping = Mapping.parse(("domain=tags.0",))
    assert read_text(tmp_path, line, mapping=mapping) == (["m"], [])
