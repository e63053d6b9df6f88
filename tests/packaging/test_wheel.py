"""The wheel in an empty environment without extras: registry and releases need no framework."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.commands import write_tiny_model
from pairgate.store.sqlengine import make_engine
from tests.migrations.history import at_revision, revisions

ROOT = Path(__file__).parents[2]
SOURCES = ["pairgate", "kernels", "migrations"]
FILES = ["setup.cfg", "pyproject.toml", "README.md", "LICENSE"]
FRAMEWORKS = ["torch", "transformers", "mlflow", "datasets", "matplotlib", "tokenizers", "jinja2"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves a build folder behind and would pick up an old one."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source))
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of an environment that holds the wheel and its base requirements."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    interpreter = folder / "bin" / "python"
    run(str(interpreter), "-m", "pip", "install", "--quiet", str(wheel))
    yield interpreter
    shutil.rmtree(folder)  # half a gigabyte


def run(*command: str, home: Path | None = None, code: int = 0) -> str:
    """stdout of a process that knows neither the checkout nor this test's environment."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PAIRGATE"))}
    if home is not None:
        environ["PAIRGATE_HOME"] = str(home)
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + (done.stderr if code else "")


def write_log(path: Path) -> Path:
    path.write_text(json.dumps({"id": "r", "body": {"prompt": "a b", "max_tokens": 2}}) + "\n")
    return path


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    assert {r for r in roots if not r.endswith(".dist-info")} == {
        "pairgate",
        "pairgate_kernels",
        "pairgate_migrations",
    }
    assert any(name.startswith("pairgate_migrations/versions/0001") for name in names)
    assert "pairgate/policies/default.toml" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_environment_has_no_framework(python: Path) -> None:
    code = f"""
import importlib.util, json
print(json.dumps([n for n in {FRAMEWORKS} if importlib.util.find_spec(n) is not None]))
"""
    assert json.loads(run(str(python), "-c", code)) == []


def test_nothing_named_kernels_is_installed(python: Path) -> None:
    code = "import importlib.util; print(importlib.util.find_spec('kernels'))"
    assert run(str(python), "-c", code).strip() == "None"


def test_init_promote_rollback_status(python: Path, tmp_path: Path) -> None:
    """A whole release by hand: the schema comes from the migrations inside the wheel."""
    home = tmp_path / "home"

    def pairgate(*arguments: str, code: int = 0) -> str:
        return run(str(python.with_name("pairgate")), *arguments, home=home, code=code)

    def pointers() -> tuple[int | None, int | None]:
        head = json.loads(pairgate("status", "chat", "--json"))[0]["head"]
        return head["production"], head["previous"]

    target = write_tiny_model(tmp_path / "target", fill=0.5)
    drafts = [write_tiny_model(tmp_path / f"draft-{i}", fill=float(i)) for i in (1, 2)]
    assert "promote" in pairgate("--help")
    pairgate("init", "chat", "--slice", str(write_log(tmp_path / "log.jsonl")))
    for draft in drafts:
        pairgate("register", "chat", "--target", str(target), "--draft", str(draft), "-k", "2")
    assert pointers() == (None, None)
    assert "evaluat" in pairgate("promote", "chat@1", code=12)
    pairgate("promote", "chat@1", "--override", "first release")
    pairgate("promote", "chat@2", "--override", "second release")
    assert pointers() == (2, 1)
    pairgate("rollback", "chat", "--reason", "test")
    assert pointers() == (1, None)
    kinds = [row["kind"] for row in json.loads(pairgate("history", "chat", "--json"))]
    assert sorted(kinds) == ["promote", "promote", "rollback", "set"]
    pairgate("audit", "verify")
    pairgate("policy", "explain", "default")


def test_an_old_registry_is_upgraded(python: Path, tmp_path: Path) -> None:
    """By the migrations inside the wheel, from the first revision."""
    home = tmp_path / "home"
    home.mkdir()
    engine = make_engine(f"sqlite:///{home / 'pairgate.db'}")
    at_revision(engine, revisions()[0])
    engine.dispose()
    pairgate = str(python.with_name("pairgate"))
    assert "pairgate db upgrade" in run(pairgate, "status", home=home, code=16)
    run(pairgate, "db", "upgrade", home=home)
    current = json.loads(run(pairgate, "db", "current", "--json", home=home))
    assert current["revision"] == current["needed"]
    assert len(json.loads(run(pairgate, "history", "code", "--json", home=home))) == 8


def test_commands_that_need_an_extra_name_it(python: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    pairgate = str(python.with_name("pairgate"))
    model = write_tiny_model(tmp_path / "target", fill=0.5)
    log = write_log(tmp_path / "log.jsonl")
    run(pairgate, "init", "chat", "--slice", str(log), home=home)
    run(pairgate, "register", "chat", "--target", str(model), "--method", "none", home=home)
    assert "pairgate[native]" in run(pairgate, "evaluate", "chat@1", home=home, code=16)
