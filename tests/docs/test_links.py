"""Links between the pages, and from the README into the checkout, lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("kernels/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_exist(page: Path) -> None:
    links = [link.split("#")[0] for link in LINK.findall(page.read_text())]
    local = [
        link for link in links if link and "://" not in link and not link.startswith("mailto:")
    ]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_there_are_pages_to_check() -> None:
    assert {"README.md", "CHANGELOG.md"} <= {page.name for page in PAGES}
