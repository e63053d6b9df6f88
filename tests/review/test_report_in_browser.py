"""The report in a browser, 529 pixels wide as MLflow's frame: it fits, and the console is empty."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pairgate.domain.evidence import Evaluation
from pairgate.domain.policy import Policy
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Verdict
from pairgate.review.report import report_html
from pairgate.review.story import Labels

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]
FRAME = 529
HOSTILE = "<img src=x onerror=alert(1)>" + "x" * 300


def browse(page: Path, profile: Path) -> tuple[str, str]:
    """The document after loading, and what the browser wrote to its log."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={profile}", f"--window-size={FRAME},1000", "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def test_it_fits_the_frame_and_says_nothing_on_the_console(
    make_evaluation: Callable[..., Evaluation],
    make_verdict: Callable[..., Verdict],
    make_batch: Callable[..., TraceBatch],
    showing_policy: Policy,
    tmp_path: Path,
) -> None:
    domains = {HOSTILE: 0.4, "plain": 0.8}
    evaluation = make_evaluation(domains)
    batch = make_batch(80, domains)
    batch = replace(batch, request_id=batch.request_id + "-" + "y" * 200)
    html = report_html(
        evaluation,
        make_verdict(evaluation),
        showing_policy,
        labels=Labels(candidate="code-assistant@2", notes=(HOSTILE,)),
        acceptance=batch,
        texts={str(i): f"{HOSTILE} " * 5 for i in batch.request_id},
    )
    report = tmp_path / "report.html"
    report.write_text(html)
    _, log = browse(report, tmp_path / "profile")
    assert "CONSOLE" not in log
    # The report itself runs no script, so a copy without its policy is measured by one of ours.
    measured = re.sub(r"<meta http-equiv[^>]*>", "", html).replace(
        "</body>",
        "<script>document.title = 'measured ' + [innerWidth, "
        "document.documentElement.scrollWidth, document.images.length]</script></body>",
    )
    report.write_text(measured)
    page, _ = browse(report, tmp_path / "profile")
    found = re.search(r"<title>measured (\d+),(\d+),(\d+)</title>", page)
    assert found is not None
    inner, scroll, n_images = map(int, found.groups())
    assert inner == FRAME
    assert scroll <= FRAME
    assert n_images == 0
