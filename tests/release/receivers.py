"""Real HTTP servers on loopback that receive webhooks, well or badly."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
Answer = tuple[int, dict[str, str]]


@dataclass
class Receiver:
    """`answers` are used up one by one, the last one stays. `delay_s` comes before each."""

    url: str
    answers: list[Answer] = field(default_factory=lambda: [(204, {})])
    delay_s: float = 0.0
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]


@contextmanager
def receiver(context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """One that keeps what it gets and answers as it is told."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.got.append((headers, body))
            time.sleep(made.delay_s)
            status, extra = made.answers.pop(0) if len(made.answers) > 1 else made.answers[0]
            try:
                self.send_response(status)
                for name, value in {"content-length": "0", **extra}.items():
                    self.send_header(name, value)
                self.end_headers()
            except OSError:  # the sender did not wait
                self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if context is None else "https"
    made = Receiver(url=f"{scheme}://localhost:{server.server_port}/hook?token=hidden")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def rude(behaviour: str) -> Iterator[str]:
    """The URL of a server that accepts and then `hangs`, `closes`, or `drips` an endless header."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    over = threading.Event()
    kept: list[socket.socket] = []

    def serve() -> None:
        while not over.is_set():
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            kept.append(peer)
            if behaviour == "closes":
                peer.close()
            elif behaviour == "drips":
                threading.Thread(target=drip, args=(peer,), daemon=True).start()

    def drip(peer: socket.socket) -> None:
        try:
            peer.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
            while not over.wait(0.05):
                peer.sendall(b"a")
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    finally:
        over.set()
        thread.join()
        for peer in (*kept, listener):
            peer.close()
