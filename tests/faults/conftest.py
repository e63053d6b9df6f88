from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.store.databases import postgres_template

__all__ = ["postgres_template"]
ROOT = Path(__file__).parents[2]
_QUIET = {"PAIRGATE_DELIVERY": "off", "PAIRGATE_MLFLOW": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended: the signal that killed it, or its traceback, or neither."""

    steps: tuple[str, ...]
    signal: int | None
    error: str


class Children:
    """Operations in children of one server process (tests/faults/server.py)."""

    def __init__(self) -> None:
        path = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
        environ = _QUIET | {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            env=os.environ | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, operation: str, home: Path, url: str | None = None, *, kill_at: int | None = None
    ) -> Ended:
        """Do the operation in `home`; with `kill_at`, die before that step."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"operation": operation, "home": str(home), "url": url, "kill_at": kill_at}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Ended(steps=tuple(answer["steps"]), signal=answer["signal"], error=answer["error"])

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    started = Children()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is delivered by itself, and there is no mirror."""
    for name, value in _QUIET.items():
        monkeypatch.setenv(name, value)
