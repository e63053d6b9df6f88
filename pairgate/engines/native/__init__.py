"""The native engine (needs the extra `native`: torch and transformers)."""

from __future__ import annotations

import os

# Read when OpenMP starts, so before torch: threads that spin at every barrier stand nearly still
# as soon as another process wants a core; sleeping waits took the same time on an idle machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from pairgate.errors import MissingExtra

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as _error:
    raise MissingExtra(_error.name or "torch", "native") from _error

from pairgate.engines.native.engine import NativeEngine, hardware_class

__all__ = ["NativeEngine", "hardware_class"]
