"""Do the requests' own counts agree with the server's counters over the same block?"""

from __future__ import annotations

from dataclasses import dataclass

from pairgate.engines.server.dialect import Counters, RequestCounts, StepCounts
from pairgate.engines.server.wire import Reply
from pairgate.errors import InvalidEvaluation


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums over the answers of one block; `n_open` answers add no counts of their own: failed,
    ended by a stop string, or excluded because they contradict themselves."""

    n_answers: int = 0
    n_failed: int = 0
    n_open: int = 0
    n_generated: int = 0
    n_drafts: int = 0
    n_draft_tokens: int = 0
    n_accepted: int = 0

    def add(self, reply: Reply, counts: RequestCounts | None, *, excluded: bool) -> None:
        if reply.error or reply.usage is None:
            self.n_failed += 1
            self.n_open += 1
            return
        self.n_answers += 1
        self.n_generated += reply.usage.completion_tokens
        if isinstance(counts, StepCounts) and not excluded:
            self.n_drafts += len(counts.drafted)
            self.n_draft_tokens += int(counts.drafted.sum())
            self.n_accepted += int(counts.accepted.sum())
        elif counts is not None:
            self.n_open += 1

    def settled(self, moved: Counters) -> bool:
        """Whether the counters hold everything that was answered; they follow a moment later."""
        pairs = (
            (moved.n_finished, self.n_answers),
            (moved.n_generated, self.n_generated),
            (moved.n_drafts, self.n_drafts),
        )
        caught_up = all(theirs is None or theirs >= ours for theirs, ours in pairs)
        return caught_up and moved.n_in_flight <= self.n_failed

    def require_agreement(self, moved: Counters, *, version: str, url: str) -> None:
        """Raises `InvalidEvaluation` when somebody else used the server, or when the server's
        totals are not the sum of what it told each request."""
        self._require_alone(moved, url)
        drafting = (
            ("draft steps", self.n_drafts, moved.n_drafts),
            ("drafted tokens", self.n_draft_tokens, moved.n_draft_tokens),
            ("accepted tokens", self.n_accepted, moved.n_accepted),
        )
        for what, ours, theirs in drafting:
            if theirs is None or ours == theirs or (self.n_open and theirs > ours):
                continue
            raise InvalidEvaluation(
                f"the requests of this block report {ours} {what}, the counters of the server "
                f"(version {version}) moved by {theirs}",
                hint="numbers that contradict each other are no evidence; is something between "
                "pairgate and the server, or are there several engines behind it?",
            )

    def _require_alone(self, moved: Counters, url: str) -> None:
        others = 0 if moved.n_finished is None else moved.n_finished - self.n_answers
        # What failed here may still be running, or have been finished or aborted, there.
        if others > self.n_failed or moved.n_in_flight > self.n_failed:
            raise InvalidEvaluation(
                f"other traffic reached {url} during the block: it finished {moved.n_finished} "
                f"requests, {self.n_answers} of them ours; {moved.n_in_flight} are still in flight",
                hint="keep other users away from a server that is measured",
            )
        generated = moved.n_generated
        # After a stop string the engine generates on until it is told.
        whole = not self.n_failed and not self.n_open
        if generated is not None and whole and generated != self.n_generated:
            raise InvalidEvaluation(
                f"{url} generated {generated} tokens during the block, {self.n_generated} of them "
                "for us",
                hint="keep other users away from a server that is measured",
            )
