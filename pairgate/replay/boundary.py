"""Boundary requests: where lengths end, engines break."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pairgate.domain.evidence import BoundaryResult
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, TraceBatch
from pairgate.domain.traffic import Request, Sampling
from pairgate.replay.block import Block, Run, Tally, label, run_block


def boundary_pass(run: Run) -> tuple[BoundaryResult, ...]:
    """Lengths at the edge, an empty prompt, one token of output; in every arm, at concurrency 2."""
    cases = _boundary_cases(run)
    arms = (Arm.TARGET, Arm.SPEC) if run.has_draft else (Arm.TARGET,)
    results: list[BoundaryResult] = []
    for arm in arms:
        block = Block(
            key=f"boundary-{arm}",
            arm=arm,
            phase=Phase.BOUNDARY,
            concurrency=2,
            number=0,
            requests=tuple(enumerate(cases)),
            seed=run.plan.seed,
            stage=f"boundary, {label(arm)}",
            total=len(cases),
        )
        batch = run_block(run, block, Tally())
        results.extend(
            _judged(run, case, trace, arm) for case, trace in zip(cases, batch.rows(), strict=True)
        )
    return tuple(results)


def _boundary_cases(run: Run) -> tuple[Request, ...]:
    """Token ids run through the vocabulary: content does not matter at the edges."""
    high = max(2, min(run.pair.pair.target.architecture.vocab_size, 1000))
    lengths = sorted({run.max_model_len - d for d in (0, 1, run.k, run.k + 1)}, reverse=True)
    cases = [
        _case(
            f"prompt of max - {run.max_model_len - n}", tuple(1 + j % (high - 1) for j in range(n))
        )
        for n in lengths
        if n >= 1
    ]
    cases.append(_case("prompt of one token", (1,)))
    cases.append(_case("one token of output", (1,) * min(8, run.max_model_len - 1), max_tokens=1))
    empty = replace(_case("empty prompt", (1,)), token_ids=None, text="")
    return (*cases, empty)


def _case(name: str, ids: tuple[int, ...], *, max_tokens: int = 8) -> Request:
    return Request(
        id=name,
        domain="boundary",
        body="{}",
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0.0),
        token_ids=ids,
    )


def _judged(run: Run, case: Request, trace: RequestTrace, arm: Arm) -> BoundaryResult:
    """An answer within the room is right; where there is no room, or no token, a refusal is."""
    n = len(case.token_ids) if case.token_ids is not None else 0
    room = min(case.max_tokens, run.max_model_len - n)
    if trace.ok:
        ok = 1 <= trace.completion_tokens <= max(room, 1) and room > 0
        detail = f"{trace.completion_tokens} of at most {room} tokens"
    elif case.token_ids is None:
        ok = True
        detail = f"refused, so the prompt of one token is the nearest to it: {trace.error}"
    else:
        ok = room <= 0
        detail = trace.error
    return BoundaryResult(name=case.id, arm=arm, ok=ok, detail=detail)


def eos_at_once(acceptance: TraceBatch) -> tuple[BoundaryResult, ...]:
    """EOS as the first token cannot be forced; it is reported when the slice reaches it."""
    hit = (acceptance.finish == Finish.EOS) & (acceptance.completion_tokens == 1)
    if not hit.any():
        return ()
    name = str(acceptance.request_id[int(np.flatnonzero(hit)[0])])
    detail = f"{int(hit.sum())} requests of the slice, e.g. {name}"
    return (BoundaryResult(name="EOS at once", arm=acceptance.arm, ok=True, detail=detail),)
