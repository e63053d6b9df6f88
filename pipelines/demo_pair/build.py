"""Make the demo pair from nothing: text, tokenizer, targets, drafts, slices, acceptance.

    python pipelines/demo_pair/build.py --out build/demo_pair

Every part looks for what it would make and skips it, and training goes on from its last checkpoint,
so after a kill the same command continues. `--only` runs one part. `--smoke` runs the whole recipe
in about two minutes with tiny models, on text of the standard library, without a network.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

# Two training threads that spin at every barrier stand nearly still when another process wants a
# core (0.12 steps/s against 0.8 measured); sleeping waits cost little. Read when OpenMP starts.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import corpus
import measure_acceptance
import slices
import torch
import vocabulary
from common import FULL, SMOKE, Preset, Work, timed
from distilling import distil, sample_continuations, start_from_target
from models import build_model, export, load_checkpoint
from training import Schedule, train_on_text

BASE_TEXT = {"python": 1.0, "manual": 1.0, "general": 0.6}
# Some of the old text stays in, so that the tuned target does not forget it.
TUNED_TEXT = {"python": 0.5, "manual": 0.5, "general": 0.2, "sql": 1.2, "scripture": 1.2}
DRAFT_TEXT = {"python": 1.0, "manual": 1.0, "general": 0.4, "sql": 1.0, "scripture": 1.0}


class Recipe:
    """The parts in their order. Each is a method without arguments and may be run again."""

    def __init__(self, work: Work, preset: Preset) -> None:
        self.work, self.preset = work, preset

    def corpus(self) -> None:
        corpus.build(self.work, self.preset)

    def tokenizer(self) -> None:
        vocabulary.train(self.work, self.preset)
        vocabulary.encode(self.work)

    def slices(self) -> None:
        slices.build(self.work, self.preset)

    def new_model(self, layers: int, seed: int):
        return build_model(self.work, self.preset, layers, seed)

    def target(self, name: str):
        return load_checkpoint(self.work, self.new_model(self.preset.target_layers, 1), name)

    def target_base(self) -> None:
        model = self.new_model(self.preset.target_layers, seed=1)
        schedule = Schedule(self.preset.target_steps, self.preset.target_lr)
        train_on_text(self.work, self.preset, "target-base", model, BASE_TEXT, schedule)
        export(self.work, model, "target-base")

    def sample_base(self) -> None:
        target = self.target("target-base").eval()
        sample_continuations(self.work, self.preset, "base", target, BASE_TEXT)

    def draft_base(self) -> None:
        target, draft = self.target("target-base"), self.new_model(self.preset.draft_layers, seed=2)
        start_from_target(draft, target)
        schedule = Schedule(self.preset.draft_steps, self.preset.draft_lr)
        distil(self.work, self.preset, "draft-base", draft, target, "base", BASE_TEXT, schedule)
        export(self.work, draft, "draft-base")

    def target_tuned(self) -> None:
        model = self.target("target-base")
        schedule = Schedule(self.preset.tune_steps, self.preset.tune_lr)
        train_on_text(self.work, self.preset, "target-tuned", model, TUNED_TEXT, schedule)
        export(self.work, model, "target-tuned")

    def sample_tuned(self) -> None:
        target = self.target("target-tuned").eval()
        sample_continuations(self.work, self.preset, "tuned", target, DRAFT_TEXT)

    def draft_tuned(self) -> None:
        draft = self.new_model(self.preset.draft_layers, seed=2)
        load_checkpoint(self.work, draft, "draft-base")
        target = self.target("target-tuned")
        schedule = Schedule(self.preset.redraft_steps, self.preset.draft_lr)
        distil(self.work, self.preset, "draft-tuned", draft, target, "tuned", DRAFT_TEXT, schedule)
        export(self.work, draft, "draft-tuned")

    def acceptance(self) -> None:
        measure_acceptance.report(self.work.ship, measure_acceptance.PAIRS)

    def parts(self) -> dict[str, Callable[[], None]]:
        return {
            "corpus": self.corpus,
            "tokenizer": self.tokenizer,
            "slices": self.slices,
            "target-base": self.target_base,
            "sample-base": self.sample_base,
            "draft-base": self.draft_base,
            "target-tuned": self.target_tuned,
            "sample-tuned": self.sample_tuned,
            "draft-tuned": self.draft_tuned,
            "acceptance": self.acceptance,
        }


def main() -> None:
    names = list(Recipe(Work(Path(), Path()), SMOKE).parts())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="scratch: corpora and checkpoints")
    parser.add_argument("--ship", type=Path, help="models and slices (default: OUT/ship)")
    parser.add_argument("--only", action="append", choices=names, help="run only this part")
    parser.add_argument("--smoke", action="store_true", help="the whole recipe, tiny")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    work = Work(args.out, args.ship or args.out / "ship")
    work.root.mkdir(parents=True, exist_ok=True)
    for name, part in Recipe(work, SMOKE if args.smoke else FULL).parts().items():
        if not args.only or name in args.only:
            with timed(work, name):
                part()


if __name__ == "__main__":
    main()
