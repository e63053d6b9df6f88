"""Who acts: a name, and how we know it."""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import TYPE_CHECKING

from pairgate.domain.release import Actor
from pairgate.errors import InvalidInput

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace


def current_actor(ws: Workspace) -> Actor:
    """The CI job's OIDC subject, else the role that PostgreSQL let in, else the OS user.

    The subject comes from PAIRGATE_OIDC_SUBJECT or from the `sub` of the token in
    PAIRGATE_OIDC_TOKEN, whose signature is not checked here: the job could have said anything,
    and the history names the source for that reason. The OS user is that of the process, not
    what LOGNAME says.
    """
    subject = ws.environ.get("PAIRGATE_OIDC_SUBJECT") or _subject(ws.environ)
    if subject:
        return Actor(name=subject, source="ci-oidc")
    role = ws.registry.database_role()
    if role is not None:
        return Actor(name=role, source="database-role")
    return Actor(name=os_user(), source="os-user")


def os_user() -> str:
    """Name of the user that this process runs as."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without a passwd entry for this id
        return f"uid-{os.getuid()}"


def _subject(environ: dict[str, str]) -> str | None:
    token = environ.get("PAIRGATE_OIDC_TOKEN")
    if not token:
        return None
    try:
        claims = token.split(".")[1]
        padded = claims + "=" * (-len(claims) % 4)
        return str(json.loads(base64.urlsafe_b64decode(padded))["sub"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise InvalidInput(
            "PAIRGATE_OIDC_TOKEN is not a JSON web token with a subject",
            hint="unset it, or pass the id token that the CI gave to the job",
        ) from error
