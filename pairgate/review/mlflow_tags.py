"""What reviewers said in MLflow: the approving tag of a model version, read without MLflow.

`promote` asks, and may not pay for the import of MLflow, nor wait for a server that is dead: one
request with a deadline, or one look into the embedded store's SQLite file.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pairgate.errors import Unavailable
from pairgate.review.mlflow_client import without_password

APPROVE_TAG = "pairgate.approve"
DEADLINE_S = 3.0
_SOCKET_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 4 << 20
_PAIR_TAG = "pairgate.pair"
_SQLITE = "sqlite:///"
_QUERY = """
SELECT approving.value FROM model_version_tags AS approving JOIN model_version_tags AS pair
ON pair.name = approving.name AND pair.version = approving.version
WHERE approving.name = ? AND approving.key = ? AND pair.key = ? AND pair.value = ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A model version in MLflow: the registered model's name and the pair that it stands for."""

    line: str
    pair_digest: str


def approving_tags(tracking_uri: str, tagged: Tagged, environ: Mapping[str, str]) -> list[str]:
    """The values of `pairgate.approve` on the model versions of this pair.

    Raises `Unavailable` when MLflow does not answer within `DEADLINE_S`, or has no place that can
    be read in time (a database other than SQLite, a folder).
    """
    if tracking_uri.startswith(_SQLITE):
        return _from_sqlite(tracking_uri.removeprefix(_SQLITE), tagged)
    if not tracking_uri.startswith(("http://", "https://")):
        scheme = tracking_uri.partition(":")[0]
        raise Unavailable(f"tags are read from a server or a SQLite file, not from {scheme}")
    return _within_deadline(lambda: _from_server(tracking_uri, tagged, environ))


def approves(value: str, evaluation_digest: str) -> bool:
    """Whether a tag's value names the evaluation: its first 12 hex digits, or more of them."""
    said = value.strip().lower().removeprefix("sha256:")
    return len(said) >= 12 and evaluation_digest.removeprefix("sha256:").startswith(said)


def _from_sqlite(path: str, tagged: Tagged) -> list[str]:
    try:
        uri = f"file:{quote(path)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_SOCKET_TIMEOUT_S)) as connection:
            wanted = (tagged.line, APPROVE_TAG, _PAIR_TAG, tagged.pair_digest)
            return [str(value) for (value,) in connection.execute(_QUERY, wanted)]
    except sqlite3.Error as error:
        raise Unavailable(f"the embedded MLflow store cannot be read: {error}") from None


def _from_server(uri: str, tagged: Tagged, environ: Mapping[str, str]) -> list[str]:
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirect(HTTPRedirectHandler):  # it would carry the password elsewhere
        def redirect_request(self, *_: Any) -> None:
            return None

    query = f"name = '{tagged.line}' and tags.`{_PAIR_TAG}` = '{tagged.pair_digest}'"
    base = without_password(uri).rstrip("/")
    url = f"{base}/api/2.0/mlflow/model-versions/search?{urlencode({'filter': query})}"
    headers = _authorization(uri, environ)
    with build_opener(NoRedirect).open(
        Request(url, headers=headers), timeout=_SOCKET_TIMEOUT_S
    ) as answer:
        document = json.loads(answer.read(_MAX_ANSWER_BYTES))
    return [
        str(tag.get("value", ""))
        for version in document.get("model_versions", ())
        for tag in version.get("tags", ())
        if tag.get("key") == APPROVE_TAG
    ]


def _authorization(uri: str, environ: Mapping[str, str]) -> dict[str, str]:
    """As MLflow's own client does it."""
    parts = urlsplit(uri)
    user = parts.username or environ.get("MLFLOW_TRACKING_USERNAME")
    password = parts.password or environ.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {basic}"}
    token = environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _within_deadline(ask: Callable[[], list[str]]) -> list[str]:
    """The socket's timeout starts anew with every byte; this one does not."""
    found: list[str] = []
    failed: list[str] = []

    def run() -> None:
        try:
            found.extend(ask())
        except Exception as error:  # whatever a strange server answers, promote goes on
            failed.append(without_password(str(error)) or type(error).__name__)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if thread.is_alive():
        raise Unavailable(f"MLflow did not answer within {DEADLINE_S:g} s")
    if failed:
        raise Unavailable(f"MLflow could not be asked: {failed[0]}")
    return found
