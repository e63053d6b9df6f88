"""Registration against the plain tools: `sha256sum`, `cp` and `sync` over the same files.

Two models of random weights are registered as a pair (copy and hash in one pass, two workers,
every blob synced) and the time is divided by that of the three commands. The result counts only
after every stored blob was hashed again and found equal to `sha256sum`'s line.

    python benchmarks/registration.py --mib 512 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pairgate.app.register import register
from pairgate.app.workspace import Workspace, now

TARGET_RATIO = 0.8


def make_model(folder: Path, mib: int, seed: int) -> Path:
    """A model folder whose one tensor has `mib` MiB of random bytes."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "vocab_size": mib * 512,
        "max_position_embeddings": 128,
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocab = {"a": 0, "b": 1}
    tokenizer = {"model": {"type": "WordLevel", "vocab": vocab}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    n_bytes = mib << 20
    tensor = {"dtype": "BF16", "shape": [n_bytes // 2], "data_offsets": [0, n_bytes]}
    header = json.dumps({"w": tensor}).encode()
    rng = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(mib):
            file.write(rng.bytes(1 << 20))
    return folder


def plain_tools(models: list[Path], out: Path) -> tuple[float, dict[str, str]]:
    """Seconds of the three commands, and the hash of every file."""
    files = [str(f) for model in models for f in sorted(model.iterdir())]
    started = time.perf_counter()
    sums = subprocess.run(["sha256sum", *files], check=True, capture_output=True, text=True)
    for model in models:
        subprocess.run(["cp", "-r", "--reflink=auto", str(model), str(out)], check=True)
    subprocess.run(["sync"], check=True)
    seconds = time.perf_counter() - started
    lines = (line.split(maxsplit=1) for line in sums.stdout.splitlines())
    return seconds, {name: "sha256:" + digest for digest, name in lines}


def registration(models: list[Path], home: Path, sums: dict[str, str]) -> float:
    ws = Workspace.open(home=str(home), create=True)
    ws.registry.create_line("bench", now())
    started = time.perf_counter()
    done = register(ws, "bench", target=str(models[0]), draft=str(models[1]))
    seconds = time.perf_counter() - started
    for folder, ref in zip(models, done.pair.models, strict=True):
        for entry in ref.files:
            ws.blobs.verify(entry.sha256)
            assert sums[str(folder / entry.path)] == entry.sha256, entry.path
    ws.close()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of each model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; default the temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        root = Path(name)
        models = [make_model(root / f"model-{n}", args.mib, seed=n) for n in range(2)]
        subprocess.run(["sync"], check=True)
        ratios = []
        for n in range(args.repeats):
            (root / "copy").mkdir()
            plain_s, sums = plain_tools(models, root / "copy")
            ours_s = registration(models, root / f"home-{n}", sums)
            ratios.append(ours_s / plain_s)
            print(f"plain {plain_s:.2f} s, register {ours_s:.2f} s, ratio {ratios[-1]:.2f}")
            shutil.rmtree(root / "copy")
            shutil.rmtree(root / f"home-{n}")
    median = sorted(ratios)[len(ratios) // 2]
    verdict = "ok" if median <= TARGET_RATIO else "too slow"
    print(f"2 × {args.mib} MiB: median ratio {median:.2f}, at most {TARGET_RATIO}: {verdict}")
    return 0 if median <= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
