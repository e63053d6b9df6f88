"""Train a target on text, and distil a draft from a target. Both resume from their checkpoint."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from common import Preset, Work
from transformers import LlamaForCausalLM

SAVE_SECONDS = 60
LOG_STEPS = 25


@dataclass(frozen=True)
class Schedule:
    steps: int
    peak: float
    warmup: int = 60

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to 5 % of the peak."""
        warmup = min(self.warmup, self.steps // 10 + 1)
        if step < warmup:
            return self.peak * (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - warmup)
        return self.peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


class MasterAdamW:
    """AdamW on float32 copies of a bfloat16 model.

    The passes then run in bfloat16 (about twice as fast here), and small updates are not lost to
    rounding. What is shipped is exactly the bfloat16 model that was trained.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.live = list(model.parameters())
        self.master = [p.detach().float().clone().requires_grad_() for p in self.live]
        matrices = [p for p in self.master if p.ndim > 1]
        vectors = [p for p in self.master if p.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": 0.05},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.inner = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=True)

    def step(self, rate: float) -> None:
        for master, live in zip(self.master, self.live, strict=True):
            master.grad = live.grad.float()
            live.grad = None
        torch.nn.utils.clip_grad_norm_(self.master, 1.0)
        for group in self.inner.param_groups:
            group["lr"] = rate
        self.inner.step()
        with torch.no_grad():
            for master, live in zip(self.master, self.live, strict=True):
                live.copy_(master)

    def state(self) -> dict:
        return {"master": [p.detach() for p in self.master], "inner": self.inner.state_dict()}

    def load(self, state: dict) -> None:
        with torch.no_grad():
            for mine, saved in zip(self.master, state["master"], strict=True):
                mine.copy_(saved)
        self.inner.load_state_dict(state["inner"])


class TextWindows:
    """Windows at random places of the token streams; `weights` says how often from which."""

    def __init__(self, work: Work, weights: dict[str, float], window: int) -> None:
        self.streams = [np.load(work.tokens(domain), mmap_mode="r") for domain in weights]
        total = sum(weights.values())
        self.weights = [weight / total for weight in weights.values()]
        self.window = window

    def draw(self, count: int, rng: np.random.Generator) -> torch.Tensor:
        rows = np.empty((count, self.window), dtype=np.int64)
        for row in rows:
            stream = self.streams[rng.choice(len(self.streams), p=self.weights)]
            start = rng.integers(0, len(stream) - self.window)
            row[:] = stream[start : start + self.window]
        return torch.from_numpy(rows)


def run_steps(
    work: Work,
    name: str,
    model: LlamaForCausalLM,
    schedule: Schedule,
    loss_of: Callable[[int], torch.Tensor],
) -> None:
    """Take `schedule.steps` optimizer steps, saving every minute; go on where a kill left off.

    `loss_of(step)` draws its batch from a generator seeded by the step, so a resumed run sees the
    batches that an uninterrupted one would have seen.
    """
    path = work.checkpoint(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    optimizer = MasterAdamW(model)
    first = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load(saved["optimizer"])
        first = saved["step"]
    saved_at = logged_at = time.monotonic()
    losses = []
    for step in range(first, schedule.steps):
        loss = loss_of(step)
        loss.backward()
        optimizer.step(schedule.rate(step))
        losses.append(loss.item())
        if (step + 1) % LOG_STEPS == 0:
            now = time.monotonic()
            mean = sum(losses) / len(losses)
            pace = len(losses) / (now - logged_at)
            place = f"{name} {step + 1}/{schedule.steps}"
            print(f"{place} loss {mean:.3f} {pace:.2f} steps/s", flush=True)
            losses, logged_at = [], now
        if time.monotonic() - saved_at > SAVE_SECONDS or step + 1 == schedule.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state(), "step": step + 1}
            partial = path.with_suffix(".partial")
            torch.save(state, partial)
            os.replace(partial, path)
            saved_at = time.monotonic()


def train_on_text(
    work: Work,
    preset: Preset,
    name: str,
    model: LlamaForCausalLM,
    weights: dict[str, float],
    schedule: Schedule,
) -> None:
    """Next-token cross-entropy on windows of text."""
    windows = TextWindows(work, weights, preset.window + 1)

    def loss_of(step: int) -> torch.Tensor:
        batch = windows.draw(preset.batch, np.random.default_rng((7, step)))
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits.float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    model.train()
    run_steps(work, name, model, schedule, loss_of)
