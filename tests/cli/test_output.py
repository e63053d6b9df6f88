"""What users' names may do to a terminal: nothing."""

from __future__ import annotations

import pytest

from pairgate.cli.output import table


def test_control_characters_are_shown_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    table(("domain",), [("\x1b[31mred\nline\x9d é",)])
    assert capsys.readouterr().out.splitlines() == ["domain", "\\x1b[31mred\\nline\\x9d é"]
