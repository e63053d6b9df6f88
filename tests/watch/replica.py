"""A server's /metrics, /version and /v1/models: the text that vLLM 0.32 really wrote, with the
totals that a test sets."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RECORDED = Path(__file__).resolve().parents[1] / "server" / "recorded" / "metrics.txt"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(kw_only=True)
class Totals:
    """What the server has counted since `started_at`; K = 4."""

    n_drafts: int = 0
    n_accepted: int = 0
    n_generated: int = 0
    n_finished: int = 0
    started_at: float = 1_760_000_000.0
    drafting: bool = True

    def serve(self, n_drafts: int, acceptance_rate: float) -> None:
        """As many draft steps of four proposals, accepted at this rate, ten steps per request."""
        accepted = round(n_drafts * 4 * acceptance_rate)
        self.n_drafts += n_drafts
        self.n_accepted += accepted
        self.n_generated += n_drafts + accepted + n_drafts // 10
        self.n_finished += n_drafts // 10

    def text(self) -> str:
        """The recorded text with these totals."""
        values = {
            "vllm:spec_decode_num_drafts_total": self.n_drafts,
            "vllm:spec_decode_num_draft_tokens_total": self.n_drafts * 4,
            "vllm:spec_decode_num_accepted_tokens_total": self.n_accepted,
            "vllm:generation_tokens_total": self.n_generated,
        }
        lines = []
        for line in RECORDED.read_text().splitlines():
            name = re.match(r"[\w:]+", line)
            if name is None:
                lines.append(line)
            elif name[0].startswith("vllm:spec_decode") and not self.drafting:
                continue
            elif name[0] in values:
                lines.append(re.sub(r" \S+$", f" {float(values[name[0]])}", line))
            elif name[0] == "vllm:request_success_total":
                n = self.n_finished if "length" in line else 0
                lines.append(re.sub(r" \S+$", f" {float(n)}", line))
            elif name[0] == _PER_POSITION:
                lines.append(re.sub(r" \S+$", f" {float(self.n_accepted // 4)}", line))
            elif name[0] != "process_start_time_seconds":
                lines.append(line)
        lines.append(f"process_start_time_seconds {self.started_at}")
        return "\n".join(lines) + "\n"


@dataclass(kw_only=True)
class Replica:
    """A server on a port of this machine; use as a context manager."""

    names: list[str] = field(default_factory=lambda: ["line"])
    version: str = "0.32.0"
    totals: Totals = field(default_factory=Totals)
    broken: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Replica:
        replica = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = replica.answer(self.path)
                self.send_response(500 if body is None else 200)
                self.end_headers()
                self.wfile.write((body or "broken").encode())

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> str | None:
        if self.broken:
            return None
        if path == "/metrics":
            return self.totals.text()
        if path == "/version":
            return json.dumps({"version": self.version})
        if path == "/v1/models":
            return json.dumps({"data": [{"id": n, "max_model_len": 512} for n in self.names]})
        return None
