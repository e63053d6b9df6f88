"""Runs a server as its child and sees to it that nothing of it outlives pairgate.

Started by path, with the standard library only. pairgate holds the other end of our standard
input: when that closes, because pairgate ended in whatever way, the server's processes get
SIGTERM, and SIGKILL after a grace. Orphans of the server come to us (subreaper), so its workers are
found too; if we are killed ourselves, the kernel terminates the server (parent-death signal).

    python supervisor.py GRACE_S COMMAND…
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run the server that argv names (seconds of grace, then its command) until it or we end;
    returns its exit code."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A signal to us ends the server first; the pipe is what normally tells us.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
    )
    try:
        _wait(server)
    except InterruptedError:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _end_all(grace_s)
    return server.returncode if server.returncode is not None else 0


def _interrupt(number: int, frame: object) -> None:
    raise InterruptedError


def _wait(server: subprocess.Popen[bytes]) -> None:
    """Until the server ends or pairgate's end of our input closes."""
    exited = os.pidfd_open(server.pid)
    select.select([sys.stdin.buffer, exited], [], [])
    server.poll()


def _end_all(grace_s: float) -> None:
    """SIGTERM to every descendant, SIGKILL to those that are left after the grace."""
    for pid in _descendants():
        _kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _reap() and time.monotonic() < deadline:
        time.sleep(0.05)
    while (left := _descendants()) or _reap():
        for pid in left:
            _kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap() -> bool:
    """Collect ended children; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants() -> list[int]:
    """Our living descendants, by walking /proc once."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name may hold spaces and parentheses; state and parent follow the last ")".
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    found: list[int] = []
    wanted = {os.getpid()}
    while wanted:
        wanted = {pid for pid, parent in parents.items() if parent in wanted}
        found.extend(wanted)
    return found


if __name__ == "__main__":
    sys.exit(main())
