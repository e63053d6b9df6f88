"""The request lines of a vLLM server's log (`--enable-log-requests`), as completion bodies.

Two forms are in use. Older: one line `Received request ID: prompt: '…', params:
SamplingParams(…), prompt_token_ids: […], …`. Newer: `Request ID details: prompt: '…',
prompt_token_ids: […]` (level DEBUG), then `Received request ID: params: SamplingParams(…)`.
The prompt is the one after the chat template; its token ids are taken where the log has them.
`--max-log-len` cuts prompts without a trace: leave it out when a log shall become a slice.
"""

from __future__ import annotations

import ast
import json
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairgate.domain.canonical import canonical_json
from pairgate.traffic.lines import Raw, read_lines
from pairgate.traffic.report import BadRecord, Reason

_RECEIVED = re.compile(r"Received request ([^\s:]+): (.*)", re.DOTALL)
_DETAILS = re.compile(r"Request ([^\s:]+) details: (.*)", re.DOTALL)
_TIME = re.compile(r"\b(\d\d-\d\d) (\d\d:\d\d:\d\d)\b")
_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None"""
_PROMPT = re.compile(rf"prompt: ({_STRING})")
_TOKEN_IDS = re.compile(r"prompt_token_ids: (\[[\d, ]*\])")
_PARAMS = re.compile(r"params: (\w*Params\(.*?\))(?:, prompt_token_ids: |, lora_request: |\.?$)")
_AFTER_PROMPT = re.compile(rf"^prompt: (?:{_STRING}), ")
# What the server adds for itself; it changes no output.
_INTERNAL = ("logprobs", "prompt_logprobs", "detokenize", "skip_special_tokens", "output_kind")
_INTERNAL_TOO = ("spaces_between_special_tokens", "include_stop_str_in_output", "extra_args")
# Details wait for their request line; a server has at most some thousand requests in flight.
_MAX_WAITING = 10_000


def read_vllm_log(path: Path, label: str) -> Iterator[Raw]:
    """One record per `Received request` line; every other line comes out blank."""
    waiting: OrderedDict[str, str] = OrderedDict()
    for raw in read_lines(path, label):
        if raw.bad is not None:
            yield raw
        elif (details := _DETAILS.search(raw.text)) is not None:
            waiting[details[1]] = details[2]
            if len(waiting) > _MAX_WAITING:
                waiting.popitem(last=False)
            yield Raw(place=raw.place)
        elif (received := _RECEIVED.search(raw.text)) is not None:
            time = _TIME.search(raw.text[: received.start()])
            prompt_part = waiting.pop(received[1], received[2])
            try:
                record = _record(received[1], prompt_part, received[2])
            except BadRecord as bad:
                yield Raw(place=raw.place, bad=bad)
                continue
            if time is not None:
                # The log has no year; only differences count, and 2000 had a 29 February.
                record["timestamp"] = f"2000-{time[1]}T{time[2]}"
            try:
                yield Raw(place=raw.place, text=canonical_json(record).decode())
            except ValueError:
                yield Raw(place=raw.place, bad=BadRecord(Reason.NOT_FINITE, "a parameter"))
        else:
            yield Raw(place=raw.place)


def received(text: str) -> bool:
    """Whether a line of a text file is a request line of such a log, and not JSON."""
    return not text.lstrip().startswith("{") and _RECEIVED.search(text) is not None


def _record(id: str, prompt_part: str, params_part: str) -> dict[str, Any]:
    # The prompt is user text and may hold anything, so it is taken off before params are sought.
    rest = _AFTER_PROMPT.sub("", params_part)
    params = _PARAMS.search(rest)
    if params is None:
        raise BadRecord(Reason.INVALID_JSON, "no SamplingParams on the line")
    text = _PROMPT.match(prompt_part)
    after = prompt_part[text.end() :] if text else prompt_part
    tokens = _TOKEN_IDS.search(after)
    prompt = _literal(tokens[1], "prompt_token_ids") if tokens else None
    if not prompt and text is not None:
        prompt = _literal(text[1], "prompt")
    return {"id": id, "body": {"prompt": prompt, **_parameters(params[1])}}


def _literal(text: str, what: str) -> Any:
    """The Python value that a repr stands for."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        # The error's own text would show the prompt.
        raise BadRecord(Reason.INVALID_JSON, f"{what} is no Python literal") from error


def _parameters(call: str) -> dict[str, Any]:
    """The keywords of a `SamplingParams(…)` repr that say something."""
    try:
        parsed = ast.parse(call, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BadRecord(Reason.INVALID_JSON, f"unreadable: {call[:30]}…") from error
    if not isinstance(parsed, ast.Call):
        raise BadRecord(Reason.INVALID_JSON, f"unreadable: {call[:30]}…")
    found: dict[str, Any] = {}
    for keyword in parsed.keywords:
        try:
            value = ast.literal_eval(keyword.value)
            value = json.loads(json.dumps(value))
        except (ValueError, TypeError, RecursionError):
            # No literal, or one that JSON does not have: a class, a set, bytes.
            value = ast.unparse(keyword.value)
        name = keyword.arg
        if name is None or name in _INTERNAL or name in _INTERNAL_TOO or value in (None, [], {}):
            continue
        found[name] = value
    return found
