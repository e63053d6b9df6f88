"""Distil a one-layer draft from a target, on text and on what the target itself writes.

Acceptance is measured on the target's own continuations, so about half of what the draft sees is
sampled from the target first (`sample_continuations`).
"""

from __future__ import annotations

import numpy as np
import torch
from common import Preset, Work
from training import Schedule, TextWindows, run_steps
from transformers import DynamicCache, LlamaForCausalLM

SHORTEST_PROMPT, LONGEST_PROMPT = 24, 200
# Total variation is one minus the acceptance itself; KL keeps a gradient where they hardly overlap.
KL_WEIGHT, VARIATION_WEIGHT = 0.5, 1.0


@torch.inference_mode()
def continue_rows(
    model: LlamaForCausalLM,
    prompts: torch.Tensor,
    new_tokens: int,
    temperatures: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Extend equally long prompts; rows with temperature 0 take the argmax. EOS does not stop."""
    cache = DynamicCache(config=model.config)
    rows, step = prompts, prompts
    greedy = temperatures == 0
    divisor = temperatures.clamp_min(1e-3).unsqueeze(1)
    for _ in range(new_tokens):
        out = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits = out.logits[:, -1].float()
        drawn = torch.multinomial(torch.softmax(logits / divisor, -1), 1, generator=generator)
        step = torch.where(greedy.unsqueeze(1), logits.argmax(-1, keepdim=True), drawn)
        rows = torch.cat([rows, step], dim=1)
    return rows


def sample_continuations(
    work: Work, preset: Preset, name: str, target: LlamaForCausalLM, weights: dict[str, float]
) -> None:
    """Windows that begin with training text and go on with the target's own tokens.

    A third is greedy, a third at temperature 0.7 to 1.0, a third at 1.0. Batches already on disk
    are kept, so a killed run goes on with the next one.
    """
    final = work.sampled(name)
    if final.exists():
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    windows = TextWindows(work, weights, LONGEST_PROMPT)
    parts = []
    for index in range(preset.sampled_sequences // preset.sampled_batch):
        part = final.with_name(f"{name}.{index}.part.npy")
        parts.append(part)
        if part.exists():
            continue
        rng = np.random.default_rng((11, index))
        length = int(rng.integers(SHORTEST_PROMPT, LONGEST_PROMPT + 1))
        prompts = windows.draw(preset.sampled_batch, rng)[:, :length]
        kinds = rng.integers(0, 3, preset.sampled_batch)
        warm = np.where(kinds == 1, rng.uniform(0.7, 1.0, preset.sampled_batch), 1.0)
        temperatures = torch.tensor(np.where(kinds == 0, 0.0, warm), dtype=torch.float32)
        generator = torch.Generator().manual_seed(index)
        rows = continue_rows(target, prompts, preset.window - length, temperatures, generator)
        partial = part.with_suffix(".partial.npy")
        np.save(partial, rows.numpy().astype(np.uint16))
        partial.rename(part)
        print(f"sampled {name} {index + 1}", flush=True)
    np.save(final.with_suffix(".partial.npy"), np.concatenate([np.load(part) for part in parts]))
    final.with_suffix(".partial.npy").rename(final)
    for part in parts:
        part.unlink()


def start_from_target(draft: LlamaForCausalLM, target: LlamaForCausalLM) -> None:
    """Take the embedding, the final norm and the first layer of the target: a shorter way to go."""
    draft.load_state_dict(
        {key: value for key, value in target.state_dict().items() if key in draft.state_dict()}
    )


def distance(draft_logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    draft_log = torch.log_softmax(draft_logits.float(), -1)
    target_log = torch.log_softmax(target_logits.float(), -1)
    target = target_log.exp()
    kl = (target * (target_log - draft_log)).sum(-1).mean()
    variation = 0.5 * (target - draft_log.exp()).abs().sum(-1).mean()
    return KL_WEIGHT * kl + VARIATION_WEIGHT * variation


def distil(
    work: Work,
    preset: Preset,
    name: str,
    draft: LlamaForCausalLM,
    target: LlamaForCausalLM,
    sampled: str,
    weights: dict[str, float],
    schedule: Schedule,
) -> None:
    windows = TextWindows(work, weights, preset.window)
    own = np.load(work.sampled(sampled))
    target.eval().requires_grad_(False)

    def loss_of(step: int) -> torch.Tensor:
        rng = np.random.default_rng((13, step))
        picked = own[rng.integers(0, len(own), preset.batch - preset.batch // 2)]
        text = windows.draw(preset.batch // 2, rng)
        batch = torch.cat([torch.from_numpy(picked.astype(np.int64)), text])
        with torch.no_grad():
            goal = target(input_ids=batch, use_cache=False).logits
        return distance(draft(input_ids=batch, use_cache=False).logits, goal)

    draft.train()
    run_steps(work, name, draft, schedule, loss_of)
