"""One log with every kind of bad record: what is kept, left out and noticed is counted exactly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput, NotFound
from pairgate.traffic.importing import Format, ReadOptions, read_logs, settle
from pairgate.traffic.lines import MAX_RECORD_BYTES
from pairgate.traffic.report import ImportReport, Tally
from pairgate.traffic.shapes import Mapping

CHAT = '{"model": "m",  "messages": [{"role": "user", "content": "héllo"}], "temperature": 0.5}'

# One line of the log -> the reason for which it is left out, or None when it is kept.
LINES: tuple[tuple[bytes, str | None], ...] = (
    (b'\xef\xbb\xbf{"id": "first", "body": ' + CHAT.encode() + b', "ts": 1700000000}', None),
    (b'{"id": "ms", "prompt": "b", "ts": 1700000010500}', None),
    (b'{"id": "iso", "prompt": "c", "ts": "2023-11-14T22:13:29+00:00"}', None),
    (b'{"id": "odd-time", "prompt": "d", "ts": "yesterday"}', None),
    (b'{"id": "negative", "prompt": "e", "ts": -5}', None),
    (b'{"prompt": "f", "max_tokens": 7}', None),
    (b'{"id": "far", "prompt": "far", "ts": 1' + b"0" * 400 + b"}", None),
    (b'{"id": "later", "prompt": "later", "arrival_s": 1' + b"0" * 400 + b"}", None),
    (b'{"id": "astral", "prompt": "\\ud83d\\ude00 g"}', None),
    (b'{"id": "cut", "prompt": "g', "truncated JSON"),
    (b'{"id": "cut", "prompt": "g"', "truncated JSON"),
    (b"{'id': 'python'}", "invalid JSON"),
    (b'{"prompt": "a"} {"prompt": "b"}', "invalid JSON"),
    (b'{"prompt": "a",}', "invalid JSON"),
    (b'{"id": "latin1", "prompt": "\xe9"}', "not UTF-8"),
    (b'["a", "list"]', "not an object"),
    (b'"text"', "not an object"),
    (b'{"prompt": "a", "temperature": NaN}', "NaN or infinity"),
    (b'{"prompt": "a", "temperature": 1e999}', "NaN or infinity"),
    (b'{"prompt": "a", "max_tokens": 1000000000000}', "absurd size"),
    (b'{"prompt": "' + b"x" * MAX_RECORD_BYTES + b'"}', "absurd size"),
    (b'{"prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}", "nested too deeply"),
    (b'{"prompt": "half \\uD83D pair"}', "lone surrogate"),
    (b'{"id": "\\udc00", "prompt": "a"}', "lone surrogate"),
    (b'{"prompt": 5}', "wrong type"),
    (b'{"prompt": "a", "max_tokens": "64"}', "wrong type"),
    (b'{"prompt": "a", "temperature": true}', "wrong type"),
    (b'{"prompt": "a", "stop": [1]}', "wrong type"),
    (b'{"prompt": [1, -2]}', "wrong type"),
    (b'{"id": {"a": 1}, "prompt": "a"}', "wrong type"),
    (b'{"messages": "hello"}', "wrong type"),
    (b'{"messages": [{"content": "no role"}]}', "wrong type"),
    (b'{"body": "text"}', "wrong type"),
    (b'{"prompt": "a", "temperature": -1}', "value out of range"),
    (b'{"prompt": "a", "top_p": 1.5}', "value out of range"),
    (b'{"prompt": "a", "max_tokens": 0}', "value out of range"),
    (b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}", "value out of range"),
    (b'{"prompt": "a", "seed": 9223372036854775808}', "value out of range"),
    (b'{"prompt": "a", "temperature": 1' + b"0" * 400 + b"}", "value out of range"),
    (b'{"text": "a"}', "no prompt"),
    (b"{}", "no prompt"),
    (b'{"prompt": ""}', "no prompt"),
    (b'{"messages": []}', "no prompt"),
    (b'{"body": {"input": "responses API"}}', "no prompt"),
    (
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "what is this"}, '
        b'{"type": "image_url", "image_url": {"url": "data:..."}}]}]}',
        "image, audio or file part",
    ),
    (
        b'{"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}',
        "image, audio or file part",
    ),
    (b'{"prompt": "a", "n": 2}', "several prompts or choices (n, best_of)"),
    (b'{"prompt": "a", "best_of": 3}', "several prompts or choices (n, best_of)"),
    (b'{"prompt": ["a", "b"]}', "several prompts or choices (n, best_of)"),
    (b'{"id": "first", "prompt": "another text"}', "duplicate id"),
    (b'{"id": "again", "prompt": "b"}', "duplicate prompt"),
    (b'{"id": "spaced", "body": ' + CHAT.encode().replace(b" ", b"") + b"}", "duplicate prompt"),
)
BLANK = 3


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_bytes(b"\r\n".join([*(line for line, _ in LINES), b"", b"   ", b"\n"]))
    return path


def read(*sources: Path, **options: object) -> tuple[tuple[Request, ...], ImportReport]:
    tally = Tally()
    found = list(read_logs(map(str, sources), ReadOptions(**options), tally))  # type: ignore[arg-type]
    return settle(found), tally.report(
        (u for f in found for u in f.request.unsupported), len(found)
    )


def test_every_bad_record_is_counted_by_reason(log: Path) -> None:
    requests, report = read(log)
    expected: dict[str, list[int]] = {}
    for number, (_, reason) in enumerate(LINES, start=1):
        if reason is not None:
            expected.setdefault(reason, []).append(number)
    assert {left.reason: left.n for left in report.left_out} == {
        reason: len(numbers) for reason, numbers in expected.items()
    }
    for left in report.left_out:
        assert [e.place for e in left.examples] == [
            f"log.jsonl:{n}" for n in expected[left.reason][:5]
        ]
    assert report.n_read == len(LINES)
    assert report.n_other_lines == BLANK
    assert report.n_kept == len(requests) == sum(reason is None for _, reason in LINES)
    assert report.n_read == report.n_kept + sum(left.n for left in report.left_out)
    assert report.n_faulty == sum(len(v) for k, v in expected.items() if k != "duplicate prompt")


def test_times_of_all_kinds_become_arrivals(log: Path) -> None:
    requests, report = read(log)
    arrivals = {r.id: r.arrival_s for r in requests}
    assert arrivals == {
        "first": 0.0,
        "ms": 10.5,
        "iso": 9.0,
        "odd-time": None,
        "negative": None,
        "log.jsonl:6": None,
        "far": None,
        "later": None,
        "astral": None,
    }
    noticed = {n.note: n.n for n in report.noticed}
    assert noticed == {
        "timestamp earlier than the one before": 1,
        "unreadable or negative timestamp, kept without one": 4,
        "no timestamp": 2,
        "no max_tokens, the default was taken": 8,
    }


def test_a_body_is_kept_to_the_letter(log: Path) -> None:
    requests, _ = read(log)
    assert requests[0].body == CHAT
    assert requests[0].sampling.temperature == 0.5
    assert requests[0].messages == '[{"role": "user", "content": "héllo"}]'
    assert requests[5].body == '{"prompt": "f", "max_tokens": 7}'
    assert requests[5].max_tokens == 7


def test_no_text_of_a_prompt_reaches_the_report(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    secret = "my password is hunter2"
    bad = ({"prompt": secret, "n": 2}, {"prompt": secret, "top_p": 3}, {"prompt": [secret] * 2})
    lines = [json.dumps(value) for value in bad] + [f'{{"prompt": "{secret}', f'["{secret}"]']
    path.write_text("\n".join(lines))
    _, report = read(path)
    assert report.n_faulty == 5
    assert "hunter2" not in repr(report)


def test_a_faulty_record_does_not_take_the_id_of_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"id": "a", "prompt": 5}\n{"id": "a", "prompt": "good"}\n')
    requests, report = read(path)
    assert [r.text for r in requests] == ["good"]
    assert [left.reason for left in report.left_out] == ["wrong type"]


def test_unsupported_parameters_are_named_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    neutral = {"prompt": "a", "frequency_penalty": 0, "logit_bias": {}, "tools": [], "n": 1}
    neutral |= {"response_format": {"type": "text"}, "repetition_penalty": 1.0, "top_k": -1}
    loaded = {"prompt": "b", "presence_penalty": 0.5, "tools": [{}], "guided_json": {"a": 1}}
    path.write_text(json.dumps(neutral) + "\n" + json.dumps(loaded) + "\n")
    requests, report = read(path)
    assert requests[0].unsupported == ()
    assert requests[0].sampling.top_k == 0
    assert requests[1].unsupported == ("guided_json", "presence_penalty", "tools")
    assert [(u.name, u.n) for u in report.unsupported] == [
        ("guided_json", 1),
        ("presence_penalty", 1),
        ("tools", 1),
    ]


def test_openai_defaults(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"prompt": [1, 2], "stop": "x", "max_completion_tokens": 9.0}')
    (request,), _ = read(path)
    assert request.token_ids == (1, 2)
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
    assert (request.max_tokens, request.stop, request.domain) == (9, ("x",), "general")


def test_two_files_of_one_name_keep_their_ids_apart(tmp_path: Path) -> None:
    for folder, prompt in (("a", "x"), ("b", "y")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.jsonl").write_text(json.dumps({"prompt": prompt}))
    requests, _ = read(tmp_path / "a" / "log.jsonl", tmp_path / "b" / "log.jsonl")
    assert [r.id for r in requests] == ["log.jsonl:1", "log.jsonl(2):1"]


def test_gzip_is_read_and_a_cut_one_is_an_error(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(b'{"prompt": "%d"}\n' % i for i in range(2000)))
    (tmp_path / "log.jsonl.gz").write_bytes(data)
    assert read(tmp_path / "log.jsonl.gz")[1].n_kept == 2000
    (tmp_path / "cut.jsonl.gz").write_bytes(data[:-20])
    with pytest.raises(InvalidInput, match="cannot be read to its end"):
        read(tmp_path / "cut.jsonl.gz")


def test_a_missing_file_and_a_foreign_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    with pytest.raises(InvalidInput, match="cannot be read as Parquet"):
        read(tmp_path / "x.parquet")


def test_mapping_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a field"):
        Mapping.parse(("team=metadata.team",))
    with pytest.raises(InvalidInput, match="FIELD=PATH"):
        Mapping.parse(("domain",))
    with pytest.raises(InvalidInput, match="only with the prompt"):
        Mapping.parse(("temperature=params.t",))
    assert Format("auto") is Format.AUTO
