"""Who acts, and how we know it."""

from __future__ import annotations

import base64
import json

import pytest

from pairgate.app.actor import current_actor, os_user
from pairgate.app.workspace import Workspace
from pairgate.errors import InvalidInput

SUBJECT = "repo:acme/models:ref:refs/heads/main"


def test_the_os_user_is_that_of_the_process(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("USER", "somebody-else")
    actor = current_actor(ws)
    assert (actor.name, actor.source) == (os_user(), "os-user")
    assert actor.name != "somebody-else"


def test_a_ci_job_is_known_by_its_subject(ws: Workspace) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"sub": SUBJECT}).encode()).decode().rstrip("=")
    ws.environ["PAIRGATE_OIDC_TOKEN"] = f"e30.{claims}.signature"
    assert (current_actor(ws).name, current_actor(ws).source) == (SUBJECT, "ci-oidc")
    ws.environ["PAIRGATE_OIDC_SUBJECT"] = "other"
    assert current_actor(ws).name == "other"


@pytest.mark.parametrize("token", ["x", "a.b.c", "e30.e30.x", "e30.W10.x"])
def test_a_broken_token_is_refused_rather_than_ignored(ws: Workspace, token: str) -> None:
    ws.environ["PAIRGATE_OIDC_TOKEN"] = token
    with pytest.raises(InvalidInput, match="JSON web token"):
        current_actor(ws)
