"""The run folder: resume, give back, exclude."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairgate.app.runs import open_run
from pairgate.errors import Conflict

KEY = "sha256:" + "a" * 64


class Attempts:
    """Counts as the registry does."""

    def __init__(self) -> None:
        self.started = 0
        self.given_back: list[int] = []

    def start(self, _at: str) -> int:
        self.started += 1
        return self.started

    def run(self, root: Path, key: str = KEY):  # type: ignore[no-untyped-def]
        return open_run(
            root,
            label="line@1",
            key=key,
            at="2026-01-01T00:00:00Z",
            start_attempt=self.start,
            abandon=self.given_back.append,
        )


def _store_block(traces: Path) -> None:
    traces.mkdir(exist_ok=True)
    (traces / "block.parquet").write_bytes(b"x")


def test_a_finished_run_is_followed_by_the_next_attempt(tmp_path: Path) -> None:
    attempts = Attempts()
    with attempts.run(tmp_path) as first:
        _store_block(first.traces_dir)
        first.finish()
    with attempts.run(tmp_path) as second:
        assert (first.attempt, second.attempt) == (1, 2)
        assert not second.resumed
        assert second.folder != first.folder


def test_a_number_that_was_given_back_never_meets_the_old_blocks(tmp_path: Path) -> None:
    with Attempts().run(tmp_path) as broken:
        _store_block(broken.traces_dir)
        broken.finish()
    with Attempts().run(tmp_path) as again:
        assert (again.attempt, again.resumed) == (1, False)
        assert not again.traces_dir.exists()


def test_a_broken_run_with_stored_blocks_resumes_as_the_same_attempt(tmp_path: Path) -> None:
    attempts = Attempts()
    with pytest.raises(RuntimeError), attempts.run(tmp_path) as first:
        _store_block(first.traces_dir)
        raise RuntimeError("killed")
    with attempts.run(tmp_path) as again:
        assert again.resumed
        assert (again.attempt, again.folder) == (1, first.folder)
    assert attempts.given_back == []


def test_a_run_that_stored_nothing_gives_its_attempt_back(tmp_path: Path) -> None:
    attempts = Attempts()
    with pytest.raises(RuntimeError), attempts.run(tmp_path) as run:
        raise RuntimeError("the engine did not start")
    assert attempts.given_back == [1]
    assert not run.folder.exists()


def test_another_key_never_resumes_stored_blocks(tmp_path: Path) -> None:
    attempts = Attempts()
    with pytest.raises(RuntimeError), attempts.run(tmp_path) as run:
        _store_block(run.traces_dir)
        raise RuntimeError("killed")
    with attempts.run(tmp_path, key="sha256:" + "b" * 64) as other:
        assert not other.resumed


def test_two_at_once_are_told_apart(tmp_path: Path) -> None:
    attempts = Attempts()
    with attempts.run(tmp_path), pytest.raises(Conflict, match="right now"):
        attempts.run(tmp_path).__enter__()
    assert attempts.started == 1
