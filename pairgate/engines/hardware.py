"""The hardware class of this machine's CPU, without torch: `init` needs it in a base install."""

from __future__ import annotations

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_LEVELS = (
    ("avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    ("avx2", {"avx2", "fma"}),
)


def cpu_hardware_class() -> str:
    """CPU architecture + instruction level, e.g. `x86_64-avx512`; the level decides which kernels
    torch takes, hence both speed and rounding."""
    machine = platform.machine().lower()
    flags = _flags()
    level = next((name for name, needed in _LEVELS if needed <= flags), None)
    return machine if level is None else f"{machine}-{level}"


def _flags() -> set[str]:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    found = next((line for line in lines if line.startswith("flags")), "")
    return set(found.partition(":")[2].split())
