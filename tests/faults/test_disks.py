"""A disk that is full or read-only: a sentence that names the path, exit code 16, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pairgate.app.audit import verify
from pairgate.app.workspace import Workspace
from pairgate.errors import Unavailable
from tests.faults.conftest import ROOT
from tests.faults.operations import OPERATIONS
from tests.faults.state import problems, read_state

# The registry needs some 100 kB beside itself; above that, blobs, traces and reports are met.
_LIMITS_BYTES = (0, 1, 500, 30_000, 110_000, 150_000, 300_000)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str | int]]:
    """What every command said, on a disk of three megabytes (tests/faults/disks.py)."""
    folder = tmp_path_factory.mktemp("disks")
    done = subprocess.run(
        [
            "unshare",
            "--map-root-user",
            "--mount",
            sys.executable,
            "-m",
            "tests.faults.disks",
            folder,
        ],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str | int]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.mounts
@pytest.mark.parametrize("disk", ["full", "read-only"])
def test_every_command_says_what_is_wrong(said: list[dict[str, str | int]], disk: str) -> None:
    there = [s for s in said if s["disk"] == disk]
    assert len(there) > 10
    cause = {
        "full": ("no space is left", "no room for", "No space left"),
        "read-only": ("read-only", "Read-only"),
    }
    for answer in there:
        error = str(answer["err"])
        assert answer["code"] == 16, answer
        assert "/disk/home" in error, answer
        assert any(words in error for words in cause[disk]), answer
        assert len(error.strip().splitlines()) >= 2, f"no hint: {answer}"


@pytest.mark.slow
@pytest.mark.mounts
def test_nothing_is_lost(said: list[dict[str, str | int]]) -> None:
    for answer in said:
        if answer["disk"] in ("roomy", "freed", "mended"):
            assert answer["code"] == 0, answer
    heads = [
        json.loads(str(s["out"]))[0]["head"]
        for s in said
        if str(s["command"]).startswith("status --")
    ]
    assert len(heads) == 2
    assert all((head["production"], head["revision"]) == (1, 2) for head in heads)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["register", "evaluate", "promote", "slice"])
def test_files_that_may_not_grow(operation: str, tmp_path: Path) -> None:
    """A limit on file sizes (EFBIG) meets every write in turn, wherever a full disk would."""
    ws = Workspace.open(home=str(tmp_path / "home"), create=True)
    OPERATIONS[operation].prepare(ws)
    old = read_state(ws)
    ws.close()
    refused = 0
    for limit in _LIMITS_BYTES:
        said = _limited(operation, tmp_path / "home", limit)
        ws = Workspace.open(home=str(tmp_path / "home"))
        assert problems(ws) == []
        if said:
            refused += 1
            assert str(tmp_path / "home") in said, said
            assert read_state(ws).visible == old.visible
        ws.close()
    assert refused >= 2
    ws = Workspace.open(home=str(tmp_path / "home"))
    OPERATIONS[operation].run(ws)
    assert verify(ws).problems == ()
    assert problems(ws) == []
    ws.close()


def _limited(operation: str, home: Path, n_bytes: int) -> str:
    """What the operation says in a process whose files may not pass `n_bytes`; '' if all went
    well."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "it crashed"
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
            ws = Workspace.open(home=str(home))
            OPERATIONS[operation].run(ws)
            said = ""
        except Unavailable as error:
            said = str(error)
        except OSError as error:
            said = (
                f"{error.strerror} ({error.filename})"
                if error.errno == errno.EFBIG
                else repr(error)
            )
        except BaseException as error:
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    return answer
