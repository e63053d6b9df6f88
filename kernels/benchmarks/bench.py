"""What the three kernel benchmarks share: timing in one run, rows that say where they come from.

Correctness comes first: each benchmark compares with the reference before it times anything.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One implementation; `n_bytes` of logits, each counted once, for the bandwidth that is
    printed on a GPU (0: not)."""

    name: str
    run: Callable[[], object]
    n_bytes: int = 0


def place() -> str:
    """Device and versions, for every row."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_name()
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    threads = torch.get_num_threads()
    return f"{device} | {threads} threads | torch {torch.__version__} | triton {triton}"


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def compare(title: str, variants: list[Variant], *, repeats: int = 7) -> None:
    """Median wall time in ms of each, taken in turns, and its ratio to the first."""
    times: dict[str, list[float]] = {v.name: [] for v in variants}
    for turn in range(repeats + 1):
        for variant in variants:
            wall_ms = _wall_ms(variant.run)
            if turn:  # the first turn warms up
                times[variant.name].append(wall_ms)
    first = statistics.median(times[variants[0].name])
    for variant in variants:
        ms = statistics.median(times[variant.name])
        on_gpu = variant.n_bytes and torch.cuda.is_available()
        rate = f" | {variant.n_bytes / ms / 1e6:8.1f} GB/s" if on_gpu else ""
        print(f"{title} | {variant.name:34} | {ms:9.2f} ms | x{first / ms:5.2f}{rate} | {place()}")


def copy_rate(n_bytes: int) -> Variant:
    """The roofline on a GPU: a copy reads and writes, both count."""
    source = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return Variant(name="copy", run=lambda: target.copy_(source), n_bytes=2 * n_bytes)


def _wall_ms(run: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def say_where() -> str:
    """The device to run on; without a GPU a note that only reference variants are compared."""
    if torch.cuda.is_available():
        return "cuda"
    print("no CUDA device: only torch variants are compared, the Triton kernels are not timed")
    torch.set_num_threads(min(2, torch.get_num_threads()))
    return "cpu"
