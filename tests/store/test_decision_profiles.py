"""The profiles of a decision: stored, chained, and invisible to older decisions."""

from __future__ import annotations

from pairgate.domain.canonical import sha256_digest
from pairgate.domain.release import Decision, Kind, fold
from pairgate.store.sql import SqlRegistry

AT = "2026-12-01T12:00:00.000000Z"
DIGESTS = (sha256_digest(b"a"), sha256_digest(b"b"))


def made(profiles: tuple[str, ...] = ()) -> Decision:
    return Decision(
        line="code",
        sequence=1,
        kind=Kind.SET,
        production=None,
        previous=None,
        version=None,
        at=AT,
        actor="alice",
        identity_source="os-user",
        profiles=profiles,
    )


def test_a_decision_without_them_has_the_hash_it_always_had() -> None:
    before = Decision(
        line="code",
        sequence=1,
        kind=Kind.SET,
        production=None,
        previous=None,
        version=None,
        at=AT,
        actor="alice",
        identity_source="os-user",
        profile_digest="sha256:" + "0" * 64,
    )
    # Computed before decisions had the field.
    assert before.sealed("").hash == (
        "sha256:be33c11a8144453a7ee9ef80efa3ad2fe8f79ed969efa9ee4997440d71cc4456"
    )
    assert len({made().sealed("").hash, made(DIGESTS).sealed("").hash}) == 2


def test_they_are_stored_and_the_head_carries_them(registry: SqlRegistry) -> None:
    registry.create_line("code", AT)
    assert registry.head("code").profiles == ()
    with registry.lock("code") as transaction:
        transaction.append(made(DIGESTS))
    (stored,) = registry.decisions("code")
    assert stored.profiles == DIGESTS
    assert registry.head("code").profiles == DIGESTS
    assert fold("code", [stored]) == registry.head("code")
