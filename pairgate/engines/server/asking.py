"""Small questions to a server, outside of the load: health, version, counters."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from pairgate.errors import InvalidInput, Unavailable

_TIMEOUT_S = 10.0


def base_url(text: str) -> str:
    """The address without a trailing slash or `/v1`; raises `InvalidInput` for another scheme."""
    if not text.startswith(("http://", "https://")):
        raise InvalidInput(
            f"{text!r} is no address of a server", hint="write e.g. http://127.0.0.1:8000"
        )
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def healthy(url: str, *, timeout_s: float = 5.0) -> bool:
    """Whether GET `url` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return int(answer.status) == 200
    except (OSError, ValueError):
        return False


def get_text(url: str) -> str:
    """The body of GET `url`; raises `Unavailable` when there is none."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode("utf-8", "replace")
            return text
    except urllib.error.HTTPError as error:
        error.close()
        raise Unavailable(f"{url} answers HTTP {error.code}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(
            f"{url} does not answer: {reason}", hint="is the server running, and at that address?"
        ) from error


def get_json(url: str) -> dict[str, Any]:
    """The JSON object at `url`; raises `Unavailable`."""
    text = get_text(url)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Unavailable(f"{url} answers with something that is no JSON object: {text[:80]!r}")
    return value
