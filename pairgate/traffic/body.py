"""The body of one OpenAI-style completion or chat request, read into a `Request`.

Defaults are those of the OpenAI API (temperature 1, top_p 1). A parameter that changes the output
and is none of `Sampling`, max_tokens and stop goes by name into `Request.unsupported`; a request
that one answer cannot replay (several choices, pictures) is a `BadRecord`.
"""

from __future__ import annotations

import math
from typing import Any

from pairgate.domain.traffic import Request, Sampling
from pairgate.errors import InvalidInput
from pairgate.traffic.jsontext import (
    Member,
    json_type,
    members,
    refuse_lone_surrogates,
    unpack,
)
from pairgate.traffic.report import BadRecord, Reason

MAX_TOKENS_LIMIT = 1 << 20
MAX_TOKEN_ID = 1 << 31

# Parameter -> the values that change nothing (None always does nothing).
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "functions": ([],),
    "suffix": ("",),
    "echo": (False,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "use_beam_search": (False,),
    "typical_p": (1,),
    "top_a": (0,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding": (),
    "structured_outputs": (),
    "grammar": ("",),
    "json_schema": (),
    "prediction": (),
    "reasoning_effort": (),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "lora_request": (),
    "truncate_prompt_tokens": (),
}
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking", "reasoning")
_MEDIA_WORDS = ("image", "audio", "video", "file", "media")


def parse_request(
    *,
    id: str,
    domain: str,
    body: str,
    session: str | None = None,
    arrival_s: float | None = None,
    default_max_tokens: int,
    max_tokens_beside: Any = None,
) -> Request:
    """The request that the body (JSON text, kept verbatim) asks for; raises `BadRecord`.

    `max_tokens_beside` is the log's own word, for a body that leaves its length open.
    """
    found = members(body)
    values = {key: member.value for key, member in found.items()}
    refuse_lone_surrogates(body, values)
    for name in ("n", "best_of"):
        if (_integer(values, name) or 1) > 1:
            raise BadRecord(Reason.SEVERAL_CHOICES, f"{name} is {values[name]}")
    text, token_ids, messages = _prompt(found)
    try:
        return Request(
            id=id,
            domain=domain,
            body=body,
            max_tokens=stated_max_tokens(values)
            or stated_max_tokens({"max_tokens": max_tokens_beside})
            or default_max_tokens,
            sampling=_sampling(values),
            session=session,
            arrival_s=arrival_s,
            text=text,
            token_ids=token_ids,
            messages=messages,
            stop=_stop(values.get("stop")),
            unsupported=_unsupported(values),
        )
    except InvalidInput as error:
        raise BadRecord(Reason.OUT_OF_RANGE, error.message) from error


def stated_max_tokens(values: dict[str, Any]) -> int | None:
    """max_completion_tokens, or its older name max_tokens, or None."""
    for name in ("max_completion_tokens", "max_tokens"):
        limit = _integer(values, name)
        if limit is None:
            continue
        if limit < 1:
            raise BadRecord(Reason.OUT_OF_RANGE, f"{name} is {limit}")
        if limit > MAX_TOKENS_LIMIT:
            raise BadRecord(Reason.TOO_LARGE, f"{name} is {limit}")
        return limit
    return None


def _prompt(found: dict[str, Member]) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    """(text, token ids, messages): exactly one is given."""
    if (chat := found.get("messages")) is not None and chat.value is not None:
        chat = unpack(chat)
        refuse_lone_surrogates(chat.text, chat.value)
        _check_messages(chat.value)
        return None, None, chat.text
    prompt = found["prompt"].value if "prompt" in found else None
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise BadRecord(Reason.SEVERAL_CHOICES, f"{len(prompt)} prompts in one request")
        prompt = prompt[0]
    if prompt is None or prompt in ("", []):
        raise BadRecord(Reason.NO_PROMPT, "neither messages nor prompt holds anything")
    if isinstance(prompt, str):
        return prompt, None, None
    if not isinstance(prompt, list):
        raise BadRecord(Reason.WRONG_TYPE, f"prompt is a {json_type(prompt)}")
    wrong = next((t for t in prompt if type(t) is not int or not 0 <= t < MAX_TOKEN_ID), None)
    if wrong is not None:
        what = wrong if type(wrong) in (int, float) else f"a {json_type(wrong)}"
        raise BadRecord(Reason.WRONG_TYPE, f"prompt holds {what}, which is no token id")
    return None, tuple(prompt), None


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list):
        raise BadRecord(Reason.WRONG_TYPE, f"messages is a {json_type(messages)}")
    anything = False
    for message in messages:
        if not isinstance(message, dict):
            raise BadRecord(Reason.WRONG_TYPE, f"a message is a {json_type(message)}")
        if not isinstance(message.get("role"), str):
            raise BadRecord(Reason.WRONG_TYPE, f"a message's role is {message.get('role')!r}")
        anything |= _check_content(message.get("content")) or bool(message.get("tool_calls"))
    if not anything:
        raise BadRecord(Reason.NO_PROMPT, f"{len(messages)} messages without content")


def _check_content(content: Any) -> bool:
    """Whether the content of a message holds any text."""
    if content is None or isinstance(content, str):
        return bool(content)
    if not isinstance(content, list):
        raise BadRecord(Reason.WRONG_TYPE, f"a message's content is a {json_type(content)}")
    anything = False
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and any(word in kind for word in _MEDIA_WORDS):
            raise BadRecord(Reason.MEDIA_PART, f"a part of type {kind!r}")
        if kind not in _TEXT_PARTS:
            raise BadRecord(Reason.WRONG_TYPE, f"a part of type {kind!r}")
        text = part.get("text", part.get(kind))
        if not isinstance(text, str):
            raise BadRecord(Reason.WRONG_TYPE, f"the text of a part is a {json_type(text)}")
        anything |= bool(text)
    return anything


def _sampling(values: dict[str, Any]) -> Sampling:
    top_k = _integer(values, "top_k") or 0
    return Sampling(
        temperature=_number(values, "temperature", 1.0),
        top_p=_number(values, "top_p", 1.0),
        top_k=0 if top_k == -1 else top_k,  # serving engines write "off" as -1
        min_p=_number(values, "min_p", 0.0),
        seed=_seed(values),
    )


def _seed(values: dict[str, Any]) -> int | None:
    seed = _integer(values, "seed")
    if seed is not None and not -(1 << 63) <= seed < 1 << 63:
        raise BadRecord(Reason.OUT_OF_RANGE, f"seed {seed} does not fit 64 bits")
    return seed


def _number(values: dict[str, Any], name: str, default: float) -> float:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRecord(Reason.WRONG_TYPE, f"{name} is a {json_type(value)}")
    try:
        number = float(value)
    except OverflowError as error:  # an integer of hundreds of digits
        raise BadRecord(Reason.OUT_OF_RANGE, f"{name} is beyond any float") from error
    if not math.isfinite(number):
        raise BadRecord(Reason.NOT_FINITE, f"{name} is {value}")
    return number


def _integer(values: dict[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRecord(Reason.NOT_FINITE, f"{name} is {value}")
    # Tables often turn integers into floats, so 64.0 is taken as 64.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise BadRecord(Reason.WRONG_TYPE, f"{name} is {value!r}, not an integer")
    return int(value)


def _stop(stop: Any) -> tuple[str, ...]:
    given = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(given, list) or not all(isinstance(s, str) for s in given):
        raise BadRecord(Reason.WRONG_TYPE, f"stop is {stop!r}")
    return tuple(s for s in given if s)


def _unsupported(values: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        name
        for name, neutral in sorted(_NEUTRAL.items())
        if values.get(name) is not None and values[name] not in neutral
    )
