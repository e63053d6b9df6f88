"""Registering a 140 GB target by reference with a new 1 GB head: how much moves, and how long.

The target's shards are sparse files behind a small read-only server that speaks what S3's client
needs (listing, HEAD, ranges) and stands in for S3; their hashes come from a checksums file, as
`sha256sum` would have written it where the model was made. The server counts what it sends.

    python benchmarks/referenced_target.py --target-gb 140 --head-mib 954

The result counts only if the pair has all files of the target at their sizes, the store holds the
head and none of the shards, and a shard that is changed afterwards is found.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np

from pairgate.app.register import presence, register
from pairgate.app.workspace import Workspace, now
from pairgate.domain.pair import Pair

LIMIT_S = 60.0
HIDDEN, VOCAB = 8192, 32_000


@dataclass
class RangeServer:
    """ROOT/<bucket>/<key> as read-only buckets, on a free port of loopback."""

    root: Path
    sent_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> RangeServer:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def count(self, n_bytes: int) -> None:
        with self._lock:
            self.sent_bytes += n_bytes


class _Handler(BaseHTTPRequestHandler):
    owner: RangeServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        path = self.owner.root / unquote(url.path).strip("/")
        if "list-type" in query:
            return self._listing(path, query.get("prefix", [""])[0])
        if not path.is_file():
            return self._send(404, {}, b"")
        found = path.stat()
        headers = {"ETag": f'"{found.st_mtime_ns:x}"', "Accept-Ranges": "bytes"}
        first, last = 0, found.st_size - 1
        ranged = self.headers.get("Range")
        if ranged:
            begin, _, end = ranged.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            headers["Content-Range"] = f"bytes {first}-{last}/{found.st_size}"
        with path.open("rb") as file:
            file.seek(first)
            data = file.read(last - first + 1) if with_body else b""
        headers["Content-Length"] = str(last - first + 1)
        return self._send(206 if ranged else 200, headers, data)

    def _listing(self, bucket: Path, prefix: str) -> None:
        files = sorted(p for p in (bucket / prefix).glob("*") if p.is_file())
        entries = "".join(
            f"<Contents><Key>{escape(str(p.relative_to(bucket)))}</Key>"
            f"<Size>{p.stat().st_size}</Size><ETag>x</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for p in files
        )
        body = (
            '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
            f"<Name>{bucket.name}</Name><KeyCount>{len(files)}</KeyCount>{entries}"
            "</ListBucketResult>"
        ).encode()
        self._send(200, {"Content-Length": str(len(body))}, body)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.owner.count(len(body))


def write_sparse_target(folder: Path, n_bytes: int, n_shards: int) -> Path:
    """A sharded model of `n_bytes` that takes a few blocks of disk; returns its checksums file.

    The hashes are of the right form only: nobody reads 140 GB of zeros to make them.
    """
    folder.mkdir(parents=True)
    _write_documents(folder, n_layers=80)
    weight_map, sums = {}, []
    per_shard = n_bytes // n_shards // (2 * HIDDEN) * HIDDEN
    for n in range(1, n_shards + 1):
        name, tensor = f"model-{n:05}-of-{n_shards:05}.safetensors", f"model.layers.{n}.weight"
        _write_sparse(folder / name, tensor, (per_shard // HIDDEN, HIDDEN))
        weight_map[tensor] = name
        sums.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n")
    index = {"metadata": {"total_size": 2 * per_shard * n_shards}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    checksums = folder.parent / "SHA256SUMS"
    checksums.write_text("".join(sums))
    return checksums


def write_head(folder: Path, mib: int) -> Path:
    """An EAGLE-3 head whose weights have about `mib` MiB of random bytes."""
    folder.mkdir(parents=True)
    rows = (mib << 20) // (2 * 3 * HIDDEN)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 64,
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shape = (rows, 3 * HIDDEN)
    _write_sparse(folder / "model.safetensors", "fc.weight", shape)
    rng = np.random.default_rng(0)
    with (folder / "model.safetensors").open("r+b") as file:
        (n_header,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + n_header)
        for n_left in range(rows * 3 * HIDDEN * 2, 0, -(1 << 20)):
            file.write(rng.bytes(min(n_left, 1 << 20)))
    return folder


def _write_documents(folder: Path, *, n_layers: int) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": n_layers,
        "num_attention_heads": 64,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocab = {f"t{n}": n for n in range(VOCAB)}
    tokenizer = {"model": {"type": "WordLevel", "vocab": vocab}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def _write_sparse(path: Path, tensor: str, shape: tuple[int, int]) -> None:
    n_bytes = 2 * shape[0] * shape[1]
    entry = {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, n_bytes]}
    header = json.dumps({tensor: entry}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + n_bytes)


def use_server(url: str) -> None:
    """Make S3's client talk to the stand-in, without credentials that could be real ones."""
    os.environ |= {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "stand-in",
        "AWS_SECRET_ACCESS_KEY": "stand-in",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def check(ws: Workspace, pair: Pair, target: Path) -> None:
    """What must hold, or the time counts for nothing."""
    shards = [f for f in pair.target.files if f.path.endswith(".safetensors")]
    assert {f.path: f.size for f in shards} == {
        p.name: p.stat().st_size for p in target.glob("*.safetensors")
    }
    stored = {b.digest: b.n_bytes for b in ws.blobs.list_blobs()}
    assert not stored.keys() & {f.sha256 for f in shards}
    assert pair.draft is not None
    assert all(stored[f.sha256] == f.size for f in pair.draft.files)
    assert presence(ws, pair) == ()
    changed = target / shards[0].path
    os.utime(changed, ns=(1, 1))  # another object of the same size
    (line,) = presence(ws, pair)
    assert changed.name in line, line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target-gb", type=float, default=140.0)
    parser.add_argument("--shards", type=int, default=30)
    parser.add_argument("--head-mib", type=int, default=954, help="954 MiB are 1 GB")
    parser.add_argument("--folder", type=Path, help="where to work; default the temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        root = Path(name)
        target = root / "buckets" / "models" / "big"
        checksums = write_sparse_target(target, int(args.target_gb * 1e9), args.shards)
        head = write_head(root / "head", args.head_mib)
        with RangeServer(root / "buckets") as server:
            use_server(server.url)
            ws = Workspace.open(home=str(root / "home"), create=True)
            ws.registry.create_line("bench", now())
            started = time.perf_counter()
            done = register(
                ws, "bench", target="s3://models/big", draft=str(head), checksums=checksums
            )
            seconds = time.perf_counter() - started
            n_sent = server.sent_bytes
            check(ws, done.pair, target)
        sizes = [sum(f.size for f in model.files) for model in done.pair.models]
        n_stored = sum(b.n_bytes for b in ws.blobs.list_blobs())
        ws.close()
    print(f"target {sizes[0] / 1e9:.1f} GB in {args.shards} shards, head {sizes[1] / 1e9:.2f} GB")
    print(f"read from the server {n_sent / 1e6:.1f} MB, stored {n_stored / 1e9:.2f} GB")
    verdict = "ok" if seconds <= LIMIT_S else "too slow"
    print(f"registered in {seconds:.1f} s, at most {LIMIT_S:.0f} s: {verdict}")
    return 0 if seconds <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
