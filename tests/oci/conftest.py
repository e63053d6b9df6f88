"""A real registry server on loopback, a proxy in front of it that misbehaves, and small pairs."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from pairgate.app.register import Registered, register
from pairgate.app.workspace import Workspace, now
from pairgate.cli import cli
from pairgate.errors import PairgateError

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}
MakeModel = Callable[..., Path]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """make_model(name, seed=0) writes a target without a tokenizer, and returns its folder."""

    def make(name: str, *, seed: int = 0) -> Path:
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        weight = np.random.default_rng(seed).standard_normal((320, 16)).astype(np.float32)
        save_file({"model.embed_tokens.weight": weight}, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture
def make_home(tmp_path: Path) -> Iterator[Callable[[str], Workspace]]:
    """make_home(name) is an empty home with the line `chat`."""
    opened: list[Workspace] = []

    def make(name: str) -> Workspace:
        ws = Workspace.open(home=str(tmp_path / name), create=True)
        ws.registry.create_line("chat", now())
        opened.append(ws)
        return ws

    yield make
    for ws in opened:
        ws.close()


@pytest.fixture
def ws(make_home: Callable[[str], Workspace]) -> Workspace:
    return make_home("home")


@pytest.fixture
def done(ws: Workspace, make_model: MakeModel) -> Registered:
    """A registered pair: `chat@1`, target alone."""
    return register(ws, "chat", target=str(make_model("target")))


@pytest.fixture
def run(ws: Workspace) -> Callable[..., Result]:
    """run(*args, home=None): a command on the first home; the result's exit code is ours too."""

    def invoke(*args: object, home: Path | None = None) -> Result:
        result = CliRunner().invoke(cli, ["--home", str(home or ws.home), *map(str, args)])
        if isinstance(result.exception, PairgateError):
            result.exit_code = result.exception.exit_code
        elif result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


# --- the registry server ----------------------------------------------------------------------

HTPASSWD = (
    "ci:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"  # the password is "secret"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running `docker-registry`; `root` is where it keeps its files."""

    host: str
    root: Path

    def blobs(self) -> set[str]:
        """Hex digests of all blobs that it holds."""
        folder = self.root / "docker/registry/v2/blobs/sha256"
        return {path.parent.name for path in folder.glob("*/*/data")}


def start_registry(folder: Path, htpasswd: Path | None = None) -> tuple[Server, subprocess.Popen]:
    host = f"127.0.0.1:{free_port()}"
    auth = f"auth: {{htpasswd: {{realm: tests, path: {htpasswd}}}}}\n" if htpasswd else ""
    root = folder / "files"
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {root}}}}}\nhttp: {{addr: {host}}}\n{auth}"
    )
    with (folder / "log").open("wb") as log:
        command = ["docker-registry", "serve", str(folder / "config.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{host}/v2/").close()
        except urllib.error.HTTPError as error:  # it answers, and asks for credentials
            error.close()
        except OSError:
            time.sleep(0.05)
            continue
        return Server(host=host, root=root), process
    process.kill()
    raise RuntimeError((folder / "log").read_text())


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests; each uses a repository of its own."""
    folder = tmp_path_factory.mktemp("registry")
    found, process = start_registry(folder)
    yield found
    process.terminate()
    process.wait()
    shutil.rmtree(folder)


@pytest.fixture
def locked_server(tmp_path: Path) -> Iterator[Server]:
    """One that lets in only the user `ci` with the password `secret`."""
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "htpasswd").write_text(HTPASSWD)
    found, process = start_registry(folder, folder / "htpasswd")
    yield found
    process.terminate()
    process.wait()


@pytest.fixture
def repository(server: Server, request: pytest.FixtureRequest) -> str:
    """`oci://host/name` of a repository that no other test uses."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")
    while "--" in name:
        name = name.replace("--", "-")
    return f"oci://{server.host}/pairs/{name}"


# --- the proxy ---------------------------------------------------------------------------------


@dataclass
class Faults:
    """What the proxy does wrong, and what it saw."""

    damage: Callable[[str, bytes], bytes] | None = None  # (path, body) -> other body
    announce_whole: bool = False  # the Content-Length of the whole body, then less of it
    stall: Callable[[str], bool] | None = None  # never answer such a GET
    token_for: str | None = None  # "user:password": ask for tokens, with scope
    seen: list[tuple[str, str]] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def paths(self, method: str) -> list[str]:
        return [path for m, path in self.seen if m == method]


@dataclass(frozen=True, kw_only=True)
class Proxy:
    host: str
    faults: Faults


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A registry that forwards to the real one, with faults."""
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            faults.seen.append((self.command, self.path))
            if self.path.startswith("/token"):
                return self._give_token()
            if faults.token_for and not self._may():
                return self._ask_for_token()
            if self.command == "GET" and faults.stall and faults.stall(self.path):
                faults.stalled.set()
                faults.released.wait(60)
                return None
            return self._forward()

        do_GET = do_HEAD = do_POST = do_PUT = handle_one

        def _scope(self) -> str:
            name = self.path.removeprefix("/v2/").split("/blobs")[0].split("/manifests")[0]
            what = "pull" if self.command in ("GET", "HEAD") else "pull,push"
            return f"repository:{name}:{what}"

        def _may(self) -> bool:
            """A token holds its scope; one that may push may pull."""
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            return token in (self._scope(), self._scope().replace(":pull", ":pull,push"))

        def _ask_for_token(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            realm = f"http://{self.headers['Host']}/token"
            self.send_response(401)
            self.send_header(
                "Www-Authenticate",
                f'Bearer realm="{realm}",service="tests",scope="{self._scope()}"',
            )
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _give_token(self) -> None:
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            wanted = base64.b64encode((faults.token_for or "").encode()).decode()
            scope = parse_qs(urlsplit(self.path).query)["scope"][0]
            body = json.dumps({"token": scope}).encode() if given == wanted else b"{}"
            self.send_response(200 if given == wanted else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _forward(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(length) if length else None
            request = urllib.request.Request(
                f"http://{server.host}{self.path}", data=data, method=self.command
            )
            for name, value in self.headers.items():
                if name not in ("Host", "Authorization"):
                    request.add_header(name, value)
            try:
                answer = urllib.request.urlopen(request)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                self._pass_on(answer.status, dict(answer.headers.items()), answer.read())

        def _pass_on(self, status: int, headers: dict[str, str], body: bytes) -> None:
            sent = body
            if self.command == "GET" and status in (200, 206) and faults.damage:
                sent = faults.damage(self.path, body)
            self.send_response(status)
            for name, value in headers.items():
                if name not in ("Content-Length", "Connection", "Transfer-Encoding"):
                    self.send_header(name, value.replace(server.host, self.headers["Host"]))
            if self.command == "HEAD":
                length = int(headers.get("Content-Length", 0))
            else:
                length = len(body if faults.announce_whole else sent)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(sent)
            if len(sent) < length:
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield Proxy(host=f"127.0.0.1:{running.server_port}", faults=faults)
    faults.released.set()
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def through_proxy(repository: str, server: Server, proxy: Proxy) -> str:
    """The same repository, through the proxy."""
    return repository.replace(server.host, proxy.host)
