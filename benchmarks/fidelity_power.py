"""False alarm and power of the fidelity levels on a simulated language: the table of
docs/fidelity.md.

The language is a random bigram law of 512 words; a request is 96 words from a random first word, at
temperature 1. The draft's law is the target's with noise on the logits. A wrong decoder has an
output law that can be written down for every word, so a defect costs nothing to simulate: a share
of the words (the bonus tokens of K = 4) is right, all others come from the wrong law. F1 compares
the words with and without the draft, F2 looks at the target's law, F3 at the draft's law too.

    python benchmarks/fidelity_power.py --runs 100
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.stats.martingale import standardised, uniform_z
from pairgate.stats.permutation import Words, label_swap

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

N_WORDS, LENGTH = 512, 96
MAX_ABS_Z = 3.48
BONUS_SHARE = 0.1
SIZES = (2_000, 6_000, 20_000)
_RNG = np.random.default_rng(20230530)


def softmax(logits: Floats) -> Floats:
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return grown / grown.sum(axis=-1, keepdims=True)


LOGITS = 2.0 * _RNG.standard_normal((N_WORDS, N_WORDS))
P = softmax(LOGITS)  # [last word, word]
Q = softmax(LOGITS + 0.8 * _RNG.standard_normal((N_WORDS, N_WORDS)))
OTHER = _RNG.permutation(N_WORDS)  # whose law a stale draft law is


def sharpened(law: Floats, temperature: float) -> Floats:
    return softmax(np.log(law) / temperature)


def nucleus(law: Floats, top_p: float) -> Floats:
    order = np.argsort(-law, axis=-1)
    ranked = np.take_along_axis(law, order, axis=-1)
    kept = np.cumsum(ranked, axis=-1) - ranked < top_p
    cut = np.zeros_like(law)
    np.put_along_axis(cut, order, np.where(kept, ranked, 0.0), axis=-1)
    return cut / cut.sum(axis=-1, keepdims=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """`target` is the law that should come out, `emitted` the one that does (where a draft was at
    work), `accepted` [last word] the chance that a proposal is taken."""

    target: Floats
    emitted: Floats
    accepted: Floats


def judged(p: Floats, proposes: Floats, accept: Floats, recover: Floats) -> Decoder:
    """Propose from one law, accept each word with its chance, else draw from `recover`."""
    taken = proposes * accept
    share = taken.sum(axis=-1)
    return Decoder(target=p, emitted=taken + (1.0 - share)[:, None] * recover, accepted=share)


def residual(p: Floats, q: Floats) -> Floats:
    rest = np.maximum(p - q, 0.0)
    return rest / rest.sum(axis=-1, keepdims=True)


def lossy(temperature: float) -> Decoder:
    """Both models are sampled at another temperature than asked for."""
    p = sharpened(P, temperature)
    return Decoder(target=P, emitted=p, accepted=np.minimum(p, sharpened(Q, temperature)).sum(-1))


def typical() -> Decoder:
    entropy = -(P * np.log(P)).sum(axis=-1, keepdims=True)
    accept = (np.minimum(0.09, 0.3 * np.exp(-entropy)) < P).astype(float)
    return judged(P, Q, accept, P)


RATIO = np.minimum(1.0, P / Q)
DECODERS: dict[str, Callable[[], Decoder]] = {
    "correct": lambda: judged(P, Q, RATIO, residual(P, Q)),
    "temperature 1/1.05": lambda: lossy(1 / 1.05),
    "temperature 1/1.1": lambda: lossy(1 / 1.1),
    "temperature 1/1.2": lambda: lossy(1 / 1.2),
    "no residual correction": lambda: judged(P, Q, RATIO, P),
    "typical acceptance": typical,
    "lenience 0.9": lambda: judged(P, Q, np.minimum(1.0, P / (0.9 * Q)), residual(P, Q)),
    "draft at 0.7, judged at 1": lambda: judged(P, sharpened(Q, 0.7), RATIO, residual(P, Q)),
    "draft top-p 0.9, judged full": lambda: judged(P, nucleus(Q, 0.9), RATIO, residual(P, Q)),
    "stale q": lambda: judged(P, Q, np.minimum(1.0, P / Q[OTHER]), residual(P, Q[OTHER])),
    "top-p 0.99 ignored": lambda: Decoder(
        target=nucleus(P, 0.99), emitted=P, accepted=np.minimum(P, Q).sum(-1)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Text:
    """Words [T] of all requests one after another, and the word before each."""

    before: Ints
    word: Ints
    owner: Ints
    n: int


def written(law: Floats, first: Ints, rng: np.random.Generator) -> Text:
    """One output per request, from its first word on."""
    cdf = np.cumsum(law, axis=-1)
    words = np.empty((len(first), LENGTH + 1), np.int64)
    words[:, 0] = first
    for t in range(LENGTH):
        wanted = rng.random(len(first)) * cdf[words[:, t], -1]
        words[:, t + 1] = (cdf[words[:, t]] <= wanted[:, None]).sum(axis=-1).clip(max=N_WORDS - 1)
    return Text(
        before=words[:, :-1].ravel(),
        word=words[:, 1:].ravel(),
        owner=np.repeat(np.arange(len(first)), LENGTH),
        n=len(first),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What teacher forcing knows of a target and a draft, by last word and word."""

    log_p: Floats
    entropy: Floats
    surprisal_variance: Floats
    below: Floats
    p: Floats
    draft_score: Floats
    draft_variance: Floats
    overlap: Floats

    @classmethod
    def of(cls, p: Floats) -> Scores:
        log_p = np.log(np.where(p > 0, p, 1.0))
        entropy = -(p * log_p).sum(axis=-1)
        common = np.minimum(p, Q)
        overlap = common.sum(axis=-1)
        share = common / np.where(p > 0, p, 1.0)
        return cls(
            log_p=log_p,
            entropy=entropy,
            surprisal_variance=(p * log_p**2).sum(axis=-1) - entropy**2,
            below=np.cumsum(p, axis=-1) - p,
            p=p,
            draft_score=share - overlap[:, None],
            draft_variance=(common * share).sum(axis=-1) - overlap**2,
            overlap=overlap,
        )


def detected(
    decoder: Decoder, scores: Scores, n_tokens: int, rng: np.random.Generator
) -> tuple[bool, bool, bool, bool]:
    """Whether F1, F2, F3 without and F3 with the decoder's own log raise an alarm."""
    first = rng.integers(N_WORDS, size=max(2, round(n_tokens / LENGTH)))
    law = (1.0 - BONUS_SHARE) * decoder.emitted + BONUS_SHARE * decoder.target
    text, alone = written(law, first, rng), written(decoder.target, first, rng)
    swap = label_swap(_words(text), _words(alone))
    f1 = max(abs(swap.z_ngrams), abs(swap.z_surprisal)) > MAX_ABS_Z

    before, word = text.before, text.word
    inside = decoder.target[before, word] > 0
    at, now = before[inside], word[inside]
    surprisal = -scores.log_p[at, now] - scores.entropy[at]
    pit = scores.below[at, now] + rng.random(len(at)) * scores.p[at, now]
    f2 = (
        not inside.all()
        or _over(standardised(surprisal, scores.surprisal_variance[at]))
        or _over(uniform_z(np.clip(pit, 0.0, 1.0)))
    )
    f3 = f2 or _over(standardised(scores.draft_score[at, now], scores.draft_variance[at]))
    tested = rng.random(len(before)) >= BONUS_SHARE
    chance = scores.overlap[before[tested]]
    taken = rng.random(len(chance)) < decoder.accepted[before[tested]]
    white = _over(standardised(taken - chance, chance * (1.0 - chance)))
    return f1, f2, f3, f3 or white


def _over(z: float | None) -> bool:
    return z is not None and abs(z) > MAX_ABS_Z


def _words(text: Text) -> Words:
    return Words(tokens=text.word.astype(np.int32), owner=text.owner, n=text.n)


def shares(name: str, n_tokens: int, n_runs: int, seed: int) -> Floats:
    """[4] share of runs in which each level raised an alarm."""
    decoder = DECODERS[name]()
    scores = Scores.of(decoder.target)
    rng = np.random.default_rng([seed, n_tokens, list(DECODERS).index(name)])
    return np.mean([detected(decoder, scores, n_tokens, rng) for _ in range(n_runs)], axis=0)


def table(n_runs: int, seed: int) -> Iterator[str]:
    """The rows of docs/fidelity.md."""
    yield "| decoder | words | F1 | F2 | F3 | F3 with the decoder's log |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in DECODERS:
        for n_tokens in SIZES:
            runs = 4 * n_runs if name == "correct" else n_runs
            found = " | ".join(f"{x:.2f}" for x in shares(name, n_tokens, runs, seed))
            yield f"| {name} | {n_tokens:,} | {found} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="per row; four times for `correct`")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began = time.monotonic()
    print(f"Σ min(p, q) of the draft: {np.minimum(P, Q).sum(-1).mean():.2f}")
    for line in table(args.runs, args.seed):
        print(line, flush=True)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
