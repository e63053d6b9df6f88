"""The release commands as a person and as a CI job sees them: output, exit codes, imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.errors import PairgateError
from tests.release.story import LINE, add, evidence

ROOT = Path(__file__).parents[2]
HEAVY = {"alembic", "numpy", "scipy", "pydantic", "torch", "transformers", "mlflow", "pyarrow"}


def run(ws: Workspace, *arguments: str) -> Result:
    """The command's result; an error of ours has its exit code as in `main`."""
    where = ["--home", str(ws.home), "--database-url", ws.database_url]
    result = CliRunner().invoke(cli, [*where, *arguments])
    if isinstance(result.exception, PairgateError):
        result.exit_code = result.exception.exit_code
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_story_at_the_terminal(ws: Workspace) -> None:
    add(ws, b"base", b"draft-1")
    assert run(ws, "promote", "code@1").exit_code == 12
    evidence(ws, ws.registry.versions(LINE)[0])
    done = run(ws, "promote", "code@1", "--expect-current", "none")
    assert done.exit_code == 0
    head = ws.registry.head(LINE)
    assert done.stdout.splitlines() == [
        "production  code@1",
        "previous    none",
        f"audit head  code:2:{head.hash}",
    ]
    assert "incumbent=none" in done.stderr
    again = run(ws, "promote", "code@1")
    assert again.exit_code == 0
    assert "already so" in again.stderr
    assert run(ws, "rollback", LINE).exit_code == 15
    tuned = add(ws, b"tuned", b"draft-1")
    evidence(ws, tuned)
    assert run(ws, "promote", "code@2", "--expect-current", "9").exit_code == 13
    assert run(ws, "promote", "code@2").exit_code == 0
    assert run(ws, "rollback", LINE, "--keep-target").exit_code == 15
    back = run(ws, "rollback", LINE, "--reason", "paged", "--json")
    assert back.exit_code == 0
    assert "pairgate disable code" in back.stderr  # said first: the target changes too
    assert json.loads(back.stdout)["head"]["production"] == 1
    assert json.loads(back.stdout)["decision"]["reason"] == "paged"
    assert run(ws, "disable", LINE).exit_code == 2
    off = run(ws, "disable", LINE, "--reason", "slow")
    assert "disabled    code@1 (pairgate enable code)" in off.stdout
    assert run(ws, "enable", LINE).exit_code == 0
    assert run(ws, "pin", "code@2").stdout == "code@2 is pinned\n"
    unpinned = run(ws, "unpin", "code@2")
    assert "stays protected" in unpinned.stderr
    agreed = run(ws, "approve", "code@2", "--name", "safety")
    assert "approves safety of code@2" in agreed.stdout
    ws.blobs.path(ws.registry.pair(tuned.pair_digest).target.files[0].sha256).unlink()
    assert run(ws, "promote", "code@2", "--reinstate", "it was fine").exit_code == 14


def test_lines_and_profiles(ws: Workspace, tmp_path: Path) -> None:
    assert run(ws, "line", "create", "other").exit_code == 0
    assert run(ws, "line", "create", "other").exit_code == 13
    assert run(ws, "line", "set", "other").exit_code == 2
    assert run(ws, "line", "set", "other", "--policy", "strict").exit_code == 0
    assert "it is so already" in run(ws, "line", "set", "other", "--policy", "strict").stderr
    assert run(ws, "line", "set", "other", "--profile", "none").exit_code == 2
    made = run(
        ws, "profile", "set", "other", "h100-tp8",
        "--from-command", "vllm serve acme/model -tp 8 --max-model-len=8192 --kv-cache-dtype fp8",
        "--engine-version", "0.14.0", "--hardware-class", "h100x8", "--concurrency", "64,1",
    )  # fmt: skip
    assert made.stdout.startswith("h100-tp8@1  sha256:")
    found = json.loads(run(ws, "profile", "show", "other", "h100-tp8", "--json").stdout)
    assert "acme/model" not in found["arguments"]  # the model is the pair's
    assert (found["engine"], found["tensor_parallel_size"], found["max_model_len"]) == (
        "vllm",
        8,
        8192,
    )
    assert (found["kv_cache_dtype"], found["concurrencies"]) == ("fp8", [1, 64])
    path = tmp_path / "profile.toml"
    path.write_text(
        'engine = "native"\nengine_version = "1"\nhardware_class = "x"\nconcurrencies = [1]\n'
    )
    assert run(ws, "profile", "set", "other", "cpu", str(path)).stdout.startswith("cpu@1")
    path.write_text('engin = "native"\n')
    wrong = run(ws, "profile", "set", "other", "cpu", str(path))
    assert wrong.exit_code == 2
    assert "unknown key 'engin'" in str(wrong.exception)
    path.write_text('engine = "native"\nconcurrencies = "many"\n')
    assert run(ws, "profile", "set", "other", "cpu", str(path)).exit_code == 2
    assert run(ws, "line", "set", "other", "--profile", "h100-tp8@1").exit_code == 0
    listed = run(ws, "profile", "list", "other").stdout
    assert "*  h100-tp8@1" in listed
    rows = json.loads(run(ws, "line", "list", "--json").stdout)
    assert [row["line"] for row in rows] == ["code", "other"]
    assert "code" in run(ws, "line", "list").stdout


def test_audit_outbox_and_db(released: Workspace, tmp_path: Path) -> None:
    head = run(released, "audit", "head")
    heads = tmp_path / "heads.txt"
    heads.write_text(head.stdout)
    fine = run(released, "audit", "verify", "--heads", str(heads))
    assert fine.stdout == "1 lines, 4 decisions: everything adds up\n"
    heads.write_text(head.stdout.replace("code:4", "code:5"))
    cut = run(released, "audit", "verify", "--heads", str(heads), "--json")
    assert cut.exit_code == 14
    assert len(json.loads(cut.stdout)["problems"]) == 1
    assert len(json.loads(run(released, "outbox", "list", "--json").stdout)) == 6
    assert "evaluation" in run(released, "outbox", "list").stdout
    assert run(released, "outbox", "deliver").stderr == "6 delivered\n"
    assert run(released, "outbox", "list").stdout == ""
    assert "already at" in run(released, "db", "upgrade").stderr
    found = json.loads(run(released, "db", "current", "--json").stdout)
    assert found["revision"] == found["needed"]


RUN_AND_LIST = """
import sys
from pairgate.cli import main
sys.argv[0] = "pairgate"
try:
    main()
finally:
    names = {n.split(".")[0] for n in sys.modules}
    print("MODULES", *sorted(names), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["promote", "code@2", "--override", "a test"],
        ["rollback", LINE],
        ["disable", LINE, "--reason", "a test"],
    ],
    ids=lambda a: a[0],
)
def test_at_three_in_the_morning_nothing_heavy_is_imported(
    released: Workspace, arguments: list[str]
) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_LIST, "--home", str(released.home), *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stderr.rsplit("MODULES", 1)[1].split())


def test_a_damaged_database_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "pairgate.db").write_bytes(b"not a database at all" * 500)
    done = subprocess.run(
        [sys.executable, "-m", "pairgate", "--home", str(tmp_path), "status"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 14
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: the registry ")
    assert "is damaged" in done.stderr
