"""Memory of servers on this machine: may two run side by side, and how much does one take."""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from pairgate.domain.pair import ModelRef
from pairgate.domain.profile import ServingProfile
from pairgate.engines.hardware import cpu_hardware_class
from pairgate.ports import EngineLimits, MaterialisedPair

# What a Python process with torch and an API server holds before any weight, measured on vLLM
# 0.32 for CPU: 1.2 GiB in three processes.
_PROCESS_BYTES = 3 * 2**29
_CPU_CLASSES = ("x86_64", "aarch64", "arm64")
_HALF_A_GPU = 0.47
_SAMPLE_S = 0.2


def may_run_side_by_side(
    pair: MaterialisedPair, profile: ServingProfile, limits: EngineLimits
) -> bool:
    """On a CPU: where both fit into the memory that is free now. On a GPU: where the profile
    lets each take less than half of it (engines take what they are allowed to)."""
    if not is_cpu(profile):
        return _gpu_share(profile.arguments) <= _HALF_A_GPU
    models = [pair.pair.target, *((pair.pair.draft,) if pair.pair.draft else ())]
    weights = sum(weight_bytes(m, 4) for m in models)
    kv = sum(m.architecture.kv_bytes_per_token(4) for m in models)
    cache = max(2**30, 2 * kv * limits.max_model_len * limits.max_concurrency)
    return 2 * (weights + cache + _PROCESS_BYTES) < available_bytes()


def is_cpu(profile: ServingProfile) -> bool:
    """Whether the profile is for a CPU: its hardware class begins with an architecture."""
    return profile.hardware_class.startswith(_CPU_CLASSES)


def hardware_class_here(profile: ServingProfile) -> str:
    """What a server of this profile runs on here: the CPU's class, or the GPU's name × the number
    that the profile uses. Without a GPU it is the CPU, whatever the profile says."""
    if is_cpu(profile) or shutil.which("nvidia-smi") is None:
        return cpu_hardware_class()
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    names = asked.stdout.split("\n")
    if asked.returncode or not names[0]:
        return cpu_hardware_class()
    count = profile.tensor_parallel_size * profile.pipeline_parallel_size
    return f"{names[0].strip().replace(' ', '-').lower()}x{count}"


def weight_bytes(model: ModelRef, element_bytes: int) -> int:
    """Bytes of the weights in memory, from the number of parameters."""
    return model.architecture.n_parameters * element_bytes


def available_bytes() -> int:
    """Memory that can be had now, without swapping; 0 where the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


class PeakOfProcesses:
    """Peak of the memory that the descendants of one process hold, sampled in a thread.

    Proportional set size: pages that processes share are counted once.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakOfProcesses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def peak_bytes(self) -> int:
        return self._peak

    def _sample(self) -> None:
        while True:
            self._peak = max(self._peak, sum(map(_held_bytes, _family(self._root))))
            if self._ended.wait(_SAMPLE_S):
                return


def _family(root: int) -> list[int]:
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text("ascii").split())
    return found


def _held_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _gpu_share(arguments: tuple[str, ...]) -> float:
    for i, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == "--gpu-memory-utilization":
            text = value if equals else "".join(arguments[i + 1 : i + 2])
            with suppress(ValueError):
                return float(text)
    return 1.0
