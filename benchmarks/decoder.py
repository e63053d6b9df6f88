"""The native decoder against bare forward passes, against the target alone and, at concurrency 1,
against transformers' assisted generation; ratios from one run, correctness first.

    python benchmarks/decoder.py                               # random models of the demo's size
    python benchmarks/decoder.py --target DIR --draft DIR      # a real pair
    python benchmarks/decoder.py --quick                       # a few seconds

`overhead` is the decoder's time over the time of the passes that it made: the same models,
rows, tokens and lengths, through transformers' own DynamicCache, without masks or sampling.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pairgate.domain.traffic import Request, Sampling
from pairgate.engines.native.batched import BatchedDecoder, DecoderSettings
from pairgate.engines.native.loading import LoadedModel, load_model, wrap_model
from pairgate.engines.native.row import Ends

CPU = torch.device("cpu")
clock: Callable[[], float] = time.perf_counter
BUCKET = 32  # lengths are rounded up to this when bare passes are timed


def random_pair() -> tuple[LoadedModel, LoadedModel]:
    """Twelve layers and one, of the demo pair's width. All but the target's first layer add next
    to nothing, so that the draft is accepted about as often as a trained one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(layers: int) -> Any:
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=2048, hidden_size=192, intermediate_size=512, head_dim=64,
                num_hidden_layers=layers, num_attention_heads=3, num_key_value_heads=3,
                max_position_embeddings=1024, bos_token_id=None, eos_token_id=None,
            )
        )  # fmt: skip

    target, draft = build(12), build(1)
    with torch.no_grad():
        target.lm_head.weight *= 12.0
        for layer in target.model.layers[1:]:
            layer.self_attn.o_proj.weight *= 0.1
            layer.mlp.down_proj.weight *= 0.1
        draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
        draft.model.layers[0].load_state_dict(target.model.layers[0].state_dict())
        draft.model.norm.load_state_dict(target.model.norm.state_dict())
        draft.lm_head.load_state_dict(target.lm_head.state_dict())
    return wrap_model(target, "target", device=CPU), wrap_model(draft, "draft", device=CPU)


def make_requests(n: int, vocab: int, *, temperature: float, n_new: int) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(
            id=f"r{i}", domain="bench", body="{}", max_tokens=n_new,
            sampling=Sampling(temperature=temperature, seed=i),
            token_ids=tuple(rng.integers(0, min(vocab, 1000), int(rng.integers(24, 200))).tolist()),
        )
        for i in range(n)
    ]  # fmt: skip


@dataclass
class Measured:
    """One run. `shapes` counts (model role, rows, q, length bucket)."""

    wall_s: float = 0.0
    n_tokens: int = 0
    accepted: int = 0
    tested: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    shapes: Counter[tuple[str, int, int, int]] = field(default_factory=Counter)


def decode(
    target: LoadedModel, draft: LoadedModel | None, requests: list[Request], *, k: int,
    concurrency: int, log_shapes: bool = False,
) -> Measured:  # fmt: skip
    settings = DecoderSettings(
        k=k, n_rows=concurrency, max_model_len=400, run_seed=0, with_draft=draft is not None
    )
    found = Measured()
    with _logged(found.shapes) if log_shapes else _nothing():
        decoder = BatchedDecoder(
            target, draft, settings,
            ends=Ends(eos=frozenset()), encode=lambda r: list(r.token_ids or ()),
        )  # fmt: skip
        begin = clock()
        for trace in decoder.run(enumerate(requests)):
            assert trace.error == "", trace.error
            found.n_tokens += trace.completion_tokens
            found.accepted += int(trace.accepted.sum())
            found.tested += int((trace.accepted + (trace.accepted < trace.proposed)).sum())
            found.tokens[trace.request_id] = trace.tokens.tolist()
        found.wall_s = clock() - begin
    return found


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _logged(shapes: Counter[tuple[str, int, int, int]]) -> Iterator[None]:
    original = LoadedModel.forward

    def forward(self: LoadedModel, tokens: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        length = -(-keywords["length"] // BUCKET) * BUCKET
        shapes[(self.role, tokens.shape[0], tokens.shape[1], length)] += 1
        return original(self, tokens, *args, **keywords)

    LoadedModel.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        LoadedModel.forward = original  # type: ignore[method-assign]


@torch.inference_mode()
def bare_seconds(
    models: dict[str, LoadedModel], shapes: Counter[tuple[str, int, int, int]], repeats: int
) -> float:
    """Seconds of all passes in `shapes`, each shape timed `repeats` times (median)."""
    from transformers import DynamicCache

    total = 0.0
    for (role, rows, q, length), count in shapes.items():
        model = models[role]
        config = model.model.config
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        past = max(length - q - BUCKET // 2, 0)  # the middle of the bucket
        times = []
        for _ in range(repeats):
            cache = DynamicCache()
            if past:
                for layer in range(model.n_layers):
                    filled = torch.zeros(rows, heads, past, config.head_dim, dtype=model.dtype)
                    cache.update(filled, filled.clone(), layer)
            tokens = torch.zeros(rows, q, dtype=torch.int64)
            keep = 1 if model.role == "draft" or q > 16 else 0
            begin = clock()
            model.model(input_ids=tokens, logits_to_keep=keep, **{model.cache_argument: cache})
            times.append(clock() - begin)
        total += count * statistics.median(times)
    return total


@torch.inference_mode()
def assisted(
    target: LoadedModel, draft: LoadedModel, requests: list[Request], *, k: int
) -> Measured:
    """transformers' assisted generation with the same draft length, greedy, one by one."""
    found = Measured()
    draft.model.generation_config.num_assistant_tokens = k
    draft.model.generation_config.num_assistant_tokens_schedule = "constant"
    draft.model.generation_config.assistant_confidence_threshold = 0.0
    begin = clock()
    for request in requests:
        ids = torch.tensor([request.token_ids])
        out = target.model.generate(
            ids, attention_mask=torch.ones_like(ids), assistant_model=draft.model,
            do_sample=False, max_new_tokens=request.max_tokens, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        found.tokens[request.id] = out[0, ids.shape[1] :].tolist()
        found.n_tokens += len(found.tokens[request.id])
    found.wall_s = clock() - begin
    return found


def check(target: LoadedModel, draft: LoadedModel, requests: list[Request], k: int) -> None:
    """Greedy output with draft equals the target alone: nothing is timed on a wrong decoder."""
    spec = decode(target, draft, requests, k=k, concurrency=4)
    alone = decode(target, None, requests, k=k, concurrency=1)
    assert spec.tokens == alone.tokens, "greedy output differs from the target alone"
    print(f"correct: {len(requests)} greedy requests equal the target alone")


def interleaved(runs: dict[str, Callable[[], Measured]], repeats: int) -> dict[str, list[Measured]]:
    """A B, B A, A B, …: drift of the machine cancels."""
    found: dict[str, list[Measured]] = {name: [] for name in runs}
    for i in range(repeats):
        for name in list(runs)[:: 1 if i % 2 == 0 else -1]:
            found[name].append(runs[name]())
    return found


def median_rate(runs: list[Measured]) -> float:
    """Tokens per second of the median run."""
    return statistics.median(r.n_tokens / r.wall_s for r in runs)


def row(
    models: dict[str, LoadedModel], requests: list[Request], concurrency: int, k: int, repeats: int
) -> str:
    """One line of the table: acceptance, rates, their ratio, overhead over the bare passes."""

    def once(draft: LoadedModel | None) -> Measured:
        return decode(
            models["target"], draft, requests, k=k, concurrency=concurrency, log_shapes=True
        )

    runs = interleaved(
        {"alone": lambda: once(None), "pair": lambda: once(models["draft"])}, repeats
    )
    overhead = {
        name: statistics.median(r.wall_s for r in found)
        / bare_seconds(models, found[-1].shapes, 2 + repeats)
        for name, found in runs.items()
    }
    pair, alone = median_rate(runs["pair"]), median_rate(runs["alone"])
    accepted = runs["pair"][0].accepted / runs["pair"][0].tested
    return (
        f"{accepted:>7.3f} {alone:>8.1f} {pair:>8.1f} {pair / alone:>8.2f} "
        f"{overhead['alone']:>15.3f} {overhead['pair']:>14.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: processor time of this process, where others use the machine (--threads 1)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.clock == "cpu":
        global clock
        clock = time.process_time
    if args.target:
        target = load_model(args.target, "target", device=CPU)
        draft = load_model(args.draft, "draft", device=CPU)
    else:
        target, draft = random_pair()
    n_new, repeats = (16, 1) if args.quick else (args.new_tokens, args.repeats)
    models = {"target": target, "draft": draft}
    greedy = make_requests(4, target.vocab_size, temperature=0.0, n_new=n_new)
    check(target, draft, greedy, args.k)

    print(f"{'concurrency':>11} {'temp':>5} {'accept':>7} {'alone/s':>8} {'pair/s':>8} "
          f"{'speedup':>8} {'overhead alone':>15} {'overhead pair':>14}")  # fmt: skip
    for concurrency in (1, 8):
        for temperature in (0.0, 1.0):
            requests = make_requests(
                max(4, concurrency), target.vocab_size, temperature=temperature, n_new=n_new
            )
            numbers = row(models, requests, concurrency, args.k, repeats)
            print(f"{concurrency:>11} {temperature:>5} {numbers}")

    peer = interleaved(
        {
            "ours": lambda: decode(target, draft, greedy, k=args.k, concurrency=1),
            "assisted": lambda: assisted(target, draft, greedy, k=args.k),
        },
        repeats,
    )
    same = peer["ours"][0].tokens == peer["assisted"][0].tokens
    ratio = median_rate(peer["ours"]) / median_rate(peer["assisted"])
    print(f"assisted generation: equal output: {same}; ours is {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
