"""Every shape of log that is promised, read into the same requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput
from pairgate.traffic import lines
from pairgate.traffic.importing import Format, ReadOptions, read_logs, settle
from pairgate.traffic.report import ImportReport, Tally
from pairgate.traffic.shapes import Mapping

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "2 + 2 ="}],
    "temperature": 0.25,
    "max_tokens": 12,
}
TEXT = json.dumps(BODY, indent=None)


def read(source: Path | str, **options: Any) -> tuple[tuple[Request, ...], ImportReport]:
    tally = Tally()
    found = list(read_logs([str(source)], ReadOptions(**options), tally))
    return settle(found), tally.report((), len(found))


def one(tmp_path: Path, line: str, **options: Any) -> Request:
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    requests, report = read(path, **options)
    assert report.n_kept == report.n_read == 1, report.left_out
    return requests[0]


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (TEXT, "log.jsonl:1"),
        (f"  {TEXT}\t", "log.jsonl:1"),
        (f'{{"id": "x", "body": {TEXT}}}', "x"),
        (f'{{"request_id": 17, "request": {TEXT}, "response": {{"choices": []}}}}', "17"),
        (f'{{"id": "x", "request": {{"method": "POST", "body": {TEXT}}}}}', "x"),
        (f'{{"id": "x", "body": {json.dumps(TEXT)}}}', "x"),
        (f'{{"custom_id": "c", "method": "POST", "url": "/v1/x", "body": {TEXT}}}', "c"),
        (f'{{"id": "x", "response": {{"usage": {{}}}}, {TEXT[1:]}', "x"),
        (f'{{"id": "x", "timestamp": 1, "session_id": "s", {TEXT[1:]}', "x"),
    ],
)
def test_openai_shapes_keep_the_body_verbatim(tmp_path: Path, line: str, id: str) -> None:
    request = one(tmp_path, line)
    assert request.id == id
    assert request.body == TEXT
    assert request.messages == json.dumps(BODY["messages"])
    assert (request.sampling.temperature, request.max_tokens) == (0.25, 12)


def test_domain_session_and_arrival_of_the_native_shape(tmp_path: Path) -> None:
    line = f'{{"id": "x", "domain": "sql", "session": "s1", "arrival_s": 0.375, "body": {TEXT}}}'
    request = one(tmp_path, line)
    assert (request.domain, request.session, request.arrival_s) == ("sql", "s1", 0.375)


def test_a_negative_arrival_is_dropped_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"id": "x", "arrival_s": -1.5, "body": {TEXT}}}')
    (request,), report = read(path)
    assert request.arrival_s is None
    assert [n.note for n in report.noticed] == [
        "unreadable or negative timestamp, kept without one"
    ]


def test_litellm_payload(tmp_path: Path) -> None:
    payload = {
        "id": "chatcmpl-1",
        "call_type": "acompletion",
        "model": "gpt",
        "response_cost": 0.1,
        "messages": BODY["messages"],
        "response": {"choices": []},
        "startTime": 1700000000.5,
        "metadata": {"team": "search"},
        "model_parameters": {"temperature": 0.25, "max_tokens": 12},
    }
    mapping = Mapping.parse(("domain=metadata.team",))
    request = one(tmp_path, json.dumps(payload), mapping=mapping)
    assert (request.id, request.domain, request.arrival_s) == ("chatcmpl-1", "search", 0.0)
    assert json.loads(request.body) == BODY | {"model": "gpt"}


def test_litellm_row_whose_columns_hold_json_text(tmp_path: Path) -> None:
    row = {
        "request_id": "r",
        "messages": json.dumps(BODY["messages"]),
        "startTime": "2024-05-01 12:00:00.250",
        "metadata": json.dumps({"team.name": "a.b"}),
        "proxy_server_request": "{}",
    }
    mapping = Mapping.parse(("domain=metadata.team.name",))
    request = one(tmp_path, json.dumps(row), mapping=mapping)
    assert request.domain == "a.b"
    assert json.loads(request.messages or "") == BODY["messages"]


def test_mapped_columns_build_a_body_and_leave_it_alone_otherwise(tmp_path: Path) -> None:
    row = {"q": "why?", "t": 0.5, "n_out": 5, "who": {"team": ["x", "y"]}}
    mapping = Mapping.parse(
        ("prompt=q", "temperature=t", "max_tokens=n_out", "domain=who.team.1", "id=nowhere")
    )
    request = one(tmp_path, json.dumps(row), mapping=mapping)
    assert request.body == '{"prompt": "why?", "temperature": 0.5, "max_tokens": 5}'
    assert (request.domain, request.id) == ("y", "log.jsonl:1")
    flat = one(tmp_path, '{"prompt": "a", "team": "z"}', mapping=Mapping.parse(("domain=team",)))
    assert (flat.body, flat.domain) == ('{"prompt": "a"}', "z")
    deep = one(tmp_path, f'{{"a": {{"b": {TEXT}}}}}', mapping=Mapping.parse(("body=a.b",)))
    assert deep.body == TEXT


def share(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": speaker, "value": text} for speaker, text in turns]


CONVERSATIONS = [
    {
        "id": "c1",
        "conversations": share(
            ("gpt", "…left over"),
            ("system", "be short"),
            ("human", "one"),
            ("gpt", "1"),
            ("human", "two"),
            ("gpt", "2"),
            ("human", "three"),
        ),
    },
    {"id": "c2", "conversations": share(("human", "only a question"))},
    {"id": "c3", "conversations": share(("human", "x"), ("oracle", "y"))},
    {"id": "c4", "conversations": share(("human", "ünïcode"), ("gpt", "ok"))},
]


@pytest.mark.parametrize("form", ["array", "pretty", "jsonl", "parquet"])
def test_sharegpt_turn_pairs(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"share.{'json' if form in ('array', 'pretty') else form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(CONVERSATIONS), path)
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(c) for c in CONVERSATIONS))
    else:
        path.write_text(json.dumps(CONVERSATIONS, indent=2 if form == "pretty" else None))
    requests, report = read(path)
    assert [r.id for r in requests] == ["c1#1", "c1#2", "c4#1"]
    assert [r.session for r in requests] == ["c1", "c1", "c4"]
    history = json.loads(requests[1].messages or "")
    assert [m["content"] for m in history] == ["be short", "one", "1", "two"]
    assert [m["role"] for m in history] == ["system", "user", "assistant", "user"]
    assert {left.reason: left.n for left in report.left_out} == {"no prompt": 1, "wrong type": 1}
    assert report.n_read == 5
    assert {n.note: n.n for n in report.noticed}[
        "ShareGPT turn without an answer, not a request"
    ] == 1


def test_places_in_an_array_are_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('\n[\n{"prompt": "a"},\n\n{"prompt":\n5},\n{"prompt": NaN}, {"prompt": "b"}\n]')
    requests, report = read(path)
    assert [r.text for r in requests] == ["a", "b"]
    assert [(x.reason, x.examples[0].place) for x in report.left_out] == [
        ("NaN or infinity", "log.json:7[3]"),
        ("wrong type", "log.json:5[2]"),
    ]


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ('{"prompt": "cut', "truncated JSON"),
        ('{"prompt": "no end"}', "truncated JSON"),
        ("{'prompt': 1}, " + '{"prompt": "never reached"}' * 40, "invalid JSON"),
        ('{"prompt": "x"} {"prompt": "no comma"}]', "invalid JSON"),
    ],
)
def test_a_broken_array_keeps_what_came_before(tmp_path: Path, tail: str, reason: str) -> None:
    path = tmp_path / "log.json"
    path.write_text('[{"prompt": "first"}, ' + tail)
    requests, report = read(path)
    assert requests[0].text == "first"
    assert [left.reason for left in report.left_out] == [reason]
    assert report.n_read == report.n_kept + 1


def test_an_array_is_never_held_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_CHUNK", 64)
    path = tmp_path / "log.json"
    bodies = [{"prompt": f"é{i} 😀 " * (1 + i % 7), "seed": i} for i in range(200)]
    path.write_text(json.dumps(bodies, ensure_ascii=False, indent=1))
    requests, report = read(path)
    assert [json.loads(r.body) for r in requests] == bodies
    assert report.n_read == 200


def vllm_lines() -> Iterator[str]:
    params = (
        "SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.5, repetition_penalty=1.0, "
        "temperature={t}, top_p=1.0, top_k={k}, min_p=0.0, seed=None, stop=['\\n'], "
        "stop_token_ids=[], bad_words=[], include_stop_str_in_output=False, ignore_eos=False, "
        "max_tokens=16, min_tokens=0, logprobs=None, skip_special_tokens=True, "
        "guided_decoding={g}, extra_args=None)"
    )
    log = "INFO 05-01 12:00:0{s} [logger.py:39] "
    yield "INFO 05-01 12:00:00 [api_server.py:1] Started server process"
    tail = "prompt_embeds shape: None, lora_request: None, prompt_adapter_request: None."
    yield (
        log.format(s=1)
        + "Received request cmpl-1: prompt: 'it\\'s, params: SamplingParams(n=9)\\n', "
        f"params: {params.format(t=0.0, k=-1, g=None)}, prompt_token_ids: None, {tail}"
    )
    yield (
        log.format(s=3) + 'Received request cmpl-2: prompt: "it\'s", '
        f"params: {params.format(t=0.7, k=5, g='GuidedDecodingParams(json=None)')}, "
        f"prompt_token_ids: [1, 22, 333], {tail}"
    )
    yield "DEBUG 05-01 12:00:04 [logger.py:1] Request cmpl-3 details: prompt: 'newer', " + (
        "prompt_token_ids: None, prompt_embeds shape: None."
    )
    yield (
        log.format(s=4) + f"Received request cmpl-3: params: {params.format(t=1.0, k=0, g=None)}, "
        "lora_request: None."
    )
    yield log.format(s=5) + f"Received request cmpl-4: params: {params.format(t=1.0, k=0, g=None)},"
    yield log.format(s=6) + "Received request cmpl-5: prompt: 'cut off', params: SamplingPar"


def test_vllm_server_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(vllm_lines()))
    requests, report = read(path)
    assert [r.id for r in requests] == ["cmpl-1", "cmpl-2", "cmpl-3"]
    assert requests[0].text == "it's, params: SamplingParams(n=9)\n"
    assert requests[0].sampling.greedy
    assert requests[1].token_ids == (1, 22, 333)
    assert (requests[1].sampling.top_k, requests[1].stop) == (5, ("\n",))
    assert requests[1].unsupported == ("frequency_penalty", "guided_decoding")
    assert requests[2].text == "newer"
    assert [r.arrival_s for r in requests] == [0.0, 2.0, 3.0]
    assert (report.n_read, report.n_other_lines) == (5, 2)
    assert sum(left.n for left in report.left_out) == 2


def test_parquet_drops_nulls_and_reads_nested_columns(tmp_path: Path) -> None:
    rows = [
        {
            "id": i,
            "body": {"messages": [{"role": "user", "content": f"q{i}", "name": None}], "seed": i},
            "temperature": None,
        }
        for i in range(600)
    ]
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    requests, report = read(path)
    assert report.n_kept == 600
    assert requests[599].id == "599"
    assert requests[1].body == '{"messages":[{"content":"q1","role":"user"}],"seed":1}'


def test_parquet_with_nan_and_timestamps(tmp_path: Path) -> None:
    times = pa.array([1_700_000_000_000, 1_700_000_001_500], pa.timestamp("ms"))
    table = pa.table({"prompt": ["a", "b"], "time": times, "max_tokens": [64.0, float("nan")]})
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    (request,), report = read(path)
    assert (request.max_tokens, request.arrival_s) == (64, 0.0)
    assert [(x.reason, x.examples[0].place) for x in report.left_out] == [
        ("NaN or infinity", "log.parquet:2")
    ]


def test_a_local_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{"question": f"q{i}", "topic": "t"} for i in range(5)])
    made.save_to_disk(str(tmp_path / "single"))
    datasets.DatasetDict({"test": made}).save_to_disk(str(tmp_path / "splits"))
    mapping = Mapping.parse(("prompt=question", "domain=topic"))
    for folder, split in (("single", "train"), ("splits", "test")):
        requests, report = read(tmp_path / folder, mapping=mapping, split=split)
        assert [r.text for r in requests] == [f"q{i}" for i in range(5)]
        assert requests[4].id == f"{folder}:5"
        assert report.usable[0].name == "t"
    with pytest.raises(InvalidInput, match="cannot be read"):
        read(tmp_path / "splits", mapping=mapping, split="train")


def test_a_folder_of_jsonl_as_a_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    requests, _ = read(folder, format=Format.DATASET)
    assert [r.text for r in requests] == ["a", "b"]
