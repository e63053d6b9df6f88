"""The reference page and the metric table name exactly what the code knows."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pairgate.domain.policy import ApprovalSettings, FallbackSettings, Policy, ReplaySettings
from pairgate.policyfile import RULE_TYPES

DOCS = Path(__file__).parents[2] / "docs"
TABLES = {"replay": ReplaySettings, "fallback": FallbackSettings, "approvals": ApprovalSettings}


def _keys(heading: str) -> set[str]:
    """Keys in the first column of the table under a heading of docs/policy.md."""
    text = (DOCS / "policy.md").read_text("utf-8")
    section = re.split(r"\n#+ ", text.split(f"# {heading}\n", 1)[1])[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("name", list(RULE_TYPES))
def test_every_key_of_a_rule_is_documented(name: str) -> None:
    assert _keys(f"`rules.{name}`") == {f.name for f in fields(RULE_TYPES[name])}


@pytest.mark.parametrize("name", list(TABLES))
def test_every_key_of_a_table_is_documented(name: str) -> None:
    assert _keys(f"`{name}`") == {f.name for f in fields(TABLES[name])}


def test_every_setting_is_documented() -> None:
    assert _keys("Settings") == {f.name for f in fields(Policy)} - {"rules", *TABLES}
