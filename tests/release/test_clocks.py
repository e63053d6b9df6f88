"""Clocks go back, differ between machines, and are read before a lock is waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pairgate.app import inspect, release
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import VersionRef
from pairgate.domain.release import fold
from pairgate.errors import EvidenceStale
from tests.release.story import ALICE, LINE, add, evidence


def in_hours(hours: float) -> str:
    moment = datetime.now(UTC) + timedelta(hours=hours)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def test_where_the_line_stood_when_a_later_decision_has_an_earlier_time(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that decide at once read their clocks before either has the line."""
    version = add(ws, b"base", b"draft")
    ref = VersionRef.parse(str(version))
    monkeypatch.setattr(release, "now", lambda: in_hours(2))
    release.promote(ws, ref, override="first", actor=ALICE)
    monkeypatch.setattr(release, "now", lambda: in_hours(1))
    release.pin(ws, ref, actor=ALICE)
    whole = fold(LINE, ws.registry.decisions(LINE))
    assert inspect.head_at(ws, LINE, in_hours(1.5)) == whole
    assert inspect.head_at(ws, LINE, in_hours(3)) == whole
    before = inspect.head_at(ws, LINE, in_hours(0.5))
    assert (before.production, before.revision) == (None, whole.revision - 2)
    assert inspect.head_at(ws, LINE, "2000").revision == 0


def test_evidence_from_the_future_does_not_stay_fresh(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    ref = VersionRef.parse(str(version))
    evidence(ws, version, measured_at=in_hours(48))
    with pytest.raises(EvidenceStale, match="yet to come: a clock is wrong"):
        release.promote(ws, ref, actor=ALICE)
    evidence(ws, version, measured_at=in_hours(0.2))  # another machine's clock, a little ahead
    assert release.promote(ws, ref, actor=ALICE).head.production == 1


def test_a_verification_from_the_future_is_none(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    ref = VersionRef.parse(str(version))
    evidence(ws, version)
    ws.registry.record_verification(version.pair_digest, in_hours(24 * 400))
    with pytest.raises(EvidenceStale, match="yet to come"):
        release.promote(ws, ref, actor=ALICE)
    moved = release.promote(ws, ref, override="tonight", actor=ALICE)
    assert moved.decision is not None and "yet to come" in moved.decision.warnings[0]
