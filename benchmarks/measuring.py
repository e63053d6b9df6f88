"""How long measuring and judging takes: one acceptance pass of many requests, the default policy.

python -m benchmarks.measuring                       100,000 requests in six domains
python -m benchmarks.measuring --requests 10000
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.gate_traffic import SHAPES, generator, simulate_batch
from benchmarks.gate_whole import BOUNDARY, ENGINE, FIDELITY, MEMORY
from pairgate.domain.evidence import AcceptancePlan
from pairgate.domain.recorded import Recorded
from pairgate.domain.trace import TraceBatch
from pairgate.judge import judge
from pairgate.measure import measure
from pairgate.policyfile import preset

DOMAINS = tuple("abcdef")
_CHUNK = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds, and the rounds that were looked at."""

    n_requests: int
    n_rounds: int
    measure_s: float
    judge_s: float

    @property
    def total_s(self) -> float:
        return self.measure_s + self.judge_s


def acceptance_pass(n: int, seed: int) -> TraceBatch:
    """`n` requests of mild traffic over six domains."""
    rng, parts = generator(seed, "measuring"), []
    for begin in range(0, n, _CHUNK):
        drawn = SHAPES[0].draw(rng, min(_CHUNK, n - begin))
        domain = np.array(DOMAINS)[np.arange(len(drawn.acceptance)) % len(DOMAINS)]
        parts.append(simulate_batch(drawn.acceptance, drawn.max_tokens, rng, domain=domain))
    return TraceBatch.concat(parts)


def timed(n: int, *, seed: int = 1) -> Took:
    """Measure and judge `n` requests by the default policy."""
    batch, policy = acceptance_pass(n, seed), preset("default")
    recorded = Recorded(
        boundary=BOUNDARY,
        acceptance=batch,
        speed=(),
        control=(),
        engine=ENGINE,
        max_model_len=512,
        memory=(MEMORY,),
        planned=AcceptancePlan(n_requests=n, domains=DOMAINS, longest_unit_tokens=256),
    )
    began = time.perf_counter()
    found = measure(recorded, policy=policy, fidelity=FIDELITY)
    measured = time.perf_counter()
    verdict = judge(
        found, policy, incumbent_same_target=None, concurrencies=(8,), engine=ENGINE.name
    )
    judged = time.perf_counter()
    # A timing counts only if the answer is one: without speed blocks it must stay undecided.
    assert verdict.outcome.value == "INCONCLUSIVE", verdict.blocking
    return Took(
        n_requests=n,
        n_rounds=len(batch.proposed),
        measure_s=measured - began,
        judge_s=judged - measured,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    took = timed(options.requests, seed=options.seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{took.n_requests} requests, {took.n_rounds} rounds: measured in {took.measure_s:.2f} s, "
        f"judged in {took.judge_s:.3f} s (CPU {time.process_time():.1f} s in all, peak "
        f"{peak:.2f} GiB; {os.cpu_count()} cores, {platform.machine()})"
    )


if __name__ == "__main__":
    main()
