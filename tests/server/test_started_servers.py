"""Servers that pairgate starts: they answer, their failures are shown, and nothing outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from traffic import a_profile, a_request, generate

from pairgate.engines.server import ServerEngine, Started
from pairgate.engines.server.places import launch_with
from pairgate.engines.server.process import ServerProcess, existing_python, free_port
from pairgate.engines.server.room import PeakOfProcesses
from pairgate.engines.server.vllm import VllmDialect
from pairgate.errors import InvalidInput, Unavailable
from pairgate.ports import EngineLimits

FAKE = Path(__file__).with_name("fake_vllm.py")
LIMITS = EngineLimits(max_model_len=512, max_concurrency=4, seed=1)
# A server with a worker of its own that does not care for SIGTERM.
STUBBORN = """
import http.server, os, signal, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print("worker", worker.pid, "server", os.getpid(), flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def engine(*arguments: str) -> ServerEngine:
    dialect, profile = VllmDialect(), a_profile(*arguments)
    launch = (sys.executable, str(FAKE))
    return ServerEngine(dialect, Started(dialect, profile, launch), profile)


@contextmanager
def started(*arguments: str) -> Iterator[ServerEngine]:
    found = engine(*arguments)
    try:
        yield found
    finally:
        found.close()


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def gone(pids: list[int], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while living(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not living(pids)


def test_both_arms_run_side_by_side_and_end_with_the_engine() -> None:
    requests = [a_request(i) for i in range(6)]
    with started() as found:
        drafted = generate(found, requests)
        plain = generate(found, requests, with_draft=False)
        info = found.describe()
        pids = [process.pid for process, _ in found._places._running.values()]  # type: ignore[attr-defined]
        assert len(living(pids)) == 2
    assert [t.tokens.tolist() for t in drafted] == [t.tokens.tolist() for t in plain]
    assert (info.name, info.version, info.dtype) == ("vllm", "0.32.0", "float32")
    assert "started side by side" in info.resolved
    assert gone(pids)


def test_a_start_is_no_part_of_a_blocks_duration() -> None:
    with started() as found:
        begin, real = found.clock(), time.perf_counter()
        generate(found, [a_request(i) for i in range(4)])
        took, waited = found.clock() - begin, time.perf_counter() - real
    assert 0.0 < took < 0.5 * waited


def test_a_server_that_does_not_start_shows_its_log() -> None:
    with started("--fault", "no start") as found, pytest.raises(Unavailable) as caught:
        generate(found, [a_request(0)])
    assert "the model type foo is not supported" in caught.value.message
    assert "exit code" in caught.value.message


def test_a_server_that_dies_in_a_block_is_said_with_its_log() -> None:
    with (
        started("--fault", "die", "--from-request", "4") as found,
        pytest.raises(Unavailable, match="ended by itself") as caught,
    ):
        generate(found, [a_request(i) for i in range(12)])
    assert "the same command goes on" in str(caught.value.hint)


def test_the_worst_case_is_measured_on_the_servers_processes() -> None:
    with started() as found:
        generate(found, [a_request(0)])
        use = found.stress(2, with_draft=True)
    assert use.kind == "server"  # type: ignore[union-attr]
    assert 10**7 < use.peak_bytes < 10**9  # type: ignore[union-attr]
    assert use.worst_case_reached  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_pairgate_ends(tmp_path: Path, number: signal.Signals) -> None:
    server = tmp_path / "stubborn.py"
    server.write_text(STUBBORN)
    port = free_port()
    # Short grace, so that the stubborn worker's SIGKILL is not waited for.
    script = f"""
import os, sys, time
import pairgate.engines.server.process as p
p._GRACE_S = 0.5
s = p.ServerProcess.start([sys.executable, {str(server)!r}, "{port}"], environment=dict(os.environ),
    health_url="http://127.0.0.1:{port}/", timeout_s=20, what="it")
print(s.log_text().split()[1], s.log_text().split()[3], s.pid, flush=True)
time.sleep(600)
"""
    pairgate = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert pairgate.stdout is not None
    pids = [int(word) for word in pairgate.stdout.readline().split()]
    assert len(living(pids)) == 3
    pairgate.send_signal(number)
    pairgate.wait(20)
    pairgate.stdout.close()
    assert gone(pids)


def test_the_supervisors_own_death_ends_the_server(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(STUBBORN.replace("SIG_IGN", "SIG_DFL"))
    port = free_port()
    process = ServerProcess.start(
        [sys.executable, str(server), str(port)],
        environment=dict(os.environ),
        health_url=f"http://127.0.0.1:{port}/",
        timeout_s=20,
        what="it",
    )
    words = process.log_text().split()
    os.kill(process.pid, signal.SIGKILL)
    assert gone([int(words[3])])
    process.stop()
    os.kill(int(words[1]), signal.SIGKILL)  # an orphan of a killed supervisor's server


def test_an_environment_is_named_by_its_folder_or_interpreter(tmp_path: Path) -> None:
    here = Path(sys.executable)
    assert existing_python(here) == here
    assert existing_python(here.parent.parent) == here.parent.parent / "bin" / "python"
    with pytest.raises(InvalidInput, match="is no Python"):
        existing_python(tmp_path)
    with pytest.raises(InvalidInput, match="starts nothing"):
        launch_with(VllmDialect(), python=None, command="no-such-program serve")


def test_shared_pages_are_counted_once() -> None:
    with PeakOfProcesses(os.getpid()) as memory:
        held = bytearray(50_000_000)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(0.5)
    assert memory.peak_bytes > 50_000_000
