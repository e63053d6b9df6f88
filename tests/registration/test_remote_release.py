"""Promotion and rollback when the files are on an object store (moto's server stands in for S3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairgate.app import release
from pairgate.app.workspace import Workspace
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.pair import VersionRef
from pairgate.errors import IntegrityError, Unavailable
from tests.release.story import ALICE, LINE, add, evidence, new_line, put_in_production


@pytest.fixture
def line(tmp_path, s3, monkeypatch) -> Iterator[Workspace]:
    """v1 was in production, v2 is, v3 has a PASS; all files on the stand-in."""
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")
    monkeypatch.setenv("PAIRGATE_STORE_URL", f"s3://{s3.bucket}/pairs")
    workspace = Workspace.open(home=str(tmp_path / "home"), create=True)
    new_line(workspace)
    put_in_production(workspace, b"base", b"draft-1")
    put_in_production(workspace, b"base", b"draft-2")
    evidence(workspace, add(workspace, b"base", b"draft-3"))
    yield workspace
    workspace.close()


def test_a_dead_store_refuses_a_promotion_and_only_warns_a_rollback(line, s3, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    type(s3).clear_instance_cache()
    with pytest.raises(Unavailable) as refused:
        release.promote(line, VersionRef.parse("code@3"), actor=ALICE)
    assert refused.value.exit_code == 16
    moved = release.rollback(line, LINE, actor=ALICE)
    assert moved.head.production == 1
    assert "cannot be reached" in moved.decision.warnings[0]
    assert not (line.home / "store").exists()


def test_a_missing_object_refuses_both(line, s3) -> None:
    for content in (b"draft-3", b"draft-1"):
        s3.rm(f"{s3.bucket}/pairs/blobs/sha256/{sha256_digest(content)[7:]}")
    with pytest.raises(IntegrityError, match="missing") as refused:
        release.promote(line, VersionRef.parse("code@3"), actor=ALICE)
    assert refused.value.exit_code == 14
    with pytest.raises(IntegrityError, match="missing"):
        release.rollback(line, LINE, actor=ALICE)
    assert line.registry.head(LINE).production == 2


def test_disabling_and_promoting_work_as_with_a_local_store(line) -> None:
    disabled = release.disable(line, LINE, reason="bad draft", actor=ALICE)
    assert disabled.decision.warnings == ()
    release.enable(line, LINE, actor=ALICE)
    assert release.promote(line, VersionRef.parse("code@3"), actor=ALICE).head.production == 3
