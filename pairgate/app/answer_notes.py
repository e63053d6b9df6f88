"""What a reader of the verdict has to know about answers that do not count as others do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from pairgate.app.engines import SERVERS
from pairgate.domain.trace import RoundState

if TYPE_CHECKING:
    from pairgate.domain.trace import TraceBatch


def answer_notes(acceptance: TraceBatch, engine: str) -> tuple[str, ...]:
    """Why requests of the acceptance pass failed or were excluded, how many answers came without
    counts, and what a serving `engine` cannot do."""
    acts = engine not in SERVERS or not (acceptance.round_state == RoundState.DRAFTED).any()
    fallback = (
        f"fallback did not act: {engine} cannot leave speculation for one request; its share is "
        "what the rule would have done"
    )
    return (*_failures(acceptance), *_uncounted(acceptance), *(() if acts else (fallback,)))


def _failures(batch: TraceBatch) -> tuple[str, ...]:
    errors = Counter(str(e).split(" after ")[0] for e in batch.error[~batch.ok])
    if not errors:
        return ()
    reasons = "; ".join(f"{n} × {reason}" for reason, n in errors.most_common(3))
    rest = sum(errors.values()) - sum(n for _, n in errors.most_common(3))
    more = f"; {rest} for other reasons" if rest else ""
    return (f"failed or excluded in the acceptance pass: {reasons}{more}",)


def _uncounted(batch: TraceBatch) -> tuple[str, ...]:
    rows = batch.round_request[batch.round_state == RoundState.UNCOUNTED]
    n = len(np.unique(rows))
    if not n:
        return ()
    return (
        f"{n} of {len(batch)} answers came without counts of their draft steps (they ended by a "
        "stop string): the acceptance is that of the others",
    )
