"""What setup.cfg lists is what lies in the folders, and the extras are ranges, never pins."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

import pairgate

ROOT = Path(__file__).parents[2]
ROOTS = {
    "pairgate": ROOT / "pairgate",
    "pairgate_kernels": ROOT / "kernels" / "pairgate_kernels",
    "pairgate_migrations": ROOT / "migrations",
}


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def folders() -> dict[str, Path]:
    """Package name -> folder, of every folder that holds files."""
    found = {}
    for name, root in ROOTS.items():
        for folder in [root, *(p for p in root.rglob("*") if p.is_dir())]:
            parts = folder.relative_to(root).parts
            if "__pycache__" not in parts and any(p.is_file() for p in folder.iterdir()):
                found[".".join([name, *parts])] = folder
    return found


def folder_of(package: str) -> Path:
    root, *parts = package.split(".")
    return ROOTS[root].joinpath(*parts)


def package_of(name: str, listed: set[str]) -> str:
    """The nearest listed package: data folders belong to the package above them."""
    while name not in listed:
        name = name.rpartition(".")[0]
    return name


def test_every_package_is_listed(setup_cfg: configparser.ConfigParser) -> None:
    listed = set(setup_cfg["options"]["packages"].split())
    code = {name for name, folder in folders().items() if any(folder.glob("*.py"))}
    assert code - listed == set()
    assert listed - set(folders()) == set()


def test_packages_of_code_have_an_init() -> None:
    code = {name: folder for name, folder in folders().items() if any(folder.glob("*.py"))}
    without = {name for name, folder in code.items() if not (folder / "__init__.py").exists()}
    assert without <= {"pairgate_migrations.versions"}


def test_every_data_file_is_shipped(setup_cfg: configparser.ConfigParser) -> None:
    listed = set(setup_cfg["options"]["packages"].split())
    data = {
        package: [pattern.strip() for pattern in patterns.replace("\n", ",").split(",")]
        for package, patterns in setup_cfg["options.package_data"].items()
    }
    forgotten = []
    for name, folder in folders().items():
        package = package_of(name, listed)
        patterns = [*data.get("*", []), *data.get(package, [])]
        shipped = {
            path for pattern in filter(None, patterns) for path in folder_of(package).glob(pattern)
        }
        files = {p for p in folder.iterdir() if p.is_file() and p.suffix not in {".py", ".pyc"}}
        forgotten += [str(path.relative_to(ROOT)) for path in files - shipped]
    assert forgotten == []


def test_versions_agree(setup_cfg: configparser.ConfigParser) -> None:
    assert setup_cfg["metadata"]["version"] == "attr: pairgate.__version__"
    assert f"## {pairgate.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_requirements_are_ranges(setup_cfg: configparser.ConfigParser) -> None:
    requirements = setup_cfg["options"]["install_requires"].split("\n")
    for group in setup_cfg["options.extras_require"].values():
        requirements += group.split("\n")
    assert [r for r in requirements if "==" in r or "@" in r] == []


def test_all_holds_every_extra(setup_cfg: configparser.ConfigParser) -> None:
    extras = setup_cfg["options.extras_require"]
    inside = extras["all"].strip().removeprefix("pairgate[").removesuffix("]")
    assert set(inside.split(",")) == set(extras) - {"all", "dev"}


def test_base_install_has_no_framework(setup_cfg: configparser.ConfigParser) -> None:
    base = setup_cfg["options"]["install_requires"]
    assert not any(name in base for name in ("torch", "transformers", "mlflow", "datasets"))
