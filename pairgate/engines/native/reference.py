"""The reference decoder: batch 1, one screen, exact. The batched decoder must equal it.

Speculative sampling after Leviathan et al. 2023 (arXiv 2211.17192, Algorithm 1) and Chen et al.
2023 (arXiv 2302.01318, Algorithm 2). Every pass is recomputed from the whole text: no cache, so
nothing here can be stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairgate.domain.traffic import Sampling
from pairgate.engines.native.randomness import PROPOSE, RECOVER, TEST
from pairgate_kernels.sample.reference import SamplingRows, draw, law


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Emitted tokens, and per round the proposed and accepted counts."""

    tokens: tuple[int, ...]
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]


@torch.inference_mode()
def decode_reference(
    target: Any,
    draft: Any | None,
    prompt: list[int],
    *,
    k: int,
    max_tokens: int,
    sampling: Sampling,
    uniforms: NDArray[np.float64],
    eos: frozenset[int] = frozenset(),
    greedy_draft: bool = False,
) -> Decoded:
    """Decode one request; `uniforms` [≥ max_tokens, 3] by output position (see randomness.py).

    target and draft map input_ids [1, n] to logits [1, n, vocab] of one common vocabulary.
    Without a draft every token is drawn from the target.
    """
    rows = _rows(sampling)
    draft_rows = _rows(Sampling(temperature=0.0)) if greedy_draft else rows
    u = torch.from_numpy(uniforms)
    text, tokens = list(prompt), list[int]()
    proposed, accepted = list[int](), list[int]()

    while len(tokens) < max_tokens and not (tokens and tokens[-1] in eos):
        t = len(tokens)  # output position of the next token
        n_draft = min(k, max_tokens - t - 1) if draft is not None and t > 0 else 0
        # 1. The draft proposes n_draft tokens, one by one.
        draft_probs = list[Tensor]()
        for i in range(n_draft):
            draft_probs.append(law(_logits(draft, text)[-1:], draft_rows)[0])
            text.append(int(draw(draft_probs[i][None], u[t + i, PROPOSE][None])))
        # 2. The target scores all of them, and the position after them, in one pass.
        logits = _logits(target, text)[-(n_draft + 1) :]
        target_probs = [law(row[None], rows)[0] for row in logits]  # [n_draft + 1] of [vocab]
        # 3. Accept each with probability min(1, p / q), up to the first rejection.
        n = 0
        while n < n_draft:
            y = text[len(text) - n_draft + n]
            if not u[t + n, TEST] * draft_probs[n][y] < target_probs[n][y]:
                break
            n += 1
        # 4. The recovered token from norm(max(0, p − q)), or the bonus token from p.
        weights = target_probs[n]
        if n < n_draft:
            rest = (target_probs[n] - draft_probs[n]).clamp(min=0)
            weights = rest if rest.sum() > 0 else weights
        last = int(draw(weights[None], u[t + n, RECOVER][None]))
        text = [*text[: len(text) - n_draft + n], last]

        new = text[len(prompt) + t :]
        ended = [i for i, y in enumerate(new) if y in eos]
        tokens += new[: ended[0] + 1] if ended else new
        if t > 0:
            proposed.append(n_draft)
            accepted.append(n)
    return Decoded(tokens=tuple(tokens), proposed=tuple(proposed), accepted=tuple(accepted))


def _logits(model: Any, text: list[int]) -> Tensor:
    output = model(torch.tensor([text]))
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits[0]


def _rows(s: Sampling) -> SamplingRows:
    return SamplingRows.of([s.temperature], [s.top_k], [s.top_p], [s.min_p])
