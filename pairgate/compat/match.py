"""Two tokenizers compared id by id: may a draft's proposals be read as the target's tokens?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pairgate.compat.tokenizer import Tokenizer
from pairgate.errors import Refused

_N_SHOWN = 5


class MatchKind(StrEnum):
    EQUAL = "equal"
    PADDED_TAIL = "padded tail"  # equal content, embeddings padded to different sizes
    SUBSET = "subset"  # one knows more ids; those that both know are equal
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An id that means different bytes; None is an id that the tokenizer does not have."""

    token_id: int
    target: bytes | None
    draft: bytes | None

    def __str__(self) -> str:
        return f"{self.token_id}: target {_shown(self.target)}, draft {_shown(self.draft)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerMatch:
    """`differences` are the first ids that differ; `n_differing` counts all of them, and
    `n_unreadable` the target's tokens for which the draft has no embedding."""

    kind: MatchKind
    n_unreadable: int
    n_differing: int
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]


def compare_tokenizers(
    target: Tokenizer, draft: Tokenizer, *, target_vocab_size: int, draft_vocab_size: int
) -> TokenizerMatch:
    """Classify by content; vocabulary sizes are those of the models (rows of the embedding)."""
    both = target.tokens.keys() & draft.tokens.keys()
    clashing = sorted(i for i in both if target.tokens[i] != draft.tokens[i])
    one_sided = sorted(target.tokens.keys() ^ draft.tokens.keys())
    if clashing or not both:
        kind, differing = MatchKind.INCOMPATIBLE, clashing or one_sided
    elif one_sided:
        kind, differing = MatchKind.SUBSET, one_sided
    elif target_vocab_size != draft_vocab_size:
        kind, differing = MatchKind.PADDED_TAIL, []
    else:
        kind, differing = MatchKind.EQUAL, []
    return TokenizerMatch(
        kind=kind,
        n_unreadable=sum(1 for i in target.tokens if i >= draft_vocab_size),
        n_differing=len(differing),
        differences=tuple(
            Difference(token_id=i, target=target.tokens.get(i), draft=draft.tokens.get(i))
            for i in differing[:_N_SHOWN]
        ),
        warnings=_warnings(target, draft),
    )


def require_match(match: TokenizerMatch) -> None:
    """Raises `Refused` for an incompatible draft, listing the first ids that differ, and for one
    that cannot read every token of the target."""
    if match.kind is MatchKind.INCOMPATIBLE:
        shown = "\n".join(f"  {difference}" for difference in match.differences)
        raise Refused(
            f"the draft's tokenizer is incompatible with the target's: {match.n_differing} ids "
            f"mean different bytes\n{shown}",
            hint="use a draft that was trained with the target's tokenizer",
        )

    if match.n_unreadable:
        raise Refused(
            f"the draft has no embedding for {match.n_unreadable} of the target's tokens, so it "
            "cannot follow a text that holds one of them",
            hint="extend the draft's embedding to the target's vocabulary and train it again",
        )


def _warnings(target: Tokenizer, draft: Tokenizer) -> tuple[str, ...]:
    warnings: list[str] = []
    if target.segmentation_digest != draft.segmentation_digest:
        warnings.append(
            "the draft's tokenizer cuts text differently (merges, scores or normalisation); its "
            "ids mean the same bytes"
        )
    for name in sorted(target.special.keys() | draft.special.keys()):
        ours, theirs = target.special.get(name), draft.special.get(name)
        if ours != theirs:
            warnings.append(f"{name} is {ours} for the target and {theirs} for the draft")
    common = target.tokens.keys() & draft.tokens.keys()
    odd = sorted(i for i in target.added_ids ^ draft.added_ids if i in common)
    if odd:
        warnings.append(
            f"{len(odd)} ids are added tokens for one of the two only, first {odd[0]} "
            f"({_shown(target.tokens[odd[0]])}): text that spells them is cut differently"
        )
    if target.chat_template != draft.chat_template:
        warnings.append("target and draft have different chat templates; the target's is used")
    return tuple(warnings)


def _shown(token: bytes | None) -> str:
    return "has no such id" if token is None else repr(token.decode("utf-8", "backslashreplace"))
