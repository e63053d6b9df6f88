"""Hostile model folders: each is refused with an error of its own, and nothing is left behind."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairgate.app.register import register
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import FileEntry, check_relative_path
from pairgate.errors import IntegrityError, InvalidInput, PairgateError, Refused

Spoil = Callable[[Path], None]
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


class Exploit:
    """Would leave a file behind if anything unpickled it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def exploit(folder: Path) -> bytes:
    return pickle.dumps(Exploit(folder.parent / "executed"))


def zipped(folder: Path) -> bytes:
    """As torch.save writes it."""
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", exploit(folder))
        archive.writestr("archive/data/0", b"\0" * 64)
    return data.getvalue()


def header(document: object, n_data: int = 0) -> bytes:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * n_data


def tensor(begin: int, end: int, *shape: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


# --- how a folder is spoiled --------------------------------------------------------------------


def weights(data: bytes | Callable[[Path], bytes]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes(data if isinstance(data, bytes) else data(folder))

    return spoil


def only(name: str, data: Callable[[Path], bytes]) -> Spoil:
    """These weights instead of the real ones."""

    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / name).write_bytes(data(folder))

    return spoil


def index(*shards: object) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
        weight_map = {f"t{i}": shard for i, shard in enumerate(shards)}
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    return spoil


def document(name: str, data: bytes | Callable[[bytes], bytes]) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(data if isinstance(data, bytes) else data(path.read_bytes()))

    return spoil


def config(**values: object) -> Spoil:
    def change(old: bytes) -> bytes:
        return json.dumps(json.loads(old) | values).encode()

    return document("config.json", change)


def raw_config(text: bytes) -> Spoil:
    """`text` is put into the config as it is."""
    return document("config.json", lambda old: old.rstrip()[:-1] + b", " + text + b"}")


def tokenizer(change: Callable[[dict], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        spec = json.loads((folder / "tokenizer.json").read_bytes())
        change(spec)
        (folder / "tokenizer.json").write_text(json.dumps(spec))

    return spoil


def extra(name: str, data: bytes = b"x") -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return spoil


def replaced(name: str, make: Callable[[Path], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return spoil


def a_socket(path: Path) -> None:
    here = os.getcwd()  # the name of a socket may have 107 bytes only
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def circle(path: Path) -> None:
    other = path.with_name("LICENSE-other")
    path.symlink_to(other.name)
    other.symlink_to(path.name)


def twins(folder: Path) -> None:
    """Two shards in a subfolder whose names differ only by case."""
    (folder / "sub").mkdir()
    for name in ("a.safetensors", "A.safetensors"):
        (folder / "sub" / name).write_bytes((folder / WEIGHTS).read_bytes())
    (folder / WEIGHTS).unlink()
    weight_map = {"x": "sub/a.safetensors", "y": "sub/A.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def cut(n_bytes: int) -> Spoil:
    def spoil(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(data[:n_bytes])

    return spoil


DEEP = b"[" * 100_000 + b"]" * 100_000
KEYS = b",".join(b'"k%d": 1' % n for n in range(300_000))
WIDE_HEADER = json.dumps({f"t{n}": {} for n in range(200_000)}).encode()
TWICE = b'{"a": %s, "a": %s}' % ((json.dumps(tensor(0, 4, 1)).encode(),) * 2)
NOT_SAFETENSORS = "not a safetensors file"
BROKEN = "broken safetensors header"

CASES: dict[str, tuple[Spoil, type[PairgateError], str]] = {
    # names that lead elsewhere
    "index ..": (index("../outside.safetensors"), InvalidInput, "not a plain relative path"),
    "index absolute": (index("/etc/outside.safetensors"), InvalidInput, "not a plain relative"),
    "index nul": (index("a\0.safetensors"), InvalidInput, "not a plain relative path"),
    "index backslash": (index("..\\outside.safetensors"), InvalidInput, "not a plain relative"),
    "index drive": (index("C:outside.safetensors"), InvalidInput, "not a plain relative path"),
    "index dot": (index("./outside.safetensors"), InvalidInput, "not a plain relative path"),
    "index double slash": (index("a//b.safetensors"), InvalidInput, "not a plain relative path"),
    "index newline": (index("a\nb.safetensors"), InvalidInput, "not a plain relative path"),
    "index bidi": (index("a\u202eb.safetensors"), InvalidInput, "not a plain relative path"),
    "index zero width": (index("a\u200bb.safetensors"), InvalidInput, "not a plain relative"),
    "index C1": (index("a\x9b2Jb.safetensors"), InvalidInput, "not a plain relative path"),
    "index surrogate": (index("a\ud800.safetensors"), InvalidInput, "not a plain relative path"),
    "index long": (index("a" * 300 + ".safetensors"), InvalidInput, "not a plain relative path"),
    "index missing": (index("gone.safetensors"), InvalidInput, "cannot be read"),
    "index numbers": (index(7), InvalidInput, "no weight_map of file names"),
    "index pickle": (index("weights.bin"), Refused, "not a safetensors file"),
    "index a list": (only(INDEX, lambda _: b"[]"), InvalidInput, "not a JSON object"),
    "index deep": (only(INDEX, lambda _: DEEP), InvalidInput, "not valid JSON"),
    "index of 70 MiB": (only(INDEX, lambda _: b" " * (70 << 20)), InvalidInput, "at most"),
    "shards that collide": (twins, Refused, "case-folding"),
    "name with bidi": (extra("LICENSE-\u202etxt"), InvalidInput, "not a plain relative path"),
    "name with zero width": (extra("LICENSE-\u200b"), InvalidInput, "not a plain relative path"),
    "name with escape": (extra("LICENSE-\x1b[2J"), InvalidInput, "not a plain relative path"),
    "name with DEL": (extra("LICENSE-\x7f"), InvalidInput, "not a plain relative path"),
    "name with a final space": (extra("LICENSE "), InvalidInput, "not a plain relative path"),
    # code
    "auto_map": (config(auto_map={"AutoModel": "net.Net"}), Refused, "auto_map net.Net"),
    "auto_map elsewhere": (config(auto_map={"A": "o/r--net.Net"}), Refused, "another repository"),
    "auto_map a string": (config(auto_map="net.Net"), Refused, "auto_map net.Net"),
    "auto_map in a list": (config(auto_map=["net.Net"]), Refused, "its own code"),
    "auto_map of the tokenizer": (
        document("tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": ["t.T", null]}}'),
        Refused,
        "its own code",
    ),
    "code": (extra("modeling_x.py"), Refused, "modeling_x.py"),
    "setup.py": (extra("setup.py"), Refused, "setup.py"),
    # pickles, plain and disguised
    "pickle .bin": (only("pytorch_model.bin", exploit), Refused, "the only weights are pickled"),
    "pickle .pt": (only("model.pt", zipped), Refused, "the only weights are pickled"),
    "pickle .ckpt": (only("model.ckpt", zipped), Refused, "the only weights are pickled"),
    "pickle as safetensors": (weights(exploit), InvalidInput, NOT_SAFETENSORS),
    "zip as safetensors": (weights(zipped), InvalidInput, NOT_SAFETENSORS),
    "pickle as a config": (document("config.json", b"\x80\x04K\x01."), InvalidInput, "not valid"),
    "gguf": (only("model.gguf", lambda _: b"GGUF"), Refused, "GGUF"),
    # safetensors headers
    "empty file": (weights(b""), InvalidInput, NOT_SAFETENSORS),
    "length 2^63": (weights(struct.pack("<Q", 2**63)), InvalidInput, NOT_SAFETENSORS),
    "length 2^64 - 1": (weights(b"\xff" * 8 + b"{}"), InvalidInput, NOT_SAFETENSORS),
    "length of the file": (weights(struct.pack("<Q", 10) + b"{}"), InvalidInput, NOT_SAFETENSORS),
    "git lfs": (weights(b"version https://git-lfs.github.com"), InvalidInput, NOT_SAFETENSORS),
    "not JSON": (weights(header(b"nonsense")), InvalidInput, BROKEN),
    "deep": (weights(header(b'{"a":' + DEEP + b"}")), InvalidInput, BROKEN),
    "wide": (weights(header(WIDE_HEADER)), InvalidInput, BROKEN),
    "a list": (weights(header([])), InvalidInput, BROKEN),
    "duplicate": (weights(header(TWICE, 4)), InvalidInput, "stands twice"),
    "overlap": (
        weights(header({"a": tensor(0, 8, 2), "b": tensor(4, 12, 2)}, 12)),
        InvalidInput,
        BROKEN,
    ),
    "hole": (
        weights(header({"a": tensor(0, 4, 1), "b": tensor(8, 12, 1)}, 12)),
        InvalidInput,
        BROKEN,
    ),
    "beyond the end": (weights(header({"a": tensor(0, 400, 100)}, 4)), InvalidInput, "holds"),
    "data nobody names": (weights(header({"a": tensor(0, 4, 1)}, 400)), InvalidInput, "holds"),
    "backwards": (weights(header({"a": tensor(8, 0, 2)}, 8)), InvalidInput, BROKEN),
    "negative shape": (weights(header({"a": tensor(0, 4, -1)}, 4)), InvalidInput, BROKEN),
    "shape overflow": (weights(header({"a": tensor(0, 0, 2**32, 2**32)})), InvalidInput, BROKEN),
    "shape of a hundred dimensions": (
        weights(header({"a": tensor(0, 4, *[1] * 100)}, 4)),
        InvalidInput,
        "dimensions",
    ),
    "shape bomb": (weights(header({"a": tensor(0, 4, *[3] * 200_000)}, 4)), InvalidInput, BROKEN),
    "shape of floats": (weights(header({"a": tensor(0, 4, 1.0)}, 4)), InvalidInput, BROKEN),
    "shape of huge integers": (
        weights(header({"a": tensor(0, 4, 0, 10**4000)}, 4)),
        InvalidInput,
        BROKEN,
    ),
    "integers without end": (
        weights(header(b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b"]}}")),
        InvalidInput,
        BROKEN,
    ),
    "NaN": (
        weights(header(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [NaN, 4]}}', 4)),
        InvalidInput,
        BROKEN,
    ),
    "NaN in the metadata": (
        weights(
            header(
                b'{"__metadata__": {"x": NaN}, "a": ' + json.dumps(tensor(0, 4, 1)).encode() + b"}",
                4,
            )
        ),
        InvalidInput,
        BROKEN,
    ),
    "metadata that is no text": (
        weights(header({"__metadata__": {"x": [1]}, "a": tensor(0, 4, 1)}, 4)),
        InvalidInput,
        BROKEN,
    ),
    "unknown dtype": (
        weights(header({"a": tensor(0, 4, 1, dtype="F33")}, 4)),
        InvalidInput,
        "unknown dtype",
    ),
    "dtype that is a list": (
        weights(header({"a": tensor(0, 4, 1, dtype=[])}, 4)),
        InvalidInput,
        BROKEN,  # type: ignore[arg-type]
    ),
    "truncated by one byte": (cut(-1), InvalidInput, "header describes"),
    "truncated in the header": (cut(40), InvalidInput, NOT_SAFETENSORS),
    "truncated in the length": (cut(5), InvalidInput, NOT_SAFETENSORS),
    # JSON
    "config deep": (document("config.json", DEEP), InvalidInput, "config.json"),
    "config of keys and nothing else": (
        document("config.json", b"{" + KEYS + b"}"),
        InvalidInput,
        "config.json",
    ),
    "config twice": (raw_config(b'"vocab_size": 320'), InvalidInput, "stands twice"),
    "config NaN": (raw_config(b'"rope_theta": NaN'), InvalidInput, "NaN"),
    "config Infinity": (config(hidden_size=float("inf")), InvalidInput, "hidden_size is inf"),
    "config float": (config(hidden_size=16.0), InvalidInput, "hidden_size is 16.0"),
    "config integer without end": (raw_config(b'"x": ' + b"9" * 5000), InvalidInput, "config.json"),
    "config of huge integers": (config(hidden_size=10**400), InvalidInput, "hidden_size"),
    "config negative": (config(num_hidden_layers=-1), InvalidInput, "num_hidden_layers"),
    "config of text": (config(vocab_size="320"), InvalidInput, "vocab_size"),
    "config true": (config(num_attention_heads=True), InvalidInput, "num_attention_heads"),
    "config surrogate": (config(model_type="\ud800"), InvalidInput, "model_type"),
    "config HTML": (config(architectures=["<script>"]), InvalidInput, "architectures"),
    "config class of a number": (config(architectures=[7]), InvalidInput, "architectures"),
    "config model type with escape": (config(model_type="\x1b[2J"), InvalidInput, "model_type"),
    "config of no text": (document("config.json", b"\xff\xfe{}"), InvalidInput, "config.json"),
    "config empty": (document("config.json", b""), InvalidInput, "config.json"),
    "config a number": (document("config.json", b"7"), InvalidInput, "config.json"),
    "config of 9 MiB": (
        document("config.json", lambda old: old + b" " * (9 << 20)),
        InvalidInput,
        "at most",
    ),
    # tokenizers
    "tokenizer deep": (document("tokenizer.json", DEEP), InvalidInput, "tokenizer.json"),
    "tokenizer of a list": (document("tokenizer.json", b"[]"), InvalidInput, "tokenizer.json"),
    "tokenizer without a model": (document("tokenizer.json", b"{}"), InvalidInput, "tokenizer"),
    "token id without end": (
        tokenizer(lambda s: s["model"]["vocab"].update(x=10**30)),
        InvalidInput,
        "token",
    ),
    "token id negative": (
        tokenizer(lambda s: s["model"]["vocab"].update(x=-1)),
        InvalidInput,
        "token",
    ),
    "token id twice": (
        tokenizer(lambda s: s["model"]["vocab"].update(x=3)),
        InvalidInput,
        "two tokens",
    ),
    "token id a float": (
        tokenizer(lambda s: s["model"]["vocab"].update(x=1.5)),
        InvalidInput,
        "token",
    ),
    "added token without an id": (
        tokenizer(lambda s: s["added_tokens"].append({"content": "x"})),
        InvalidInput,
        "tokenizer",
    ),
    "added token id a text": (
        tokenizer(lambda s: s["added_tokens"].append({"content": "x", "id": "9"})),
        InvalidInput,
        "token",
    ),
    "merges of numbers": (tokenizer(lambda s: s["model"].update(merges=[1])), InvalidInput, "tok"),
    "decoder deep": (
        document(
            "tokenizer.json",
            lambda old: old[:-1] + b', "decoder": ' + b'{"a":' * 3000 + b"1" + b"}" * 3001,
        ),
        InvalidInput,
        "tokenizer",
    ),
    "tokenizer of 70 MiB": (
        document("tokenizer.json", lambda old: old + b" " * (70 << 20)),
        InvalidInput,
        "at most",
    ),
    # what is no file
    "link to a secret": (
        replaced("LICENSE", lambda p: p.symlink_to("/etc/passwd")),
        Refused,
        "leaves the source",
    ),
    "link to a folder": (
        replaced("LICENSE", lambda p: p.symlink_to("/etc")),
        Refused,
        "leaves the source",
    ),
    "link in a circle": (replaced("LICENSE", circle), InvalidInput, "cannot be read"),
    "link to itself": (
        replaced(WEIGHTS, lambda p: p.symlink_to(p.name)),
        InvalidInput,
        "cannot be read",
    ),
    "link to nothing": (
        replaced("LICENSE", lambda p: p.symlink_to("gone")),
        InvalidInput,
        "cannot be read",
    ),
    "link to /proc": (
        replaced("LICENSE", lambda p: p.symlink_to("/proc/self/environ")),
        Refused,
        "leaves",
    ),
    "fifo": (replaced("LICENSE", os.mkfifo), Refused, "not a regular file"),
    "fifo as weights": (replaced(WEIGHTS, os.mkfifo), Refused, "not a regular file"),
    "fifo as config": (replaced("config.json", os.mkfifo), Refused, "not a regular file"),
    "socket": (replaced("LICENSE", a_socket), Refused, "not a regular file"),
    "folder": (replaced("LICENSE", Path.mkdir), Refused, "not a regular file"),
    "folder as config": (replaced("config.json", Path.mkdir), Refused, "not a regular file"),
    "device": (
        replaced("LICENSE", lambda p: p.symlink_to("/dev/zero")),
        Refused,
        "leaves the source",
    ),
    "device as weights": (
        replaced(WEIGHTS, lambda p: p.symlink_to("/dev/urandom")),
        Refused,
        "leaves the source",
    ),
}


def nothing_left(ws: Workspace) -> None:
    """No version, no pair, no blob, nothing in staging or in the work folder."""
    assert ws.registry.versions("chat") == []
    left = [
        str(p.relative_to(ws.home))
        for folder in ("store", "work")
        for p in (ws.home / folder).rglob("*")
        if p.is_file() or p.is_symlink()
    ]
    assert [p for p in left if "blobs/" in p or "staging" in p or p.startswith("work/")] == []
    index_file = ws.home / "store" / "index.json"
    if index_file.exists():
        assert json.loads(index_file.read_bytes())["manifests"] == []


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("role", ["target", "draft"])
def test_refused_and_nothing_left(ws, make_model, case: str, role: str) -> None:
    spoil, error, message = CASES[case]
    folders = {"target": make_model("target"), "draft": make_model("draft", seed=1)}
    spoil(folders[role])
    started = time.monotonic()
    with pytest.raises(error) as caught:
        register(ws, "chat", target=str(folders["target"]), draft=str(folders["draft"]))
    assert time.monotonic() - started < 20.0
    assert type(caught.value) is error
    assert message in caught.value.message
    assert caught.value.message.isprintable() or "\n" in caught.value.message
    nothing_left(ws)
    assert not list(folders[role].parent.rglob("executed"))


# --- what happens while it is read ----------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Workspace]:
    """A home that may keep what was stored before the trouble, until gc finds it."""
    opened = Workspace.open(home=str(tmp_path / "own"), create=True)
    opened.registry.create_line("chat", "2026-12-01T00:00:00Z")
    yield opened
    opened.close()


def test_a_file_that_grows_while_it_is_read(own, make_model, monkeypatch) -> None:
    from pairgate.store import streams

    folder = make_model("m")
    real = streams.copy_and_hash

    def growing(source, staged, size, on_bytes):
        with (folder / WEIGHTS).open("ab") as file:
            file.write(b"x" * 100)
        return real(source, staged, size, on_bytes)

    monkeypatch.setattr("pairgate.store.blobs.copy_and_hash", growing)
    with pytest.raises(IntegrityError, match="changed while"):
        register(own, "chat", target=str(folder))
    assert own.registry.versions("chat") == []
    assert (
        not (own.home / "store" / "index.json").exists()
        or not json.loads((own.home / "store" / "index.json").read_bytes())["manifests"]
    )


@pytest.mark.parametrize("make", [os.mkfifo, lambda p: p.symlink_to("/etc/passwd")])
@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "LICENSE"])
def test_a_file_that_is_swapped_after_it_was_checked(
    ws, make_model, monkeypatch, name: str, make: Callable[[Path], None]
) -> None:
    """Neither waited for, nor followed."""
    from pairgate import sources

    folder = make_model("m")
    (folder / "LICENSE").write_text("x")
    real = sources.resolve

    def swapped(*args, **options):
        found = real(*args, **options)
        (folder / name).unlink()
        make(folder / name)
        return found

    monkeypatch.setattr(sources, "resolve", swapped)
    with pytest.raises((IntegrityError, InvalidInput)):
        register(ws, "chat", target=str(folder))
    nothing_left(ws)


def test_setuid_does_not_come_along(own, make_model, tmp_path) -> None:
    from pairgate.app.transfer import pull
    from pairgate.domain.pair import VersionRef

    folder = make_model("m")
    for file in folder.iterdir():
        file.chmod(0o6777)
    done = register(own, "chat", target=str(folder))
    pull(own, VersionRef.parse(str(done.version)), tmp_path / "out")
    for root in (own.home / "store" / "blobs", tmp_path / "out"):
        assert not [p for p in root.rglob("*") if p.is_file() and p.stat().st_mode & 0o7111]


# --- bounded memory and time ----------------------------------------------------------------------


def bounded(code: str, *args: str) -> float:
    """Run in a process with 2 GiB of address space; returns seconds."""
    limited = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from pathlib import Path\n"
        "from pairgate.errors import InvalidInput\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", limited + code, *args], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-600:]
    return time.monotonic() - started


READ_HEADER = """
from pairgate.compat.weights import read_header
try:
    read_header(Path(sys.argv[1]), "m.safetensors")
except InvalidInput as error:
    assert "header" in error.message, error
else:
    raise AssertionError("taken")
"""
READ_TOKENIZER = """
from pairgate.compat.tokenizer import read_tokenizer
data = {"tokenizer.json": Path(sys.argv[1]).read_bytes()}
try:
    read_tokenizer(data, role="target")
except InvalidInput:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":{"shape":[' + b"0," * 12_000_000 + b"0]}}",
        b"{" + b",".join(b'"%d":{}' % n for n in range(2_000_000)) + b"}",
        b'{"a":' + b"[" * 24_000_000,
        b'{"' + b"a" * 24_000_000 + b'":1}',
    ],
    ids=["numbers", "objects", "depth", "a name"],
)
def test_a_header_bomb_is_refused_in_bounded_memory(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "m").write_bytes(header(raw))
    assert bounded(READ_HEADER, str(tmp_path / "m")) < 60.0


def test_a_header_over_the_limit_is_not_even_read(tmp_path: Path) -> None:
    with (tmp_path / "m").open("wb") as file:  # sparse
        file.write(struct.pack("<Q", 90 << 20))
        file.truncate(100 << 20)
    assert bounded(READ_HEADER, str(tmp_path / "m")) < 30.0


@pytest.mark.slow
def test_an_enormous_tokenizer_is_read_in_bounded_memory(tmp_path: Path) -> None:
    vocabulary = {f"token-{n}": n for n in range(1_000_000)}
    document = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    (tmp_path / "t").write_text(json.dumps(document))
    assert bounded(READ_TOKENIZER, str(tmp_path / "t")) < 60.0


# --- properties -----------------------------------------------------------------------------------

PARTS = st.sampled_from(
    [
        "..",
        ".",
        "",
        "a",
        "b.json",
        "/",
        "\\",
        "C:",
        "\0",
        "~",
        "\u202e",
        "\u200b",
        " ",
        "\n",
        "\x7f",
    ]
)


@given(st.lists(PARTS, max_size=5), st.sampled_from(["", "/"]))
def test_no_path_leaves_its_folder(parts: list[str], joint: str) -> None:
    text = joint.join(parts)
    try:
        check_relative_path(text)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            FileEntry(path=text, size=0, sha256="sha256:" + "0" * 64)
        return
    assert text.isprintable()
    inside = Path("/models/m").joinpath(text)
    assert Path(os.path.normpath(inside)).is_relative_to("/models/m")
    assert inside != Path("/models/m")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda nested: st.lists(nested, max_size=3) | st.dictionaries(st.text(max_size=5), nested),
    max_leaves=10,
)
KEYS_OF_CONFIG = ("model_type", "architectures", "hidden_size", "vocab_size", "text_config")
KEYS_OF_TOKENIZER = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder")


@settings(deadline=None)  # the first config without a vocabulary imports transformers
@given(st.dictionaries(st.sampled_from(KEYS_OF_CONFIG), JSON))
def test_any_config_is_read_or_refused(values: dict[str, object]) -> None:
    from pairgate.compat.check import read_model

    config = {"hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 8, "model_type": "llama"}
    config |= {"num_attention_heads": 1, "max_position_embeddings": 8} | values
    data = {"config.json": json.dumps(config).encode()}
    try:
        model = read_model("target", data, {}, ())
    except InvalidInput as error:
        error.message.encode("utf-8", "backslashreplace")
    else:
        assert model.architecture.class_name.isprintable()


@given(st.dictionaries(st.sampled_from(KEYS_OF_TOKENIZER), JSON), JSON)
def test_any_tokenizer_is_read_or_refused(values: dict[str, object], vocabulary: object) -> None:
    from pairgate.compat.tokenizer import read_tokenizer

    spec = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}} | values
    try:
        found = read_tokenizer({"tokenizer.json": json.dumps(spec).encode()}, role="draft")
    except InvalidInput:
        return
    assert found is not None
    assert len(found.digest) == 71
