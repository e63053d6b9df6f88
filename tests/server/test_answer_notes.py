"""What the verdict says about answers that failed or came without counts."""

from __future__ import annotations

import numpy as np
from traffic import a_request

from pairgate.app.answer_notes import answer_notes
from pairgate.domain.trace import Arm, Finish, Phase, TraceBatch
from pairgate.engines.server.dialect import Uncounted
from pairgate.engines.server.rounds import refused, trace_of
from pairgate.engines.server.wire import Reply, Usage


def test_reasons_and_uncounted_answers_are_said_with_their_number() -> None:
    stopped = Reply(
        finish_reason="stop",
        stop_reason="x",
        usage=Usage(prompt_tokens=2, completion_tokens=3),
        token_ids=(1, 2, 3),
        chunk_tokens=(1, 2),
        chunk_ms=(1.0, 2.0),
    )
    rows = [
        trace_of(0, a_request(0), stopped, Uncounted(reason="stop"), max_model_len=None),
        refused(1, a_request(1), "no progress for 5 s after 3 tokens", None, Finish.ERROR),
        refused(2, a_request(2), "no progress for 5 s after 9 tokens", None, Finish.ERROR),
        refused(3, a_request(3), "HTTP 500: busy", None, Finish.ERROR),
    ]
    batch = TraceBatch.from_rows(
        rows,
        arm=Arm.SPEC,
        phase=Phase.ACCEPTANCE,
        concurrency=1,
        block=0,
        wall_s=1.0,
        definition="vllm.per_request.v1",
    )
    failed, uncounted = answer_notes(batch, "vllm")
    assert "2 × no progress for 5 s; 1 × HTTP 500: busy" in failed
    assert uncounted.startswith("1 of 4 answers came without counts")
    assert answer_notes(batch.where(np.zeros(4, bool)), "vllm") == ()
