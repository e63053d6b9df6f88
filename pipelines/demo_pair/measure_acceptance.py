"""Token acceptance of the demo's pairs, teacher-forced, by domain.

The target continues every prompt of a slice with the request's own sampling parameters, in float32.
Then both models score that continuation. At a sampled position the acceptance is sum_y min(p, q),
with p and q after temperature, top-k and top-p; at temperature 0 it is 1 where both have the same
argmax. This is what speculative decoding accepts in expectation, without running it; what a replay
counts differs a little, because the bonus token after a fully accepted round is never tested.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from common import read_jsonl, write_text_atomically
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

PAIRS = {
    "v1": ("target-base", "draft-base"),
    "v2": ("target-tuned", "draft-base"),
    "v3": ("target-tuned", "draft-tuned"),
}
BATCH = 60


def probabilities(logits: torch.Tensor, bodies: list[dict]) -> torch.Tensor:
    """Softmax after temperature, top-k and top-p, a request per row. Greedy rows are one-hot."""
    rows = []
    for row, body in zip(logits, bodies, strict=True):
        if body["temperature"] == 0:
            best = row.argmax(-1, keepdim=True)
            rows.append(torch.zeros_like(row).scatter(-1, best, 1.0))
            continue
        row = row / body["temperature"]
        if body.get("top_k"):
            least = row.topk(body["top_k"], dim=-1).values[..., -1:]
            row = row.masked_fill(row < least, -torch.inf)
        row = row.softmax(-1)
        if body.get("top_p"):
            ordered, order = row.sort(dim=-1, descending=True)
            # The token that crosses top_p is kept: what counts is the mass before it.
            dropped = ordered.cumsum(-1) - ordered >= body["top_p"]
            row = row.masked_fill(dropped.scatter(-1, order, dropped), 0.0)
            row = row / row.sum(-1, keepdim=True)
        rows.append(row)
    return torch.stack(rows)


class Continuations:
    """Prompts of one batch, padded on the left, and what the target made of them."""

    def __init__(self, target, tokenizer, rows: list[dict]) -> None:
        self.bodies = [row["body"] for row in rows]
        prompts = [body["prompt"] for body in self.bodies]
        padded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        self.ids, self.mask = padded["input_ids"], padded["attention_mask"]
        self.start = self.ids.shape[1]
        self.generate(target, tokenizer.eos_token_id)

    def positions(self) -> torch.Tensor:
        return (self.mask.cumsum(-1) - 1).clamp_min(0)

    def generate(self, target, eos: int) -> None:
        limits = torch.tensor([body["max_tokens"] for body in self.bodies])
        generators = [torch.Generator().manual_seed(body["seed"]) for body in self.bodies]
        cache = DynamicCache(config=target.config)
        step, going, counted = self.ids, torch.ones(len(limits), dtype=torch.bool), []
        for number in range(int(limits.max())):
            places = self.positions()[:, -step.shape[1] :]
            logits = target(
                input_ids=step,
                attention_mask=self.mask,
                position_ids=places,
                past_key_values=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            chances = probabilities(logits, self.bodies)
            pairs = zip(chances, generators, strict=True)
            step = torch.stack([torch.multinomial(row, 1, generator=one) for row, one in pairs])
            going = going & (number < limits)
            counted.append(going)
            going = going & (step[:, 0] != eos)
            self.ids = torch.cat([self.ids, step], dim=1)
            self.mask = torch.cat([self.mask, torch.ones_like(step)], dim=1)
        self.counted = torch.stack(counted, dim=1)

    def scores(self, model) -> torch.Tensor:
        logits = model(
            input_ids=self.ids, attention_mask=self.mask, position_ids=self.positions()
        ).logits
        return probabilities(logits[:, self.start - 1 : -1], self.bodies)


@torch.inference_mode()
def measure(models: Path, slice_path: Path, pairs: dict[str, tuple[str, str]]) -> list[dict]:
    """One row for each pair and request: the acceptance of its positions, summed, and how many."""
    requests = sorted(read_jsonl(slice_path), key=lambda row: len(row["body"]["prompt"]))
    results = []
    for target_name in sorted({target for target, _ in pairs.values()}):
        tokenizer = AutoTokenizer.from_pretrained(models / target_name)
        target = load(models / target_name)
        mine = {
            pair: load(models / draft)
            for pair, (owner, draft) in pairs.items()
            if owner == target_name
        }
        for first in range(0, len(requests), BATCH):
            rows = requests[first : first + BATCH]
            texts = Continuations(target, tokenizer, rows)
            goal = texts.scores(target)
            for pair, draft in mine.items():
                alpha = torch.minimum(goal, texts.scores(draft)).sum(-1) * texts.counted
                sums = zip(rows, alpha.sum(-1), texts.counted.sum(-1), strict=True)
                results += [result(pair, *each) for each in sums]
    return results


def result(pair: str, row: dict, total: torch.Tensor, count: torch.Tensor) -> dict:
    return {
        "pair": pair,
        "domain": row["domain"],
        "kind": "sampled" if row["body"]["temperature"] else "greedy",
        "accepted": float(total),
        "positions": int(count),
    }


def load(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def summarise(results: list[dict]) -> list[dict]:
    """Pooled over positions, and the mean over requests, for each pair, domain and kind."""
    groups: dict[tuple[str, str, str], list[dict]] = {}
    for row in results:
        for kind in (row["kind"], "all"):
            groups.setdefault((row["pair"], row["domain"], kind), []).append(row)
    lines = []
    for (pair, domain, kind), rows in sorted(groups.items()):
        positions = sum(row["positions"] for row in rows)
        each = [row["accepted"] / row["positions"] for row in rows]
        lines.append(
            {
                "pair": pair,
                "domain": domain,
                "kind": kind,
                "requests": len(rows),
                "positions": positions,
                "acceptance": round(sum(row["accepted"] for row in rows) / positions, 4),
                "request_mean": round(sum(each) / len(each), 4),
            }
        )
    return lines


def show(name: str, lines: list[dict]) -> None:
    print(f"slice {name}")
    print(
        f"{'pair':5}{'domain':11}{'kind':9}{'requests':>9}{'positions':>10}{'pooled':>8}{'mean':>8}"
    )
    for row in lines:
        counts = f"{row['requests']:>9}{row['positions']:>10}"
        rates = f"{row['acceptance']:>8.3f}{row['request_mean']:>8.3f}"
        print(f"{row['pair']:5}{row['domain']:11}{row['kind']:9}{counts}{rates}")


def report(ship: Path, pairs: dict[str, tuple[str, str]]) -> None:
    """v1 on `base`; every pair that exists on `release`. Also written to acceptance.json."""
    out = {}
    for name in ("base", "release"):
        mine = {"v1": pairs["v1"]} if name == "base" else pairs
        out[name] = summarise(measure(ship / "models", ship / "slices" / f"{name}.jsonl", mine))
        show(name, out[name])
    write_text_atomically(ship / "acceptance.json", json.dumps(out, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).parent
    parser.add_argument("--dir", type=Path, default=here, help="holds models/ and slices/")
    parser.add_argument("--slice", type=Path, help="only this slice, nothing is written")
    parser.add_argument("--pair", action="append", choices=sorted(PAIRS), help="only these pairs")
    args = parser.parse_args()
    torch.set_num_threads(2)
    chosen = {name: PAIRS[name] for name in args.pair or PAIRS}
    if args.slice or args.pair:
        path = args.slice or args.dir / "slices" / "release.jsonl"
        show(path.stem, summarise(measure(args.dir / "models", path, chosen)))
    else:
        report(args.dir, chosen)


if __name__ == "__main__":
    main()
