"""One session with one registry: TLS, time limits, and who we are.

`requests` sends, `oras` finds credentials (docker config, credential helpers) and fetches tokens.
What is done around `oras`, and why, is in docs/decisions/0008-oci-transport.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from pairgate.errors import MissingExtra, PairgateError, Refused, Unavailable

if TYPE_CHECKING:
    import requests

    from pairgate.transport.reference import OciReference

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
_N_RETRIES = 2
_RETRY_STATUS = (429, 502, 503, 504)
USERNAME = "PAIRGATE_OCI_USERNAME"
PASSWORD = "PAIRGATE_OCI_PASSWORD"


class RegistryHttp:
    """Requests to one registry. Raises `Unavailable` when it cannot be reached or lets us not in.

    `plain_http` None is "only on this machine". Credentials go to the registry itself and to the
    token server that it names, never along a redirect or to an upload address elsewhere.
    """

    def __init__(
        self, reference: OciReference, *, plain_http: bool | None, environ: Mapping[str, str]
    ) -> None:
        self.host = reference.host
        self.plain_http = reference.is_loopback if plain_http is None else plain_http
        self.root = f"{'http' if self.plain_http else 'https'}://{self.host}/v2/"
        self._repository = reference.repository
        self._environ = environ
        self._session = _session(use_proxies=not reference.is_loopback)
        self._authorization: str | None = None

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: BinaryIO | bytes | None = None,
    ) -> requests.Response:
        """The registry's answer, its body not read yet. A 401 is answered with credentials once.

        A file as `data` is streamed from where it stands. Other errors than 401 and 403 are the
        caller's.
        """
        sent = dict(headers or {})
        start = data.tell() if data is not None and not isinstance(data, bytes) else 0
        response = self._send(method, url, sent, data)
        if response.status_code == 401 and self._authenticate(response):
            response.close()
            if data is not None and not isinstance(data, bytes):
                data.seek(start)
            response = self._send(method, url, sent, data)
        if response.status_code in (401, 403):
            raise self._not_let_in(response)
        return response

    def failed(self, response: requests.Response, what: str) -> PairgateError:
        """The error for an answer that nobody expected."""
        return Unavailable(
            f"{self.host} answered {response.status_code} to {what}{said(response)}",
            hint="run it again later: what is there is skipped",
        )

    def unreachable(self, error: BaseException) -> Unavailable:
        """The error for a connection that could not be made, or broke."""
        hint = "check the address and the network, then run it again: what is there is skipped"
        reason = _reason(error)
        if "SSL" in reason and not self.plain_http:
            hint = "a registry without TLS needs --plain-http"
        return Unavailable(f"the registry {self.host} cannot be reached: {reason}", hint=hint)

    def _send(
        self, method: str, url: str, headers: dict[str, str], data: BinaryIO | bytes | None
    ) -> requests.Response:
        import requests

        if self._authorization and urlsplit(url).netloc == self.host:
            headers = headers | {"Authorization": self._authorization}
        try:
            return self._session.request(
                method,
                url,
                headers=headers,
                data=data,
                stream=True,
                timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
            )
        except requests.RequestException as error:
            raise self.unreachable(error) from error

    def _authenticate(self, response: requests.Response) -> bool:
        """Whether there is an `Authorization` for this challenge that may help."""
        import requests

        try:
            from oras.auth import get_auth_backend
            from oras.auth.utils import parse_auth_header
        except ImportError:
            raise MissingExtra("oras", "oci") from None
        logging.getLogger("oras.logger").addFilter(_below_error)
        challenge = response.headers.get("Www-Authenticate", "")
        scheme = challenge.partition(" ")[0].lower()
        kind = {"basic": "basic", "bearer": "token"}.get(scheme)
        if kind is None:
            return False
        backend = get_auth_backend(kind, self._session, insecure=self.plain_http)
        self._load_credentials(backend)
        if kind == "basic" and not getattr(backend, "_basic_auth", None):
            return False
        if kind == "token":
            self._check_realm(parse_auth_header(challenge).realm)
        try:
            # Always a new token: the old one may have expired, or be good for reading only.
            headers, changed = backend.authenticate_request(response, {}, refresh=True)
        except (requests.RequestException, ValueError) as error:
            raise self.unreachable(error) from error
        if changed:
            self._authorization = headers["Authorization"]
        return bool(changed)

    def _load_credentials(self, backend: Any) -> None:
        from oras.container import Container

        username, password = self._environ.get(USERNAME), self._environ.get(PASSWORD)
        if username and password:
            backend.set_basic_auth(username, password)
            return
        # oras merges files in the order of a set, so the one file is read here; what an entry
        # means, and calling credential helpers, is its part.
        backend._auth_config = _docker_config(self._environ)
        try:
            backend.load_configs(Container(f"{self.host}/{self._repository}"))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise Unavailable(
                f"the credentials for {self.host} in the docker config cannot be used: {error}",
                hint=f"log in again, or set {USERNAME} and {PASSWORD}",
            ) from error

    def _check_realm(self, realm: str | None) -> None:
        if not realm or not (realm.startswith("https://") or self.plain_http):
            raise Refused(
                f"{self.host} asks to fetch a token without TLS, from {realm!r}",
                hint="ask who runs the registry; --plain-http allows it",
            )

    def _not_let_in(self, response: requests.Response) -> Unavailable:
        had = "refuses these credentials" if self._authorization else "asks for credentials"
        return Unavailable(
            f"the registry {self.host} {had} for {self._repository}{said(response)}",
            hint=f"log in (docker, podman or oras login {self.host}: the docker config is read), "
            f"or set {USERNAME} and {PASSWORD}",
        )


def said(response: requests.Response, *, limit: int = 4096) -> str:
    """`: CODE message` from an OCI error document, or nothing; reads little of it."""
    import requests

    try:
        document = json.loads(next(response.iter_content(limit), b""))
        error = document["errors"][0]
        text = f": {error.get('code', '')} {error.get('message', '')}".rstrip(" :")
        return "".join(c if c.isprintable() else "?" for c in text)[:300]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    except requests.RequestException:
        return ""
    finally:
        response.close()


def _session(*, use_proxies: bool) -> requests.Session:
    try:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry
    except ImportError:
        raise MissingExtra("oras", "oci") from None
    # Only what changes nothing is sent again by itself.
    retry = Retry(
        total=_N_RETRIES,
        backoff_factor=0.2,
        status_forcelist=_RETRY_STATUS,
        allowed_methods=("GET", "HEAD"),
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    session.trust_env = use_proxies
    session.auth = _keep_as_is  # else a .netrc would replace our Authorization
    # Blobs are hashed as they are stored: no encoding may come between.
    session.headers["Accept-Encoding"] = "identity"
    return session


def _below_error(record: logging.LogRecord) -> bool:
    """Keep what it says of a missing credential helper; errors are raised here."""
    return record.levelno < logging.ERROR


def _keep_as_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _docker_config(environ: Mapping[str, str]) -> dict[str, Any]:
    """The first of podman's and docker's files that exists, as `oras` wants it."""
    named = (
        environ.get("REGISTRY_AUTH_FILE"),
        f"{environ['DOCKER_CONFIG']}/config.json" if "DOCKER_CONFIG" in environ else None,
        "~/.docker/config.json",
        f"{environ.get('XDG_RUNTIME_DIR', '/nowhere')}/containers/auth.json",
    )
    for name in named:
        path = Path(name).expanduser() if name else None
        if path is None or not path.is_file():
            continue
        try:
            config = json.loads(path.read_bytes())
            return {
                "auths": dict(config.get("auths", {})),
                "credsStore": config.get("credsStore"),
                "credHelpers": dict(config.get("credHelpers", {})),
            }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise Unavailable(
                f"{path} cannot be read as a docker config: {error}",
                hint=f"repair it, or set {USERNAME} and {PASSWORD}",
            ) from error
    return {"auths": {}, "credsStore": None, "credHelpers": {}}


def _reason(error: BaseException) -> str:
    """What the operating system or TLS said, from under the layers of three libraries."""
    found, seen = error, error.__cause__ or error.__context__
    while seen is not None:
        found, seen = seen, seen.__cause__ or seen.__context__
    text = getattr(found, "strerror", None) or str(found) or type(found).__name__
    return f"{text} ({type(found).__name__})"
