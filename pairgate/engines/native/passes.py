"""What runs on the device: prefill, a draft round, a plain round; tensors in, host values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairgate.engines.native.cache import RaggedCache
from pairgate.engines.native.loading import LoadedModel
from pairgate.engines.native.randomness import PROPOSE, RECOVER, TEST
from pairgate_kernels.dispatch import fused
from pairgate_kernels.sample import sample
from pairgate_kernels.sample.reference import SamplingRows, draw, law
from pairgate_kernels.verify import Ragged, Verified, verify
from pairgate_kernels.verify.reference import verify as verify_probs

PREFILL_CHUNK = 512
_CLOSE = 8  # the mask's last dimension is a multiple: attention kernels want aligned rows
_MAX_SHAPES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInput:
    """state [rows, 3] int64: last but one token, last token, position of the last; uniforms
    [rows, places, 3] float64 from the row's next output position on; longest text in tokens."""

    state: Tensor
    uniforms: Tensor
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRound:
    """Per row: accepted, token, target_bad, draft_bad, draft_tokens [steps]; flat over proposals:
    overlap, from draft_start; flat over scored positions: margin, from target_start."""

    accepted: list[int]
    token: list[int]
    target_bad: list[bool]
    draft_bad: list[bool]
    draft_tokens: list[list[int]]
    overlap: list[float]
    margin: list[float]
    draft_start: list[int]
    target_start: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRound:
    """One token per row without a draft: the token, the margin of its logit over the next, and
    whether the row's logits were not finite."""

    token: list[int]
    margin: list[float]
    bad: list[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Indices of one ragged shape: `*_flat` select the real positions out of the padded pass,
    None when nothing is padded."""

    ragged: Ragged
    target_flat: Tensor | None
    draft_flat: Tensor | None
    own: NDArray[np.bool_]  # [rows, steps] which proposals are not padding
    draft_start: list[int]
    target_start: list[int]


class Passes:
    """Both models with their caches. Row numbers are cache rows."""

    def __init__(
        self,
        target: LoadedModel,
        draft: LoadedModel | None,
        *,
        n_rows: int,
        n_positions: int,
        greedy_draft: bool,
        common_vocab: int | None,
    ) -> None:
        self.device = target.device
        self._target, self._draft = target, draft
        self._greedy_draft = greedy_draft
        n_positions = -(-n_positions // _CLOSE) * _CLOSE
        self._target_cache = target.new_cache(n_rows, n_positions)
        self._draft_cache = draft.new_cache(n_rows, n_positions) if draft else None
        self._caches = [c for c in (self._target_cache, self._draft_cache) if c]
        draft_vocab = draft.vocab_size if draft else target.vocab_size
        self._common = min(target.vocab_size, draft_vocab, common_vocab or draft_vocab)
        # Texts may hold ids that a draft with a smaller vocabulary has no embedding for.
        self._draft_ids = draft_vocab if draft_vocab < target.vocab_size else None
        self._shapes: dict[tuple[int, ...], _Shape] = {}

    @property
    def kv_bytes(self) -> tuple[int, int]:
        return (
            self._target_cache.n_bytes,
            self._draft_cache.n_bytes if self._draft_cache else 0,
        )

    @torch.inference_mode()
    def copy(self, source: int, destination: int, length: int) -> None:
        for cache in self._caches:
            cache.copy(source, destination, length)

    @torch.inference_mode()
    def swap(self, one: int, other: int, length: int) -> None:
        for cache in self._caches:
            cache.swap(one, other, length)

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        for cache in self._caches:
            cache.clear(row)

    @torch.inference_mode()
    def prefill(
        self, prompt: list[int], row: int, sampling: SamplingRows, numbers: NDArray[np.float64]
    ) -> tuple[int, float, bool]:
        """First token, its margin, and whether the logits were finite."""
        logits = _prefill(self._target, self._target_cache, prompt, row, 0)[:, -1]
        uniforms = torch.from_numpy(numbers[None]).to(self.device)
        result = self._plain(logits, sampling, uniforms)
        return result.token[0], result.margin[0], not result.bad[0]

    @torch.inference_mode()
    def prefill_draft(self, text: list[int], row: int, start: int) -> None:
        """Bring the draft's cache of this row up to the whole `text`, from position `start` on."""
        assert self._draft is not None and self._draft_cache is not None
        if self._draft_ids is not None:
            text = [min(token, self._draft_ids - 1) for token in text]
        _prefill(self._draft, self._draft_cache, text, row, start)

    @torch.inference_mode()
    def draft_round(
        self, given: RoundInput, ks: Sequence[int], sampling: SamplingRows
    ) -> DraftRound:
        """Propose max(ks) tokens for rows 0 to len(ks) − 1, and judge the first ks[r] of row r."""
        steps = max(ks)
        tokens, drafted, best = self._propose(given, steps, sampling)
        shape = self._shape(tuple(ks))
        places = torch.arange(steps + 1, device=self.device)
        logits = self._target.forward(
            torch.cat((given.state[:, 1:2], tokens), dim=1),
            self._inside(self._target, given.state[:, 2:] + places, given.longest + steps),
            self._target_cache,
            first=0,
            length=self._length(given.longest + steps),
        ).flatten(0, 1)
        uniforms = given.uniforms[..., TEST:].flatten(0, 1)
        flat_tokens = tokens.flatten()
        if shape.target_flat is not None:
            logits, uniforms = logits[shape.target_flat], uniforms[shape.target_flat]
            flat_tokens = flat_tokens[shape.draft_flat]
            drafted = drafted[shape.draft_flat] if drafted is not None else None
        found = _judge(logits, drafted, flat_tokens, shape.ragged, sampling, uniforms)
        return _to_host(
            found.accepted, found.token, found.bad, best, tokens, found.overlap, found.margin, shape
        )

    def _propose(
        self, given: RoundInput, steps: int, sampling: SamplingRows
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """tokens [rows, steps]; their law or, for fused kernels, their logits [rows × steps, V],
        None when one-hot; the best logit of each row and step [rows, steps], which is not finite
        when the logits are broken."""
        rows = len(given.state)
        if steps == 0:
            return given.state[:, :0], None, given.uniforms[:, :0, 0]
        assert self._draft is not None and self._draft_cache is not None
        one_hot = self._greedy_draft or sampling.all_greedy
        # The last two tokens: after a fully accepted round the draft has not seen the first of
        # them; otherwise its entry is written again, with the same values.
        tokens, positions = given.state[:, :2], given.state[:, 2:] + _LAST_TWO.to(self.device)
        if self._draft_ids is not None:
            tokens = tokens.clamp(max=self._draft_ids - 1)
        chosen, drafted, best = list[Tensor](), list[Tensor](), list[Tensor]()
        for i in range(steps):
            end = given.longest + i
            logits = self._draft.forward(
                tokens,
                self._inside(self._draft, positions, end),
                self._draft_cache,
                first=0,
                length=self._length(end),
                last_only=True,
            )[:, -1]
            logits = aligned(logits, self._target.vocab_size, self._common)
            top = logits.max(-1)
            best.append(top.values)
            if one_hot:
                token = top.indices
            elif fused(logits):
                token = sample(logits, sampling, given.uniforms[:, i, PROPOSE])
                drafted.append(logits)
            else:
                probs = law(logits, sampling)
                token = draw(probs, given.uniforms[:, i, PROPOSE])
                drafted.append(probs)
            chosen.append(token)
            tokens, positions = token[:, None], positions[:, -1:] + 1
        flat = torch.stack(drafted, dim=1).view(rows * steps, -1) if drafted else None
        return torch.stack(chosen, dim=1), flat, torch.stack(best, dim=1)

    @torch.inference_mode()
    def plain_round(self, given: RoundInput, first: int, sampling: SamplingRows) -> PlainRound:
        """One token for each of the rows first, first + 1, …"""
        logits = self._target.forward(
            given.state[:, 1:2],
            given.state[:, 2:],
            self._target_cache,
            first=first,
            length=self._length(given.longest),
        )[:, -1]
        return self._plain(logits, sampling, given.uniforms[:, 0])

    def _plain(self, logits: Tensor, sampling: SamplingRows, uniforms: Tensor) -> PlainRound:
        token = sample(logits, sampling, uniforms[:, RECOVER])
        top = logits.topk(2, dim=-1).values.float()
        packed = torch.stack((token.float(), top[:, 0] - top[:, 1], top[:, 0])).cpu().numpy()
        return PlainRound(
            token=packed[0].astype(np.int64).tolist(),
            margin=packed[1].tolist(),
            bad=(~np.isfinite(packed[2])).tolist(),
        )

    def _inside(self, model: LoadedModel, positions: Tensor, end: int) -> Tensor:
        """Learned position tables end: padding beyond them is computed at the last position."""
        return (
            positions
            if end <= model.max_positions
            else positions.clamp(max=model.max_positions - 1)
        )

    def _length(self, end: int) -> int:
        return min(-(-end // _CLOSE) * _CLOSE, self._target_cache.n_positions)

    def _shape(self, ks: tuple[int, ...]) -> _Shape:
        shape = self._shapes.get(ks)
        if shape is None:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[ks] = _shape_of(ks, self.device)
        return shape


_LAST_TWO = torch.tensor([-1, 0])


def aligned(logits: Tensor, vocab_size: int, common: int) -> Tensor:
    """A draft's logits [..., its vocab] over the target's vocabulary: ids outside the `common` part
    (padding) are never proposed."""
    if logits.shape[-1] == vocab_size == common:
        return logits
    return torch.nn.functional.pad(logits[..., :common], (0, vocab_size - common), value=-torch.inf)


def _judge(
    logits: Tensor,
    drafted: Tensor | None,
    tokens: Tensor,
    ragged: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor,
) -> Verified:
    """`verify` with what `_propose` kept: the law, which is not computed twice, or the logits."""
    if fused(logits):
        return verify(logits, drafted, tokens, ragged, sampling, uniforms)
    return verify_probs(logits, None, tokens, ragged, sampling, uniforms, draft_probs=drafted)


def _prefill(
    model: LoadedModel, cache: RaggedCache, text: list[int], row: int, start: int
) -> Tensor:
    """Feed text[start:] in chunks; the logits [1, 1, V] after the last token."""
    tokens = torch.tensor([text], device=model.device)
    positions = torch.arange(len(text), device=model.device)[None]
    logits = tokens
    for begin in range(start, len(text), PREFILL_CHUNK):
        end = min(begin + PREFILL_CHUNK, len(text))
        logits = model.forward(
            tokens[:, begin:end],
            positions[:, begin:end],
            cache,
            first=row,
            length=end,
            last_only=True,
        )
    return logits


def _shape_of(ks: tuple[int, ...], device: torch.device) -> _Shape:
    n = np.array(ks)
    steps = int(n.max())
    place = np.arange(steps + 1)
    padded = bool((n != steps).any())
    target_flat = np.flatnonzero(place[None] <= n[:, None])
    draft_flat = np.flatnonzero(place[None, :steps] < n[:, None])
    return _Shape(
        ragged=Ragged.of(ks, device=device),
        target_flat=torch.from_numpy(target_flat).to(device) if padded else None,
        draft_flat=torch.from_numpy(draft_flat).to(device) if padded else None,
        own=place[None, :steps] < n[:, None],
        draft_start=(np.cumsum(n) - n).tolist(),
        target_start=(np.cumsum(n + 1) - (n + 1)).tolist(),
    )


def _to_host(
    accepted: Tensor,
    token: Tensor,
    bad: Tensor,
    best: Tensor,
    tokens: Tensor,
    overlap: Tensor,
    margin: Tensor,
    shape: _Shape,
) -> DraftRound:
    """One transfer for the whole round: float32 holds token ids up to 2^24 exactly."""
    rows, steps = tokens.shape
    parts = (accepted, token, bad, best.flatten(), tokens.flatten(), overlap, margin)
    packed = torch.cat([p.to(torch.float32) for p in parts]).cpu().numpy()
    ends = np.cumsum([rows, rows, rows, rows * steps, rows * steps, len(overlap)])
    a, t, b, top, proposals, o, m = np.split(packed, ends)
    # Only a row's own proposals count; those that pad the shape may look beyond the context.
    broken = ~np.isfinite(top.reshape(rows, steps)) & shape.own
    return DraftRound(
        accepted=a.astype(np.int64).tolist(),
        token=t.astype(np.int64).tolist(),
        target_bad=(b > 0).tolist(),
        draft_bad=broken.any(axis=1).tolist(),
        draft_tokens=proposals.reshape(rows, steps).astype(np.int64).tolist(),
        overlap=o.tolist(),
        margin=m.tolist(),
        draft_start=shape.draft_start,
        target_start=shape.target_start,
    )
