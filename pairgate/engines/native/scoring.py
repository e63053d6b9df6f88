"""Teacher forcing: finished outputs go through target and draft once more, in float32.

The passes share nothing with the decoder but the models' files: other batches, other chunks, maybe
another precision, and each law from the whole text before it. What the decoder got wrong is not
repeated here. Laws are formed chunk by chunk; memory never holds [tokens × vocabulary].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pairgate.domain.scores import TokenScores
from pairgate.domain.trace import TraceBatch
from pairgate.domain.traffic import Request
from pairgate.engines.native.laws import DraftLaw, Laws, PositionScores, collected
from pairgate.engines.native.loading import LoadedModel, eos_ids, load_model
from pairgate.engines.native.passes import PREFILL_CHUNK, aligned
from pairgate.engines.prompts import Prompts
from pairgate.ports import MaterialisedPair

_ROWS = 16  # texts in one pass
_CHUNK_ELEMENTS = 2**21  # logits at a time: 8 MiB in float32, and a few temporaries of that size
_CLOSE = 8  # attention kernels want aligned rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """One output behind its prompt; `row` is its place in the batch."""

    row: int
    request: Request
    ids: list[int]
    n_prompt: int


class TeacherForcing:
    """Implements `ports.Scorer` for models that the native engine loads.

    `engine_dtype` is what the outputs were computed in: it says how much rounding explains.
    """

    def __init__(
        self,
        target: LoadedModel,
        draft: LoadedModel | None,
        *,
        encode: Callable[[Request], list[int]],
        end_tokens: frozenset[int],
        engine_dtype: str = "float32",
        draft_law: DraftLaw | None = None,
        common_vocab: int | None = None,
    ) -> None:
        self._target, self._draft = target, draft
        self._encode, self._end_tokens = encode, end_tokens
        self._engine_dtype, self._draft_law = engine_dtype, draft_law or DraftLaw()
        draft_vocab = draft.vocab_size if draft else target.vocab_size
        self._common = min(target.vocab_size, draft_vocab, common_vocab or draft_vocab)

    @classmethod
    def of_pair(
        cls,
        pair: MaterialisedPair,
        *,
        engine_dtype: str,
        with_draft: bool,
        device: str | None = None,
    ) -> TeacherForcing:
        """Load the pair in float32, whatever its compute dtype is. `device` None takes the first
        GPU, else the CPU."""
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        prompts = Prompts(pair.target_dir)

        def load(folder: Path, role: str) -> LoadedModel:
            return load_model(folder, role, device=place, compute_dtype="float32")

        target = load(pair.target_dir, "target")
        return cls(
            target,
            load(pair.draft_dir, "draft") if with_draft and pair.draft_dir else None,
            encode=prompts.encode,
            end_tokens=eos_ids(target.model),
            engine_dtype=engine_dtype,
            draft_law=DraftLaw(greedy=pair.pair.decoding.draft_sampling == "greedy"),
            common_vocab=prompts.n_ids,
        )

    @property
    def level(self) -> str:
        """F3 with a draft's law, else F2."""
        return "F2" if self._draft is None else "F3"

    @torch.inference_mode()
    def score(self, requests: Sequence[Request], batch: TraceBatch) -> TokenScores:
        """Score what the ok rows of `batch` received; `requests` [len(batch)] in its order."""
        texts, n_after_end = self._texts(requests, batch)
        texts.sort(key=lambda text: (text.n_prompt, len(text.ids)))
        parts = [
            part
            for first in range(0, len(texts), _ROWS)
            for part in self._scored(texts[first : first + _ROWS])
        ]
        return collected(parts, n_after_end=n_after_end, with_draft=self._draft is not None)

    def _texts(self, requests: Sequence[Request], batch: TraceBatch) -> tuple[list[_Text], int]:
        """The outputs up to their first end token, and how many tokens came after one."""
        texts, n_after = list[_Text](), 0
        for row in np.flatnonzero(batch.ok).tolist():
            begin, end = batch.tokens_offsets[row : row + 2]
            output = batch.tokens[begin:end].tolist()
            ends = [i for i, token in enumerate(output) if token in self._end_tokens]
            kept = output[: ends[0] + 1] if ends else output
            n_after += len(output) - len(kept)
            if kept:
                prompt = self._encode(requests[row])
                text = _Text(
                    row=row, request=requests[row], ids=[*prompt, *kept], n_prompt=len(prompt)
                )
                texts.append(text)
        return texts, n_after

    def _scored(self, texts: list[_Text]) -> Iterator[PositionScores]:
        """One group of texts, both models side by side, in chunks of positions."""
        longest = max(len(text.ids) for text in texts)
        device = self._target.device
        padded = [text.ids + [0] * (longest - len(text.ids)) for text in texts]
        ids = torch.tensor(padded, device=device)  # [R, longest]
        start = min(text.n_prompt for text in texts) - 1  # its logits speak of the first output
        target, draft = _Reader(self._target, ids, start), None
        if self._draft is not None and longest <= self._draft.max_positions:
            draft = _Reader(self._draft, ids, start)
        laws = Laws(
            self._draft_law,
            engine_dtype=self._engine_dtype,
            samplings=[text.request.sampling for text in texts],
            device=device,
        )
        n_prompt = np.array([text.n_prompt for text in texts])
        n_text = np.array([len(text.ids) for text in texts])
        row = np.array([text.row for text in texts])
        step = max(1, _CHUNK_ELEMENTS // (len(texts) * self._target.vocab_size))
        for begin in range(start, longest - 1, step):
            end = min(begin + step, longest - 1)
            place = np.arange(begin, end)[None]
            of, at = np.nonzero((place >= n_prompt[:, None] - 1) & (place < n_text[:, None] - 1))
            text, column = (torch.from_numpy(x).to(device) for x in (of, at))
            target_logits = target.read(end)[text, column]
            draft_logits = None
            if draft is not None:
                draft_logits = aligned(
                    draft.read(end)[text, column], self._target.vocab_size, self._common
                )
            if len(of) == 0:
                continue
            tokens = ids[text, begin + column + 1]
            yield PositionScores(
                row=row[of],
                position=begin + at + 1 - n_prompt[of],
                columns=laws.score(target_logits, draft_logits, tokens, text),
            )


class _Reader:
    """One model reading some texts from the left; what stands before `start` is read at once."""

    def __init__(self, model: LoadedModel, ids: Tensor, start: int) -> None:
        self._model = model
        # A smaller vocabulary has no embedding for some ids.
        self._ids = ids.clamp(max=model.vocab_size - 1)
        n_rows, longest = ids.shape
        self._cache = model.new_cache(n_rows, -(-longest // _CLOSE) * _CLOSE)
        self._at = 0
        while self._at < start:
            self._pass(min(self._at + PREFILL_CHUNK, start), last_only=True)

    def read(self, end: int) -> Tensor:
        """Logits [R, end − at, V] of the positions from where the last pass ended."""
        return self._pass(end, last_only=False)

    def _pass(self, end: int, *, last_only: bool) -> Tensor:
        begin, self._at = self._at, end
        places = torch.arange(begin, end, device=self._ids.device)
        return self._model.forward(
            self._ids[:, begin:end],
            places.expand(len(self._ids), -1),
            self._cache,
            first=0,
            length=-(-end // _CLOSE) * _CLOSE,
            last_only=last_only,
        )
