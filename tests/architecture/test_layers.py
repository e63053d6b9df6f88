"""The import contracts of pyproject.toml hold, and what they cannot see does too."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for room in ("pairgate", "kernels/pairgate_kernels", "migrations")
    for path in (ROOT / room).rglob("*.py")
)
MAX_LINES = 400
OUTSIDE_THE_WHEEL = {"benchmarks", "docs", "pipelines", "tests"}


def test_import_contracts_are_kept() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-logo", "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_nothing_is_importable_as_kernels() -> None:
    """transformers probes for a package of that name and breaks on a shadow."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    code = "from transformers import LlamaForCausalLM; print(LlamaForCausalLM.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "LlamaForCausalLM"


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    too_long = {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MAX_LINES}
    assert not too_long


def test_the_package_imports_nothing_that_stays_in_the_checkout() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found += [
                (str(path.relative_to(ROOT)), name)
                for name in names
                if name.split(".")[0] in OUTSIDE_THE_WHEEL
            ]
    assert not found


def test_public_functions_and_modules_have_docstrings() -> None:
    missing = []
    for path in SOURCES:
        if path.name == "__init__.py" and not path.read_text().strip():
            continue
        tree = ast.parse(path.read_text())
        where = str(path.relative_to(ROOT))
        if ast.get_docstring(tree) is None:
            missing.append(where)
        missing += [
            f"{where}:{node.lineno} {node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node) is None
            and not _explains_itself(node)
        ]
    assert not missing, "\n".join(missing)


def _explains_itself(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Click takes a command's help from its docstring or from `help=`; an exception with no body
    stands in the tree at the top of errors.py; upgrade() and downgrade() are Alembic's."""
    if isinstance(node, ast.ClassDef):
        return _is_exception(node) or _is_enum(node)
    if node.name in {"upgrade", "downgrade"}:
        return True
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any("command" in text and "help=" in text for text in decorators)


def _is_exception(node: ast.ClassDef) -> bool:
    return len(node.body) == 1 and isinstance(node.body[0], ast.Pass | ast.Assign)


def _is_enum(node: ast.ClassDef) -> bool:
    return any("Enum" in ast.unparse(base) for base in node.bases)
