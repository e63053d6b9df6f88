"""Uniforms keyed by request and output position, so that nothing depends on batch or order.

u[t, 0] draws the draft's proposal for output position t, u[t, 1] tests it, u[t, 2] draws the
recovered, bonus or plain token there. A position that was proposed and never tested is proposed
again with the same numbers in the next round: they influenced nothing that was emitted.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.traffic import Request

PROPOSE, TEST, RECOVER = 0, 1, 2


def uniforms(
    request: Request, n_positions: int, *, run_seed: int, with_draft: bool
) -> NDArray[np.float64]:
    """[n_positions, 3] in [0, 1), from Philox; the first rows do not depend on `n_positions`.

    Keyed by the request's own seed, else by the run's seed and the request's id. The two arms of
    one request get independent numbers.
    """
    seed = request.sampling.seed
    source = f"seed {seed}" if seed is not None else f"run {run_seed} request {request.id}"
    text = f"pairgate.uniforms.v1 {source} {'spec' if with_draft else 'target'}"
    digest = hashlib.sha256(text.encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))
    return generator.random((n_positions, 3))
