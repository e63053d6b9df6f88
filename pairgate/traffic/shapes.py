"""Where the parts of a request stand in one record of a log, for the shapes that are in use.

bare        {"model": …, "messages": […], "temperature": …}            the record is the body
wrapped     {"id": …, "body": {…}} or "request": {…}, also as a JSON string
batch       {"custom_id": …, "method": …, "url": …, "body": {…}}       OpenAI Batch API
flat        a bare body mixed with what the log adds (id, time, response)
LiteLLM     {"messages": …, "model_parameters": {…}, "startTime": …}   StandardLoggingPayload
ShareGPT    {"conversations": [{"from": "human", "value": …}, …]}      one request per answer
mapped      any columns, named by --map
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pairgate.domain.canonical import canonical_json
from pairgate.errors import InvalidInput
from pairgate.traffic.jsontext import Member, as_member, join, json_type, lookup, members, unpack
from pairgate.traffic.report import BadRecord, Note, Reason

_RECORD_FIELDS = ("id", "domain", "session", "timestamp", "body")
_PARAMETERS = (
    *("model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("seed", "stop", "n", "frequency_penalty", "presence_penalty", "response_format", "tools"),
)
_BODY_FIELDS = ("messages", "prompt", *_PARAMETERS)
_IDS = ("id", "custom_id", "request_id", "litellm_call_id")
_SESSIONS = ("session", "session_id", "conversation_id")
_TIMES = ("timestamp", "ts", "time", "startTime", "start_time", "created_at", "created")
_WRAPPERS = ("body", "request", "request_body", "proxy_server_request")
_LITELLM = ("model_parameters", "optional_params", "litellm_params", "call_type", "startTime")
_ANSWERS = (
    *("response", "choices", "completion", "usage", "error", "object", "status", "status_code"),
    *("url", "method", "latency_ms", "end_time", "endTime", "arrival_s"),
)
_LOG_KEYS = frozenset((*_IDS, "domain", *_SESSIONS, *_TIMES, *_ANSWERS))
_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_SPEAKERS |= {"chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
_SPEAKERS |= {"system": "system", "tool": "tool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """`--map FIELD=PATH` options; `paths` maps a field to a dotted path in the record."""

    paths: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        known = (*_RECORD_FIELDS, *_BODY_FIELDS)
        for name, path in self.paths:
            if name not in known or not path:
                raise InvalidInput(
                    f"--map {name}={path}: {name!r} is not a field",
                    hint=f"fields are: {', '.join(known)}",
                )
        if self.body_paths and not {"messages", "prompt"} & {n for n, _ in self.body_paths}:
            raise InvalidInput(
                f"--map {self.body_paths[0][0]}=…: parameters are mapped only with the prompt",
                hint="add --map messages=… or --map prompt=…; a body as sent is never changed",
            )

    @classmethod
    def parse(cls, options: tuple[str, ...]) -> Mapping:
        """From `FIELD=PATH` texts."""
        wrong = next((o for o in options if "=" not in o), None)
        if wrong is not None:
            raise InvalidInput(f"--map {wrong}: write it as FIELD=PATH, e.g. domain=metadata.team")
        pairs = (option.partition("=") for option in options)
        return cls(paths=tuple((name.strip(), path.strip()) for name, _, path in pairs))

    @property
    def body_paths(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, path) for name, path in self.paths if name in _BODY_FIELDS)

    def path(self, name: str) -> str | None:
        return dict(self.paths).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The parts of one request as they stand in the log, not yet judged."""

    body: str
    id: str | None
    domain: str | None
    session: str | None
    timestamp: Any = None
    arrival_s: float | None = None
    max_tokens: Any = None
    turn: int | None = None
    notes: tuple[Note, ...] = field(default=())


def candidates(text: str, mapping: Mapping) -> Iterator[Candidate]:
    """The requests of one record (JSON text of an object): one, or one per ShareGPT turn pair.

    Raises `BadRecord`.
    """
    record = members(text)
    body = _mapped_body(record, mapping)
    if body is None and (turns := record.get("conversations")) is not None:
        yield from _conversation(record, turns, mapping)
        return
    body = body if body is not None else _body(text, record, mapping)
    arrival = record["arrival_s"].value if "arrival_s" in record else None
    arrival_s = _seconds(arrival)
    default = record.get("max_tokens") if "body" in record else None
    yield Candidate(
        body=body.strip(" \t\r\n"),
        id=_name(record, mapping, "id", _IDS),
        domain=_name(record, mapping, "domain", ("domain",)),
        session=_name(record, mapping, "session", _SESSIONS),
        timestamp=arrival if arrival is not None else _value(record, mapping, "timestamp", _TIMES),
        arrival_s=arrival_s,
        max_tokens=default.value if default else None,
    )


def _mapped_body(record: dict[str, Member], mapping: Mapping) -> str | None:
    path = mapping.path("body")
    if path is not None:
        found = lookup(record, path)
        if found is None or found.value is None:
            raise BadRecord(Reason.NO_PROMPT, f"there is nothing at {path}")
        return _object_text(path, unpack(found))
    if not mapping.body_paths:
        return None
    parts: dict[str, str] = {}
    for name, path in mapping.body_paths:
        found = lookup(record, path)
        if found is not None and found.value is not None:
            parts[name] = unpack(found).text if name == "messages" else found.text
    return join(parts)


def _body(text: str, record: dict[str, Member], mapping: Mapping) -> str:
    for key in _WRAPPERS:
        if key in record and (found := _wrapped(key, record[key])) is not None:
            return found
    if "messages" not in record and "prompt" not in record:
        if "body" in record:
            _object_text("body", unpack(record["body"]))
        raise BadRecord(Reason.NO_PROMPT, f"keys: {', '.join(list(record)[:6]) or 'none'}")
    if any(key in record for key in _LITELLM):
        return _litellm_body(record)
    mapped = {path.partition(".")[0] for _, path in mapping.paths}
    kept = {k: unpack(m) if k == "messages" else m for k, m in record.items()}
    kept = {k: m for k, m in kept.items() if k not in _LOG_KEYS and k not in mapped}
    return text if len(kept) == len(record) else join({k: m.text for k, m in kept.items()})


def _wrapped(key: str, member: Member) -> str | None:
    """The body in a wrapper, which may hold it as an object, as a JSON string, or deeper."""
    inner = unpack(member)
    if not isinstance(inner.value, dict):
        return None
    if "messages" in inner.value or "prompt" in inner.value:
        return inner.text
    deeper = members(inner.text).get("body")
    return _wrapped(key, deeper) if deeper is not None else None


def _object_text(name: str, member: Member) -> str:
    if not isinstance(member.value, dict):
        raise BadRecord(Reason.WRONG_TYPE, f"{name} is a {json_type(member.value)}")
    return member.text


def _litellm_body(record: dict[str, Member]) -> str:
    """Model, prompt and parameters; a LiteLLM record carries much else beside them."""
    parts: dict[str, str] = {}
    for key in ("model_parameters", "optional_params"):
        inner = unpack(record[key]) if key in record else None
        if inner is not None and isinstance(inner.value, dict):
            parts |= {name: member.text for name, member in members(inner.text).items()}
    for key in _BODY_FIELDS:
        if key in record and record[key].value is not None:
            parts[key] = unpack(record[key]).text if key == "messages" else record[key].text
    return join(parts)


def _conversation(
    record: dict[str, Member], turns: Member, mapping: Mapping
) -> Iterator[Candidate]:
    said = unpack(turns).value
    if not isinstance(said, list):
        raise BadRecord(Reason.WRONG_TYPE, f"conversations is a {json_type(said)}")
    name = _name(record, mapping, "id", _IDS)
    session = _name(record, mapping, "session", _SESSIONS) or name
    domain = _name(record, mapping, "domain", ("domain",))
    messages = [_message(turn) for turn in said]
    asked = next((i for i, m in enumerate(messages) if m["role"] != "assistant"), len(messages))
    messages = messages[asked:]  # scraped conversations often begin with the end of an answer
    answered = [
        i
        for i, (now, after) in enumerate(itertools.pairwise(messages))
        if now["role"] == "user" and after["role"] == "assistant"
    ]
    if not answered:
        raise BadRecord(Reason.NO_PROMPT, "a conversation without an answered turn")
    dangling = messages[-1]["role"] == "user"
    for turn, i in enumerate(answered, start=1):
        last = turn == len(answered)
        yield Candidate(
            body=canonical_json({"messages": messages[: i + 1]}).decode(),
            id=None if name is None else f"{name}#{turn}",
            turn=turn,
            domain=domain,
            session=session,
            timestamp=_value(record, mapping, "timestamp", _TIMES) if turn == 1 else None,
            notes=(Note.UNANSWERED,) if last and dangling else (),
        )


def _message(turn: Any) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise BadRecord(Reason.WRONG_TYPE, f"a turn is a {json_type(turn)}")
    speaker, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        raise BadRecord(Reason.WRONG_TYPE, f"a turn is from {speaker!r}")
    if not isinstance(text, str):
        raise BadRecord(Reason.WRONG_TYPE, f"the text of a turn is a {json_type(text)}")
    return {"role": _SPEAKERS[speaker], "content": text}


def _value(
    record: dict[str, Member], mapping: Mapping, name: str, usual: tuple[str, ...]
) -> Any | None:
    path = mapping.path(name)
    found = (
        [lookup(record, path)] if path is not None else [record[k] for k in usual if k in record]
    )
    return next((m.value for m in found if m is not None and m.value is not None), None)


def _name(
    record: dict[str, Member], mapping: Mapping, name: str, usual: tuple[str, ...]
) -> str | None:
    """A text that names something; numbers are written out, empty is None."""
    value = _value(record, mapping, name, usual)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadRecord(Reason.WRONG_TYPE, f"{name} is a {json_type(value)}")
    text = value if isinstance(value, str) else as_member(value).text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRecord(Reason.LONE_SURROGATE, f"{name} {text!r}") from error
    return text


def _seconds(value: Any) -> float | None:
    """An arrival that is already relative: finite and not negative, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= sys.float_info.max else None
