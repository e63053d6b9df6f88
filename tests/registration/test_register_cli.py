"""`register`, `pull` and `verify` as commands: output, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pairgate.cli import cli
from pairgate.errors import IntegrityError


@pytest.fixture
def run(ws):
    def invoke(*args: str | Path) -> Result:
        command = ["--home", str(ws.home), *map(str, args)]
        return CliRunner().invoke(cli, command, catch_exceptions=False)

    return invoke


def test_register_says_what_it_stored_and_what_is_next(run, make_model) -> None:
    target, draft = make_model("t"), make_model("d", seed=1, max_position_embeddings=32)
    done = run("register", "chat", "--target", target, "--draft", draft, "-k", "3")
    assert "chat@1  registered" in done.stdout
    assert "draft_model, K = 3" in done.stdout
    assert "pairgate gate chat@1" in done.stdout
    assert "at most 32 positions" in done.stderr
    again = run("register", "chat", "--target", target, "--draft", draft, "-k", "3")
    assert "chat@1  exists already" in again.stdout


def test_json_is_the_only_thing_on_stdout(run, make_model, tmp_path) -> None:
    config = tmp_path / "spec.json"
    config.write_text('{"method": "ngram", "num_speculative_tokens": 2}')
    done = run(
        "register", "chat", "--target", make_model("t"), "--speculative-config", f"@{config}",
        "--json",
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["version"] == "chat@1"
    assert document["decoding"]["method"] == "ngram"
    assert "serving engine" in done.stderr


def test_allowed_code_is_shown(run, make_model) -> None:
    target = make_model("t")
    (target / "net.py").write_text("")
    done = run("register", "chat", "--target", target, "--allow-custom-code")
    assert "target:custom-code" in done.stdout


def test_pull_and_verify(run, make_model, tmp_path) -> None:
    run("register", "chat", "--target", make_model("t"))
    assert run("pull", "chat@1", "--to", tmp_path / "out").stdout.startswith("chat@1  sha256:")
    assert (tmp_path / "out" / "target" / "config.json").is_file()
    assert run("verify", "chat@1").stdout == "chat@1  4 files match their digests\n"
    assert json.loads(run("verify", "chat@1", "--json").stdout)["problem"] == ""


def test_exit_codes(ws, make_model) -> None:
    target = make_model("t")
    (target / "net.py").write_text("")

    def code(*args: str) -> int:
        command = [sys.executable, "-m", "pairgate", "--home", str(ws.home), *args]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        return done.returncode

    assert code("register", "chat", "--target", str(target)) == 15
    assert code("register", "chat", "--target", "/nowhere") == 2
    assert code("register", "chat", "--target", "hf://org/name") == 16
    (target / "net.py").unlink()
    assert code("register", "chat", "--target", str(target)) == 0
    next((ws.home / "store" / "blobs" / "sha256").iterdir()).unlink()
    assert code("verify", "chat@1") == 14


def test_referenced_files_are_named_and_a_change_is_found(run, make_model) -> None:
    target = make_model("t")
    done = run("register", "chat", "--target", target, "--reference")
    weights = target / "model.safetensors"
    assert f"stays at  {weights.as_uri()} (hash: read once at registration)" in done.stdout
    assert "1 referenced files are unchanged where they are" in run("verify", "chat@1").stdout
    assert weights.as_uri() in run("show", "chat@1").stdout
    weights.unlink()
    with pytest.raises(IntegrityError, match="is gone") as caught:
        run("verify", "chat@1")
    assert caught.value.exit_code == 14
    assert f"! chat@1: {weights.as_uri()} is gone" in run("status", "chat").stdout
    document = json.loads(run("status", "chat", "--json").stdout)
    assert "is gone" in document[0]["versions"][0]["problem"]
