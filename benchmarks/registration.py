"""Registration against the plain tools: `sha256sum`, `cp` and `sync` over the same files.

Two models of random weights are registered as a pair (copy and hash in one pass, two workers,
every blob synced) and the time is divided by that of the three commands. Then a second version
with the same target and a new draft is divided by hashing alone over its files, by `sha256sum`
and, for the record, by the same library with the same two workers. Of the unchanged target only
the stored copy is hashed; the new draft must be written and synced, which hashing does not. The
result counts only after every stored blob was hashed again and found equal to `sha256sum`'s line,
and if the peak of memory rises by `MEMORY_MIB` at most, whatever the size of the files.

    python benchmarks/registration.py --mib 512 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pairgate.app.register import register
from pairgate.app.workspace import Workspace, now
from pairgate.store.streams import hash_file

TARGET_RATIO = 0.8
SECOND_RATIO = 1.1
MEMORY_MIB = 64


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
    started = time.perf_counter()
    _, sums = sha256sum(models)
    for model in models:
        subprocess.run(["cp", "-r", "--reflink=auto", str(model), str(out)], check=True)
    subprocess.run(["sync"], check=True)
    return time.perf_counter() - started, sums


def sha256sum(models: list[Path]) -> tuple[float, dict[str, str]]:
    """Seconds of the command over all files of the models, and the hash of every file."""
    files = [str(f) for model in models for f in sorted(model.iterdir())]
    started = time.perf_counter()
    sums = subprocess.run(["sha256sum", *files], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    lines = (line.split(maxsplit=1) for line in sums.stdout.splitlines())
    return seconds, {name: "sha256:" + digest for digest, name in lines}


def hashing(models: list[Path]) -> float:
    """Seconds to hash all files in this process, with as many workers as registration has."""

    def digest(path: Path) -> str:
        with path.open("rb", buffering=0) as file:
            return hash_file(file, None)

    files = [f for model in models for f in model.iterdir()]
    started = time.perf_counter()
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(digest, files))
    return time.perf_counter() - started


def registration(models: list[Path], home: Path, sums: dict[str, str]) -> tuple[float, float]:
    """Seconds, and by how many MiB the peak of resident memory rose."""
    ws = Workspace.open(home=str(home), create=True)
    if not ws.registry.lines():
        ws.registry.create_line("bench", now())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    done = register(ws, "bench", target=str(models[0]), draft=str(models[1]))
    seconds = time.perf_counter() - started
    rose = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for folder, ref in zip(models, done.pair.models, strict=True):
        for entry in ref.files:
            ws.blobs.verify(entry.sha256)
            assert sums[str(folder / entry.path)] == entry.sha256, entry.path
    ws.close()
    return seconds, rose


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of each model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; default the temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        root = Path(name)
        models = [make_model(root / f"model-{n}", args.mib, seed=n) for n in range(3)]
        subprocess.run(["sync"], check=True)
        ratios, second_ratios, rises = [], [], []
        for _ in range(args.repeats):
            (root / "copy").mkdir()
            first, second = [models[0], models[1]], [models[0], models[2]]
            plain_s, sums = plain_tools(first, root / "copy")
            shutil.rmtree(root / "copy")
            ours_s, rose = registration(first, root / "home", sums)
            sum_s, sums = sha256sum(second)
            hash_s = hashing(second)
            second_s, rose_again = registration(second, root / "home", sums)
            shutil.rmtree(root / "home")
            ratios.append(ours_s / plain_s)
            second_ratios.append(second_s / sum_s)
            rises += [rose, rose_again]
            print(f"plain {plain_s:.2f} s, register {ours_s:.2f} s, ratio {ratios[-1]:.2f}")
            print(
                f"sha256sum {sum_s:.2f} s, hashing {hash_s:.2f} s, new draft {second_s:.2f} s: "
                f"{second_ratios[-1]:.2f} and {second_s / hash_s:.2f}"
            )
    size = f"2 × {args.mib} MiB"
    held = [
        _held(f"{size}: ratio", sorted(ratios)[len(ratios) // 2], TARGET_RATIO),
        _held(f"{size}, new draft: ratio", sorted(second_ratios)[len(ratios) // 2], SECOND_RATIO),
        _held(f"{size}: memory rose by MiB", max(rises), MEMORY_MIB),
    ]
    return 0 if all(held) else 1


def _held(what: str, found: float, limit: float) -> bool:
    print(f"{what} {found:.2f}, at most {limit}: {'ok' if found <= limit else 'NOT HELD'}")
    return found <= limit


if __name__ == "__main__":
    sys.exit(main())
