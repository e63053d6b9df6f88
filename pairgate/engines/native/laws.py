"""One chunk of positions: how the emitted token stands to the target's law p and the draft's q."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairgate.domain.scores import NEAR_TIE_GAP, DraftScores, TokenScores
from pairgate.domain.traffic import Sampling
from pairgate_kernels.sample.reference import SamplingRows, law

LOGIT_NOISE = {"float32": 1e-3, **NEAR_TIE_GAP}
"""What rounding may move a logit by. In float32 passes of other shapes differ by far less."""

_COLUMNS = ("surprisal", "variance", "mass_below", "mass", "outside", "excused", "certain")
_DRAFT_COLUMNS = ("score", "score_variance", "expected", "below")
_CERTAIN = 1.0 - 1e-6  # a law with a token of more is one of that token only
_MOST_MASS = 0.03  # of the cumulated probability, that rounding may move at the edge of top-p


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLaw:
    """From which law a proposal is drawn, and how it is judged.

    `greedy`: the draft proposes its argmax. `sampling`: its parameters where they are not the
    request's. `judged_one_hot`: a drawn proposal is accepted with probability p(y), as if it had
    been certain. All three keep the target's law; they only accept more or less.
    """

    greedy: bool = False
    sampling: Sampling | None = None
    judged_one_hot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionScores:
    """Columns of one chunk by name, each [N]; `domain.scores` says what they mean."""

    row: NDArray[np.int64]
    position: NDArray[np.int64]
    columns: dict[str, NDArray[np.float64]]


def sampling_rows(samplings: Sequence[Sampling], device: torch.device) -> SamplingRows:
    """The kernels' form of sampling parameters, one row each."""
    return SamplingRows.of(
        [s.temperature for s in samplings],
        [s.top_k for s in samplings],
        [s.top_p for s in samplings],
        [s.min_p for s in samplings],
        device=device,
    )


class Laws:
    """Scores tokens under the laws of some requests."""

    def __init__(
        self,
        draft_law: DraftLaw,
        *,
        engine_dtype: str,
        samplings: Sequence[Sampling],
        device: torch.device,
    ) -> None:
        self._samplings = samplings
        self._draft = draft_law
        self._noise = LOGIT_NOISE.get(engine_dtype, LOGIT_NOISE["bfloat16"])
        self._rows = sampling_rows(samplings, device)
        own = Sampling(temperature=0.0) if draft_law.greedy else draft_law.sampling
        # A request at temperature 0 has a one-hot draft too, whatever the draft's own law is.
        own_rows = [s if own is None or s.greedy else own for s in samplings]
        self._draft_rows = sampling_rows(own_rows, device)

    def score(
        self, target_logits: Tensor, draft_logits: Tensor | None, tokens: Tensor, text: Tensor
    ) -> dict[str, NDArray[np.float64]]:
        """Logits [N, V], the emitted tokens [N], and the row of the samplings of each [N].

        Surprisal and draft score have mean zero under p (docs/fidelity.md); their variances under
        p are Σ p log² p − H² and Σ min(p, q)² / p − (Σ min(p, q))².
        """
        probs = law(target_logits, self._rows, text)  # [N, V]
        column = tokens[:, None]
        mass = probs.gather(1, column).squeeze(1)
        inside = mass > 0
        log_probs = torch.where(probs > 0, probs, 1.0).log()
        mean = (probs * log_probs).sum(-1)  # −H
        spread = (probs * log_probs.square()).sum(-1) - mean.square()
        ids = torch.arange(probs.shape[-1], device=probs.device)
        below = torch.where(ids < column, probs, 0.0).sum(-1, dtype=torch.float64)
        surprisal = mean - log_probs.gather(1, column).squeeze(1)
        excused = self._excused(target_logits, tokens, text, inside)
        found = {
            "surprisal": torch.where(inside, surprisal, 0.0),
            "variance": torch.where(inside, spread.clamp(min=0), 0.0),
            "mass_below": below,
            "mass": mass,
            "outside": ~inside & ~excused,
            "excused": excused,
            "certain": probs.amax(-1) > _CERTAIN,
        }
        if draft_logits is not None:
            found |= self._with_draft(probs, mass, inside, draft_logits, tokens, text)
        packed = torch.stack([value.to(torch.float64) for value in found.values()]).cpu().numpy()
        return dict(zip(found, packed, strict=True))

    def _with_draft(
        self,
        probs: Tensor,
        mass: Tensor,
        inside: Tensor,
        draft_logits: Tensor,
        tokens: Tensor,
        text: Tensor,
    ) -> dict[str, Tensor]:
        draft_probs = law(draft_logits, self._draft_rows, text)
        proposed = draft_probs.gather(1, tokens[:, None]).squeeze(1)
        common = torch.minimum(probs, draft_probs)
        overlap = common.sum(-1)
        square = (common.square() / torch.where(probs > 0, probs, 1.0)).sum(-1)
        ratio = torch.where(inside, proposed / torch.where(inside, mass, 1.0), 0.0).clamp(max=1)
        expected, above = overlap, proposed * math.exp(-2.0 * self._noise) - 1e-9
        below = mass < above
        if self._draft.judged_one_hot:
            expected, below = (probs * draft_probs).sum(-1), torch.zeros_like(below)
        elif self._draft.greedy or self._rows.any_greedy:
            # Where rounding decides what a draft proposes, nothing follows from its argmax.
            top = draft_logits.topk(2, dim=-1).values.float()
            tied = self._draft_rows.greedy[text] & (top[:, 0] - top[:, 1] < self._noise)
            expected, below = torch.where(tied, torch.nan, expected), below & ~tied
        return {
            "score": torch.where(inside, ratio - overlap, 0.0),
            "score_variance": torch.where(inside, (square - overlap.square()).clamp(min=0), 0.0),
            "expected": expected,
            "below": below,
        }

    def _excused(self, logits: Tensor, tokens: Tensor, text: Tensor, inside: Tensor) -> Tensor:
        """[N] where p(y) is 0, and would not be if rounding had raised the token's logit and moved
        the edge of top-p."""
        excused = torch.zeros_like(inside)
        doubtful = (~inside).nonzero().squeeze(1)
        if len(doubtful) == 0:
            return excused
        raised = logits[doubtful].float()
        column = tokens[doubtful, None]
        raised.scatter_add_(1, column, torch.full_like(raised[:, :1], self._noise))
        mass = min(_MOST_MASS, self._noise)
        wider = [
            replace(s, top_p=min(1.0, s.top_p + mass))
            for s in (self._samplings[i] for i in text[doubtful].tolist())
        ]
        probs = law(raised, sampling_rows(wider, logits.device))
        excused[doubtful] = probs.gather(1, column).squeeze(1) > 0
        return excused


def collected(
    parts: Sequence[PositionScores], *, n_after_end: int, with_draft: bool
) -> TokenScores:
    """All chunks in the order of row and position."""
    row = np.concatenate([np.empty(0, np.int64), *(p.row for p in parts)])
    position = np.concatenate([np.empty(0, np.int64), *(p.position for p in parts)])
    order = np.lexsort((position, row))
    names = (*_COLUMNS, *(_DRAFT_COLUMNS if with_draft else ()))
    none = {"expected": np.nan}  # a text that the draft cannot read
    found = {
        name: np.concatenate(
            [np.empty(0)]
            + [p.columns.get(name, np.full(len(p.row), none.get(name, 0.0))) for p in parts]
        )[order]
        for name in names
    }
    return TokenScores(
        row=row[order],
        position=position[order],
        certain=found["certain"] > 0,
        surprisal=found["surprisal"],
        variance=found["variance"],
        mass_below=found["mass_below"],
        mass=found["mass"],
        outside=found["outside"] > 0,
        excused=found["excused"] > 0,
        n_after_end=n_after_end,
        draft=DraftScores(
            score=found["score"],
            variance=found["score_variance"],
            expected=found["expected"],
            below=found["below"] > 0,
        )
        if with_draft
        else None,
    )
