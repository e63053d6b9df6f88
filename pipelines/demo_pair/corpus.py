"""Obtain the text of every domain and split it into training and held-out files.

The text comes from Debian packages, fetched by name with `apt-get download` and unpacked without
installing. With `offline` each domain gets a stand-in from Python's own standard library, so that
CI runs the recipe without a network; the stand-ins have nothing to do with the domains' names.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from common import DOMAINS, Preset, Work, write_jsonl, write_text_atomically

PACKAGES = {
    "python": ("libpython3.11-stdlib", "libpython3.11-minimal"),
    "manual": ("manpages", "manpages-dev"),
    "sql": (
        "postgresql-15",
        "postgresql-15-partman",
        "postgresql-15-periods",
        "postgresql-15-mimeo",
        "postgresql-15-pgq3",
        "postgresql-15-pgq-node",
        "postgresql-15-londiste-sql",
        "postgresql-15-pgsphere",
        "postgresql-15-pointcloud",
        "postgresql-15-orafce",
        "postgresql-15-ip4r",
        "postgresql-15-pgtap",
    ),
    "scripture": ("bible-kjv", "bible-kjv-text"),
    "general": ("python3.11-doc",),
}
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
STAND_INS = {
    "python": "[a-l]*.py",
    "manual": "[m-z]*.py",
    "sql": "encodings/*.py",
    "scripture": "pydoc_data/*.py",
    "general": "email/*.py",
}

# A document is (group, text). Documents of one group are never on both sides of the split.
Documents = Iterable[tuple[str, str]]


def fetch(packages: Iterable[str], folder: Path) -> list[Path]:
    """Unpack Debian packages below `folder`; those already there are not fetched again."""
    roots = []
    for package in packages:
        root = folder / package
        roots.append(root)
        if root.exists():
            continue
        downloads = folder / "debs"
        downloads.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=downloads, check=True)
        (deb,) = downloads.glob(f"{package}_*.deb")
        partial = folder / f"{package}.partial"
        subprocess.run(["dpkg-deb", "-x", str(deb), str(partial)], check=True)
        partial.rename(root)
    return roots


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def files(roots: list[Path], pattern: str) -> Iterator[Path]:
    for root in roots:
        for path in sorted(root.rglob(pattern)):
            if path.is_file() and not path.is_symlink():
                yield path


def python_documents(roots: list[Path]) -> Documents:
    for path in files(roots, "*.py"):
        parts = path.parts
        below = parts[parts.index("python3.11") + 1 :] if "python3.11" in parts else ()
        # encodings/ and the sysconfig data are tables, pydoc_data is prose.
        tables = below and below[0] in ("encodings", "pydoc_data", "lib2to3")
        if below and not tables and "sysconfigdata" not in path.name:
            yield below[0], read(path)


def manual_documents(roots: list[Path]) -> Documents:
    for path in files(roots, "*.gz"):
        if path.parent.name[:3] != "man":
            continue
        source = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")
        licence = re.search(r"SPDX-License-Identifier: *(.*)", source)
        # Pages without a machine-readable licence, and copyleft software licences, are left out.
        if not licence or "GPL" in licence.group(1):
            continue
        lines = [line for line in source.splitlines() if not line.startswith(('.\\"', "'\\\""))]
        if len(lines) > 20:
            yield path.name.split(".")[0], "\n".join(lines) + "\n"


def sql_documents(roots: list[Path]) -> Documents:
    seen: set[bytes] = set()
    for path in files(roots, "*.sql"):
        group = re.split(r"--|\.", path.name)[0]
        kept = []
        # Extensions ship every upgrade step: most paragraphs come many times.
        for paragraph in re.split(r"\n\s*\n", read(path)):
            key = hashlib.sha256(" ".join(paragraph.split()).encode()).digest()
            if key not in seen and "\\echo" not in paragraph:
                seen.add(key)
                kept.append(paragraph.strip("\n"))
        text = "\n\n".join(kept)
        if len(text) > 200:
            yield group, text + "\n"


def scripture_documents(roots: list[Path]) -> Documents:
    program = next(path for path in files(roots, "bible") if path.parent.name == "bin")
    data = next(files(roots, "bible.data")).parent
    command = [str(program), "-p", f"{data}/", "-f", "gen1:1-rev22:21"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    chapters: dict[tuple[str, str], list[str]] = {}
    for line in out.splitlines():
        verse = re.match(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)", line)
        if verse:
            book, chapter, number, text = verse.groups()
            chapters.setdefault((book, chapter), []).append(f"{chapter}:{number} {text.strip()}")
    for (book, _), lines in chapters.items():
        yield book, "\n".join(lines) + "\n"


def general_documents(roots: list[Path]) -> Documents:
    for path in files(roots, "*.rst.txt"):
        yield path.parent.name + "/" + path.name, read(path)


READERS = {
    "python": python_documents,
    "manual": manual_documents,
    "sql": sql_documents,
    "scripture": scripture_documents,
    "general": general_documents,
}


def stand_in_documents(domain: str) -> Documents:
    for path in sorted(STANDARD_LIBRARY.glob(STAND_INS[domain])):
        text = read(path)
        # One huge file would leave nothing to hold out: cut it into groups of its own.
        for part in range(0, len(text), 20_000):
            yield f"{path.name}#{part}", text[part : part + 20_000]


def split(documents: Documents, preset: Preset) -> tuple[list[dict], list[dict]]:
    """Whole groups in the order of a hash: held out until there is enough, training after that."""
    groups: dict[str, list[str]] = {}
    seen: set[str] = set()
    for group, text in documents:
        normal = " ".join(text.split())
        if normal not in seen:  # the same file under two names
            seen.add(normal)
            groups.setdefault(group, []).append(text)
    order = sorted(groups, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    train: list[dict] = []
    heldout: list[dict] = []
    held_chars = train_chars = 0
    for group in order:
        rows = [{"group": group, "text": text} for text in groups[group]]
        size = sum(len(text) for text in groups[group])
        # A group larger than a third of the held-out part would make that domain one author's text.
        if held_chars < preset.heldout_chars and size <= preset.heldout_chars / 3:
            heldout += rows
            held_chars += size
        elif train_chars < preset.train_chars:
            train += rows
            train_chars += size
    return train, heldout


def ship_licences(work: Work) -> None:
    """The slices quote the packages' text, so the packages' copyright files go with them."""
    raw = work.root / "raw"
    target = work.ship / "licenses"
    target.mkdir(parents=True, exist_ok=True)
    shipped: set[str] = set()
    for package in sorted(name for names in PACKAGES.values() for name in names):
        # A package without one shares its sister's (manpages-dev that of manpages).
        path = raw / package / "usr/share/doc" / package / "copyright"
        if path.is_file() and (text := read(path)) not in shipped:
            shipped.add(text)
            write_text_atomically(target / f"{package}.txt", text)


def build(work: Work, preset: Preset) -> None:
    for domain in DOMAINS:
        if work.train_text(domain).exists():
            continue
        if preset.offline:
            documents = stand_in_documents(domain)
        else:
            documents = READERS[domain](fetch(PACKAGES[domain], work.root / "raw"))
        train, heldout = split(documents, preset)
        write_jsonl(work.heldout_text(domain), heldout)
        write_jsonl(work.train_text(domain), train)
        for side, rows in (("train", train), ("held out", heldout)):
            groups = len({row["group"] for row in rows})
            chars = sum(len(row["text"]) for row in rows)
            print(f"{domain}: {side} {len(rows)} files, {groups} groups, {chars} characters")
    if not preset.offline:
        ship_licences(work)
