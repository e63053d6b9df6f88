"""pairgate: a versioned registry and release gate for speculative-decoding pairs.

slice -> replay -> measure -> judge -> promote. The Python API is `pairgate.app`.
"""

__version__ = "0.1.0"
