"""The batched decoder: many requests at once, ragged, each with its own sampling parameters.

It must equal `reference.decode_reference` row by row. Rows stand in one list whose order is also
their place in both KV caches: the first `n_drafting` rows speculate, the others decode plainly
(fallen back, beyond the draft's context, or no draft at all), so every pass takes a contiguous
range of rows. A finished row is replaced in place. The host waits for the device once per round
and group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pairgate.domain.policy import FallbackSettings
from pairgate.domain.trace import RequestTrace, RoundState
from pairgate.domain.traffic import Request
from pairgate.engines.native.loading import LoadedModel
from pairgate.engines.native.passes import (
    DraftRound,
    Passes,
    PlainRound,
    RoundInput,
)
from pairgate.engines.native.randomness import uniforms
from pairgate.engines.native.row import Ends, Row, failed
from pairgate.errors import InvalidInput
from pairgate.stats.fallback_rule import FallbackState
from pairgate_kernels.sample.reference import SamplingRows

NOT_FINITE = "NaN or infinite logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """`k` proposals per round; `n_rows` requests in flight; lengths in tokens."""

    k: int
    n_rows: int
    max_model_len: int
    run_seed: int
    with_draft: bool
    greedy_draft: bool = False
    fallback: FallbackSettings | None = None
    watchdog_s: float = 300.0


class BatchedDecoder:
    """Runs requests through a pair; one object per run."""

    def __init__(
        self,
        target: LoadedModel,
        draft: LoadedModel | None,
        settings: DecoderSettings,
        *,
        ends: Ends,
        encode: Callable[[Request], list[int]],
        common_vocab: int | None = None,
    ) -> None:
        self._settings = settings
        self._ends = ends
        self._encode = encode
        self._draft_positions = draft.max_positions if draft else 0
        self._vocab_size = target.vocab_size
        self._passes = Passes(
            target,
            draft if settings.with_draft else None,
            n_rows=settings.n_rows,
            n_positions=settings.max_model_len + settings.k + 1,
            greedy_draft=settings.greedy_draft,
            common_vocab=common_vocab,
        )
        self._rows: list[Row] = []
        self._n_drafting = 0
        self._samplings: tuple[SamplingRows, SamplingRows] | None = None

    @property
    def kv_bytes(self) -> tuple[int, int]:
        """Bytes of the target's and of the draft's cache."""
        return self._passes.kv_bytes

    def run(self, requests: Iterable[tuple[int, Request]]) -> Iterator[RequestTrace]:
        """Yields traces as they finish; a request that fails is yielded, not raised."""
        waiting = iter(requests)
        done: list[RequestTrace] = []
        while True:
            while len(self._rows) < self._settings.n_rows:
                item = next(waiting, None)
                if item is None:
                    break
                row = self._admit(*item, len(self._rows), done)
                if row is not None:
                    self._insert(row)
                yield from _drained(done)
            if not self._rows:
                return
            # Rows, not places: filling one place may move another row.
            ended = [self._rows[at] for at in self._round(done)]
            yield from _drained(done)
            for row in ended:
                self._refill(self._rows.index(row), waiting, done)
                yield from _drained(done)

    # Admission ----------------------------------------------------------------------------------

    def _admit(self, index: int, request: Request, at: int, done: list[RequestTrace]) -> Row | None:
        """Prefill into cache row `at`; None when the request already ended (then it is in done)."""
        admitted_s = time.perf_counter()
        try:
            row = self._new_row(index, request, admitted_s)
        except InvalidInput as error:
            done.append(failed(index, request, str(error)))
            return None
        try:
            token, margin, finite = self._passes.prefill(
                row.prompt, at, _sampling_of([row], self._passes.device), row.uniforms[0]
            )
        except RuntimeError as error:  # out of memory above all
            done.append(row.trace(time.perf_counter(), f"prefill: {_first_line(error)}"))
            return None
        now_s = time.perf_counter()
        if not finite:
            self._passes.clear(at)
            done.append(row.trace(now_s, f"{NOT_FINITE} of the target at output position 0"))
            return None
        row.first_token(token, margin, now_s, self._ends)
        if row.finish is not None:
            done.append(row.trace(now_s))
            return None
        if row.state is RoundState.DRAFTED:
            self._passes.prefill_draft(row.prompt, at, 0)
        return row

    def _new_row(self, index: int, request: Request, admitted_s: float) -> Row:
        s = self._settings
        if request.unsupported:
            raise InvalidInput(
                f"the native engine does not honour {', '.join(request.unsupported)}",
                hint="evaluate such requests with a serving engine",
            )
        prompt = self._encode(request)
        if not prompt:
            raise InvalidInput("the prompt has no tokens")
        if len(prompt) >= s.max_model_len:
            raise InvalidInput(
                f"the prompt has {len(prompt)} tokens, max_model_len {s.max_model_len} leaves no "
                "room for output"
            )
        if not 0 <= min(prompt) <= max(prompt) < self._vocab_size:
            raise InvalidInput(
                f"the prompt has token ids outside 0 to {self._vocab_size - 1}: "
                f"{min(prompt)} to {max(prompt)}"
            )
        limit = min(request.max_tokens, s.max_model_len - len(prompt))
        return Row(
            index=index,
            request=request,
            prompt=prompt,
            limit=limit,
            uniforms=uniforms(
                request, limit + s.k + 1, run_seed=s.run_seed, with_draft=s.with_draft
            ),
            state=self._first_state(len(prompt)),
            admitted_s=admitted_s,
            last_s=admitted_s,
            fallback=FallbackState(s.fallback) if s.fallback and s.with_draft else None,
        )

    def _first_state(self, prompt_tokens: int) -> RoundState:
        if not self._settings.with_draft:
            return RoundState.TARGET_ONLY
        # After prefill the text has one token more; the draft must see all of it.
        return RoundState.DRAFTED if prompt_tokens < self._draft_positions else RoundState.SKIPPED

    # Order of the rows --------------------------------------------------------------------------

    def _insert(self, row: Row) -> None:
        """The row was prefilled at the end of the list; bring it to its group."""
        self._rows.append(row)
        if row.state is RoundState.DRAFTED:
            self._exchange(len(self._rows) - 1, self._n_drafting)
            self._n_drafting += 1
        self._samplings = None

    def _refill(
        self, at: int, waiting: Iterator[tuple[int, Request]], done: list[RequestTrace]
    ) -> None:
        """Row `at` has ended: put the next request into its place, or close the gap."""
        drafting = at < self._n_drafting
        self._samplings = None
        while (item := next(waiting, None)) is not None:
            row = self._admit(*item, at, done)
            if row is None:
                continue
            self._rows[at] = row
            if drafting and row.state is not RoundState.DRAFTED:
                self._leave_drafting(at)
            elif not drafting and row.state is RoundState.DRAFTED:
                self._exchange(at, self._n_drafting)
                self._n_drafting += 1
            return
        if drafting:
            at = self._leave_drafting(at)
        last = len(self._rows) - 1
        if at != last:
            self._passes.copy(last, at, self._rows[last].length)
            self._rows[at] = self._rows[last]
        self._rows.pop()

    def _leave_drafting(self, at: int) -> int:
        """Move a drafting row behind the others; returns its new place."""
        self._n_drafting -= 1
        self._exchange(at, self._n_drafting)
        self._samplings = None
        return self._n_drafting

    def _exchange(self, one: int, other: int) -> None:
        if one == other:
            return
        rows = self._rows
        self._passes.swap(one, other, max(rows[one].length, rows[other].length))
        rows[one], rows[other] = rows[other], rows[one]

    # Rounds -------------------------------------------------------------------------------------

    def _round(self, done: list[RequestTrace]) -> list[int]:
        """One round of both groups; the places of the rows that ended."""
        self._regroup()
        if self._samplings is None:
            m, device = self._n_drafting, self._passes.device
            groups = (self._rows[:m], self._rows[m:])
            self._samplings = tuple(_sampling_of(g, device) for g in groups)  # type: ignore[assignment]
        m, n = self._n_drafting, len(self._rows)
        ended: list[int] = []
        try:
            if m:
                self._draft_round(0, m, done, ended)
            if n > m:
                self._plain_round(m, n, done, ended)
        except RuntimeError as error:  # the device failed: these requests are lost, the run goes on
            for at in set(range(n)) - set(ended):
                done.append(self._rows[at].trace(time.perf_counter(), _first_line(error)))
            return list(range(n))
        return ended

    def _regroup(self) -> None:
        """Rows that may not speculate any more leave their group; those that may again, return."""
        for at in range(self._n_drafting - 1, -1, -1):
            row = self._rows[at]
            if row.state is not RoundState.DRAFTED or self._draft_positions < row.length:
                if row.state is RoundState.DRAFTED:
                    row.state = RoundState.SKIPPED
                self._leave_drafting(at)
        for at in range(self._n_drafting, len(self._rows)):
            row = self._rows[at]
            if row.state is RoundState.FALLEN_BACK and row.fallback and not row.fallback.fallen:
                if self._draft_positions < row.length:
                    row.state = RoundState.SKIPPED
                    continue
                row.state = RoundState.DRAFTED
                # The draft missed what was decoded plainly; the time counts for the next round.
                self._passes.prefill_draft(row.prompt + row.tokens[:-1], at, row.n_drafted)
                self._exchange(at, self._n_drafting)
                self._n_drafting += 1
                self._samplings = None

    def _draft_round(
        self, first: int, last: int, done: list[RequestTrace], ended: list[int]
    ) -> None:
        assert self._samplings is not None
        rows = self._rows[first:last]
        longest = self._draft_positions + 1
        ks = [min(self._settings.k, row.room - 1, longest - row.length) for row in rows]
        result = self._passes.draft_round(self._input(rows, max(ks) + 1), ks, self._samplings[0])
        now_s = time.perf_counter()
        for at, (row, k) in enumerate(zip(rows, ks, strict=True), start=first):
            error = self._end_draft_round(row, k, result, at - first, now_s)
            self._settle(row, at, error, now_s, done, ended)

    def _end_draft_round(self, row: Row, k: int, result: DraftRound, i: int, now_s: float) -> str:
        """Book one row's round; the error that ends the request, or ''."""
        if result.target_bad[i] or result.draft_bad[i]:
            who = "target" if result.target_bad[i] else "draft"
            return f"{NOT_FINITE} of the {who} at output position {len(row.tokens)}"
        a = result.accepted[i]
        begin, first = result.target_start[i], result.draft_start[i]
        tokens = [*result.draft_tokens[i][:a], result.token[i]]
        # A round without room for a proposal (one token to go) was not drafted.
        row.state = RoundState.DRAFTED if k else RoundState.SKIPPED
        row.end_round(
            tokens, result.margin[begin : begin + a + 1], proposed=k, now_s=now_s, ends=self._ends
        )
        row.overlap.extend(result.overlap[first : first + k])
        row.n_drafted = row.length - 2
        if row.fallback and k and row.finish is None and row.fallback.observe(a, a + (a < k)):
            row.state = RoundState.FALLEN_BACK
            if row.fell_back_at < 0:
                row.fell_back_at = len(row.tokens)
        return ""

    def _plain_round(
        self, first: int, last: int, done: list[RequestTrace], ended: list[int]
    ) -> None:
        assert self._samplings is not None
        rows = self._rows[first:last]
        result: PlainRound = self._passes.plain_round(
            self._input(rows, 1), first, self._samplings[1]
        )
        now_s = time.perf_counter()
        for at, row in enumerate(rows, start=first):
            i = at - first
            error = ""
            if result.bad[i]:
                error = f"{NOT_FINITE} of the target at output position {len(row.tokens)}"
            else:
                token, margin = [result.token[i]], [result.margin[i]]
                row.end_round(token, margin, proposed=0, now_s=now_s, ends=self._ends)
                if row.state is RoundState.FALLEN_BACK and row.fallback:
                    row.fallback.decoded_plainly(1)
            self._settle(row, at, error, now_s, done, ended)

    def _settle(
        self,
        row: Row,
        at: int,
        error: str,
        now_s: float,
        done: list[RequestTrace],
        ended: list[int],
    ) -> None:
        """Hand out the row's trace when it has ended or failed."""
        if not error and row.round_ms[-1] > self._settings.watchdog_s * 1e3:
            error = f"watchdog: one round took {row.round_ms[-1] / 1e3:.0f} s"
        if error:
            self._passes.clear(at)
        if error or row.finish is not None:
            done.append(row.trace(now_s, error))
            ended.append(at)

    def _input(self, rows: list[Row], n_places: int) -> RoundInput:
        """What one round of these rows needs from the host, in two arrays."""
        state = np.array(
            [
                (
                    row.tokens[-2] if len(row.tokens) > 1 else row.prompt[-1],
                    row.tokens[-1],
                    row.length - 1,
                )
                for row in rows
            ],
            np.int64,
        )
        numbers = np.stack(
            [row.uniforms[len(row.tokens) : len(row.tokens) + n_places] for row in rows]
        )
        longest = max(row.length for row in rows)
        device = self._passes.device
        return RoundInput(
            state=torch.from_numpy(state).to(device, non_blocking=True),
            uniforms=torch.from_numpy(numbers).to(device, non_blocking=True),
            longest=longest,
        )


def _sampling_of(rows: list[Row], device: torch.device) -> SamplingRows:
    given = [row.request.sampling for row in rows]
    return SamplingRows.of(
        [s.temperature for s in given],
        [s.top_k for s in given],
        [s.top_p for s in given],
        [s.min_p for s in given],
        device=device,
    )


def _drained(done: list[RequestTrace]) -> Iterator[RequestTrace]:
    while done:
        yield done.pop(0)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
