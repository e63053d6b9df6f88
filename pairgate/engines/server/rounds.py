"""A streamed answer and the server's counts, as the trace of one request.

Let r draft steps with a_i accepted tokens be reported, c tokens be completed and the answer arrive
in m chunks. A server that sends each step as a chunk has u = m − 1 − r steps without a draft; under
load it may join chunks, and then u is at least what the tokens need. The steps yield
1 + Σ(a_i + 1) + u tokens, of which `overrun` = that − c were cut off the last step by EOS, a stop
or max_tokens. An overrun outside of [0, a_r] contradicts itself: the request is excluded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.trace import Finish, RequestTrace, RoundState
from pairgate.domain.traffic import Request
from pairgate.engines.server.dialect import Contradiction, RequestCounts, StepCounts
from pairgate.engines.server.wire import Reply, Usage

Ints = NDArray[np.int64]


def trace_of(
    index: int,
    request: Request,
    reply: Reply,
    counts: RequestCounts | None,
    *,
    max_model_len: int | None,
) -> RequestTrace:
    """The trace; `counts` None is a server without a draft. What failed or contradicts itself is
    a trace with an error, never an exception."""
    if reply.error or reply.usage is None:
        return refused(index, request, reply.error or "no usage", reply, _failed_as(reply, request))
    usage = reply.usage
    wrong = _contradiction(request, reply, usage, max_model_len)
    if isinstance(counts, Contradiction):
        wrong = counts.reason
    if not wrong and isinstance(counts, StepCounts):
        wrong = _impossible(counts)
    if wrong:
        return refused(index, request, wrong, reply, Finish.EXCLUDED)
    n_after_first = usage.completion_tokens - 1
    if isinstance(counts, StepCounts):
        counts = _without_prefill(counts, reply, usage)
        emitted, state, proposed, accepted = _drafted_rounds(counts, reply, n_after_first)
        wrong = _overrun_error(counts, emitted, state, accepted)
        if wrong:
            return refused(index, request, wrong, reply, Finish.EXCLUDED)
    else:
        kind = RoundState.TARGET_ONLY if counts is None else RoundState.UNCOUNTED
        emitted = np.ones(n_after_first, np.int64)
        state = np.full(n_after_first, kind, np.int64)
        proposed = accepted = np.zeros(n_after_first, np.int64)
    return RequestTrace(
        index=index,
        request_id=request.id,
        domain=request.domain,
        session=request.session or "",
        temperature=request.sampling.temperature,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        ttft_ms=reply.ttft_ms,
        latency_ms=reply.latency_ms,
        finish=_finish(reply),
        cached_tokens=-1 if usage.cached_tokens is None else usage.cached_tokens,
        proposed=proposed.astype(np.int16),
        accepted=accepted.astype(np.int16),
        emitted=emitted.astype(np.int16),
        round_state=state.astype(np.uint8),
        round_ms=_round_ms(reply, emitted),
        tokens=np.array(reply.token_ids, np.int32),
    )


def refused(
    index: int, request: Request, error: str, reply: Reply | None, finish: Finish
) -> RequestTrace:
    """A request without an answer that counts."""
    usage = reply.usage if reply else None
    return RequestTrace(
        index=index,
        request_id=request.id,
        domain=request.domain,
        session=request.session or "",
        temperature=request.sampling.temperature,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        completion_tokens=0,
        ttft_ms=0.0,
        latency_ms=reply.latency_ms if reply else 0.0,
        finish=finish,
        error=error,
    )


def _failed_as(reply: Reply, request: Request) -> Finish:
    """A server that refuses what a request asks for has not failed at it."""
    return Finish.EXCLUDED if reply.status == 400 and request.unsupported else Finish.ERROR


def _contradiction(request: Request, reply: Reply, usage: Usage, max_model_len: int | None) -> str:
    if usage.completion_tokens < 1:
        return "the server counts no completion token in a whole answer"
    if usage.completion_tokens > request.max_tokens:
        return f"{usage.completion_tokens} tokens where {request.max_tokens} were asked for"
    if reply.token_ids and len(reply.token_ids) != usage.completion_tokens:
        return f"{len(reply.token_ids)} token ids streamed, {usage.completion_tokens} counted"
    full = max_model_len is not None and (
        usage.prompt_tokens + usage.completion_tokens >= max_model_len
    )
    short = usage.completion_tokens < request.max_tokens
    if reply.finish_reason == "length" and short and not full:
        return f"{usage.completion_tokens} of {request.max_tokens} tokens, ended for length"
    return ""


def _impossible(counts: StepCounts) -> str:
    if len(counts.drafted) != len(counts.accepted):
        return f"{len(counts.drafted)} steps drafted, {len(counts.accepted)} verified"
    bad = np.flatnonzero(counts.accepted > counts.drafted)
    if len(bad):
        i = int(bad[0])
        return f"step {i} accepted {counts.accepted[i]} of {counts.drafted[i]} proposed tokens"
    return ""


def _without_prefill(counts: StepCounts, reply: Reply, usage: Usage) -> StepCounts:
    """Without the step that is the prefill. vLLM runs the last token of a prompt, when that is all
    that is left of it, as a decoding step with placeholders for a draft, and reports it with
    nothing accepted; the first token is then one of the steps' and no chunk comes before them."""
    n_steps = len(counts.accepted)
    if n_steps == 0 or counts.accepted[0] != 0 or len(reply.chunk_tokens) > n_steps:
        return counts
    rest = usage.prompt_tokens - (usage.cached_tokens or 0)
    excess = int(counts.accepted.sum()) + n_steps - (usage.completion_tokens - 1)
    if rest == 1 or excess > counts.accepted[-1]:
        return StepCounts(drafted=counts.drafted[1:], accepted=counts.accepted[1:])
    return counts


def _drafted_rounds(
    counts: StepCounts, reply: Reply, n_after_first: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """(emitted, state, proposed, accepted) of every step; the last one may overrun."""
    accepted = counts.accepted.astype(np.int64)
    sizes = accepted + 1
    short = n_after_first - int(sizes.sum())
    by_chunks = len(reply.chunk_tokens) - 1 - len(sizes)
    n_plain = max(by_chunks, short, 0)
    at = _plain_positions(sizes, n_plain, reply.chunk_tokens[1:])
    emitted = np.insert(sizes, at, 1)
    state = np.insert(np.full(len(sizes), int(RoundState.DRAFTED)), at, int(RoundState.SKIPPED))
    proposed = np.insert(counts.drafted.astype(np.int64), at, 0)
    accepted = np.insert(accepted, at, 0)
    if len(emitted):
        emitted[-1] -= int(emitted.sum()) - n_after_first
    return emitted, state, proposed, accepted


def _plain_positions(sizes: Ints, n_plain: int, chunks: tuple[int, ...]) -> Ints:
    """Before which draft step each plain step stands: where a chunk of one token is not the next
    step's; what the chunks do not show stands at the end, where lengths run out."""
    found: list[int] = []
    step = 0
    for chunk in chunks:
        if len(found) == n_plain:
            break
        if step < len(sizes) and chunk == sizes[step]:
            step += 1
        elif chunk == 1:
            found.append(step)
        else:
            break
    found += [len(sizes)] * (n_plain - len(found))
    return np.array(found, np.int64)


def _overrun_error(counts: StepCounts, emitted: Ints, state: Ints, accepted: Ints) -> str:
    if not len(emitted):
        return ""
    size = int(accepted[-1]) + 1 if state[-1] == RoundState.DRAFTED else 1
    overrun = size - int(emitted[-1])
    room = size - 1
    if 0 <= overrun <= room:
        return ""
    return (
        f"the counts do not add up: {len(counts.accepted)} draft steps overrun the completion by "
        f"{overrun} tokens, at most {room} can have been cut"
    )


def _round_ms(reply: Reply, emitted: Ints) -> NDArray[np.float32]:
    """Time of each round since the previous one; rounds that arrived in one chunk share its time.

    NaN where the server does not tell which tokens a chunk holds.
    """
    if len(reply.chunk_tokens) < 2 or not len(emitted):
        return np.full(len(emitted), np.nan, np.float32)
    chunk_ends = np.cumsum(reply.chunk_tokens)
    chunk = np.searchsorted(chunk_ends, 1 + np.cumsum(emitted))
    chunk = np.minimum(chunk, len(chunk_ends) - 1)
    at = np.asarray(reply.chunk_ms)
    first, inverse, n_shared = np.unique(chunk, return_inverse=True, return_counts=True)
    gaps = np.diff(at[first], prepend=at[0])
    return (gaps[inverse] / n_shared[inverse]).astype(np.float32)


def _finish(reply: Reply) -> Finish:
    if reply.finish_reason == "length":
        return Finish.LENGTH
    return Finish.EOS if reply.stop_reason is None else Finish.STOP
