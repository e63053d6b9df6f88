"""A request as the HTTP body that is sent, and what came back as a value.

The body goes out as it was logged. Replay overrides only what it has to: the model's name, the
stream with its usage, the token ids, the salt of the prefix cache; and it writes out the length and
the sampling defaults, because a server would fill those in from the model's generation config.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pairgate.domain.traffic import Request

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request: `path` on the server, `body` as JSON bytes."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The server's token counts; `cached_tokens` of the prompt came from its prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one call brought. `error` is "" for a whole answer.

    `chunk_ms` are arrival times after the begin, `chunk_tokens` the tokens of each chunk that had
    any; both empty where the server sends no token ids. `final` is the JSON text of the chunk that
    carried the usage: only a dialect looks into it. `hung` is the watchdog's word, `unreachable`
    means that no connection could be made.
    """

    status: int = 0
    error: str = ""
    hung: bool = False
    unreachable: bool = False
    ttft_ms: float = 0.0
    latency_ms: float = 0.0
    chunk_ms: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    stop_reason: str | int | None = None
    usage: Usage | None = None
    final: str = field(default="", repr=False)


def call_for(request: Request, *, model: str, seed: int | None, salt: str | None) -> Call:
    """The call that replays `request`. `seed` is for a request that names none; None leaves the
    choice to the server. `salt` None leaves the prefix cache alone."""
    body: dict[str, Any] = json.loads(request.body)
    for name in ("max_completion_tokens", "n", "best_of", "stream_options"):
        body.pop(name, None)
    body |= {
        "model": model,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k,
        "min_p": request.sampling.min_p,
    }
    if salt is not None:
        body["cache_salt"] = salt
    if request.sampling.seed is not None:
        body["seed"] = request.sampling.seed
    elif seed is not None:
        body["seed"] = seed
    if request.stop:
        body["stop"] = list(request.stop)
    if request.messages is not None:
        return Call(path=CHAT, body=_json(body | {"messages": json.loads(request.messages)}))
    prompt: Any = request.text if request.token_ids is None else list(request.token_ids)
    return Call(path=COMPLETIONS, body=_json(body | {"prompt": prompt}))


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
