"""One message to an HTTPS endpoint, signed as Standard Webhooks 1.0 says.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md: the
signature is an HMAC-SHA256 over `id.timestamp.body`, and the id stays the same when a message is
sent again, so that a receiver can tell.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from pairgate.errors import InvalidInput, MissingExtra, Refused, Unavailable

URL_SETTING = "PAIRGATE_WEBHOOK_URL"
SECRET_SETTING = "PAIRGATE_WEBHOOK_SECRET"
SECRET_FILE_SETTING = "PAIRGATE_WEBHOOK_SECRET_FILE"
TIMEOUT_S = 15.0
"""For the whole exchange, however slowly the receiver answers."""

_CONNECT_TIMEOUT_S = 5.0
_MIN_SECRET_BYTES = 24
_PREFIX = "whsec_"
_SECRET_HINT = "make one with: echo whsec_$(openssl rand -base64 32)"


class TryLater(Unavailable):
    """The receiver said when it wants to be asked again, in seconds."""

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    retry_after: str


def send(environ: Mapping[str, str], *, key: str, body: bytes) -> None:
    """POST `body` to PAIRGATE_WEBHOOK_URL; `key` names the message for ever.

    Raises `InvalidInput` for settings that cannot be right, `Refused` when the receiver is gone
    for good (410), `TryLater` when it names a time, `Unavailable` for everything else but 2xx.
    Nothing raised here shows the secret, or more of the URL than its host.
    """
    url = _checked_url(environ[URL_SETTING])
    secrets = read_secrets(environ)
    timestamp = int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": "pairgate",
        "webhook-id": key,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(s, key, timestamp, body) for s in secrets),
    }
    answer = _post(url, headers, body)
    _check(answer, host=url.hostname or "")


def signature(secret: bytes, key: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the HMAC-SHA256 of `key.timestamp.body` in base64."""
    signed = b".".join((key.encode(), str(timestamp).encode(), body))
    digest = hmac.new(secret, signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def read_secrets(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """The keys to sign with: several, separated by white space, while one replaces another.

    Raises `InvalidInput` without a secret, for one that is not base64, and for a short one.
    """
    file = environ.get(SECRET_FILE_SETTING)
    if file:
        try:
            text = Path(file).read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not ASCII text"
            raise InvalidInput(f"{SECRET_FILE_SETTING} cannot be read: {reason}") from None
    else:
        text = environ.get(SECRET_SETTING, "")
    keys = []
    for word in text.split():
        try:
            keys.append(base64.b64decode(word.removeprefix(_PREFIX), validate=True))
        except (binascii.Error, ValueError):
            raise InvalidInput("the webhook's secret is not base64", hint=_SECRET_HINT) from None
    if not keys:
        raise InvalidInput(
            f"the webhook has no secret in {SECRET_SETTING} or {SECRET_FILE_SETTING}",
            hint=_SECRET_HINT,
        )
    if min(map(len, keys)) < _MIN_SECRET_BYTES:
        raise InvalidInput(
            f"the webhook's secret has fewer than {_MIN_SECRET_BYTES} bytes", hint=_SECRET_HINT
        )
    return tuple(keys)


def _checked_url(text: str) -> SplitResult:
    """Raises `InvalidInput` unless it is https, or http to this machine."""
    try:
        url = urlsplit(text.strip())
        _ = url.port
    except ValueError:
        raise InvalidInput(f"{URL_SETTING} is not a URL") from None
    if not url.hostname or url.username or url.password:
        raise InvalidInput(
            f"{URL_SETTING} is not an https URL without a user",
            hint="the signature says who sends; write https://HOST/PATH",
        )
    if url.scheme != "https" and not (url.scheme == "http" and _is_loopback(url.hostname)):
        raise InvalidInput(
            f"{URL_SETTING} is not https; plain http is only for a receiver on this machine"
        )
    return url


def _is_loopback(host: str) -> bool:
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _post(url: SplitResult, headers: Mapping[str, str], body: bytes) -> _Answer:
    """Only the status and headers are read, never the body."""
    try:
        import httpx
    except ImportError:
        raise MissingExtra("httpx", "webhook") from None
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    host = url.hostname or ""

    async def exchange() -> _Answer:
        # httpx's own timeouts are for one read; a receiver that drips needs one for the whole.
        async with asyncio.timeout(TIMEOUT_S):
            async with httpx.AsyncClient(
                timeout=httpx.Timeout(TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
                follow_redirects=False,
                # A proxy is no way to this machine.
                mounts=dict.fromkeys(("http://", "https://")) if _is_loopback(host) else None,
            ) as client:
                request = client.stream("POST", url.geturl(), content=body, headers=headers)
                async with request as response:
                    found = response.headers.get("retry-after", "")
                    return _Answer(status=response.status_code, retry_after=found)

    try:
        # A thread of its own: the caller may have an event loop already.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, exchange()).result()
    except TimeoutError:
        raise Unavailable(f"{host} did not answer within {TIMEOUT_S:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable(f"{host} could not be reached: {reason}") from None


def _check(answer: _Answer, *, host: str) -> None:
    status = answer.status
    if 200 <= status < 300:
        return
    if status == 410:
        raise Refused(f"{host} answers 410: it is gone and wants no more messages")
    if 300 <= status < 400:
        raise Unavailable(f"{host} answers {status}, and redirects are not followed")
    if answer.retry_after.isascii() and answer.retry_after.isdigit():
        raise TryLater(f"{host} answers {status}", after_s=float(answer.retry_after[:9]))
    raise Unavailable(f"{host} answers {status}")
