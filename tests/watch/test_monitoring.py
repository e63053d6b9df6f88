"""`monitoring`: rules that Prometheus takes and that fire, and a dashboard."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

Run = Callable[..., Result]
SELECTOR = ("--selector", '{job="vllm"}')


def test_the_rules_hold_the_lines_own_threshold(run: Run) -> None:
    rules = yaml.safe_load(run("monitoring", "line", *SELECTOR, "--floor", "0.4321").stdout)
    (group,) = rules["groups"]
    low = group["rules"][0]
    assert "< 0.4321" in low["expr"] and 'job="vllm"' in low["expr"]
    assert "pairgate diagnose line" in low["annotations"]["summary"]
    derived = yaml.safe_load(run("monitoring", "line", *SELECTOR).stdout)["groups"][0]["rules"][0]
    assert "0.4321" not in derived["expr"]


def test_the_dashboard_is_whole(run: Run) -> None:
    board = json.loads(run("monitoring", "line", "--format", "grafana", *SELECTOR).stdout)
    assert board["title"] == "pairgate: line" and len(board["panels"]) == 8
    steps = board["panels"][0]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert 0.3 < steps[1]["value"] < 0.6
    assert len({tuple(sorted(p["gridPos"].items())) for p in board["panels"]}) == 8


@pytest.mark.prometheus
def test_prometheus_takes_the_rules_and_they_fire(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        run("monitoring", "line", *SELECTOR, "--floor", "0.5").stdout
    )
    board = json.loads(run("monitoring", "line", "--format", "grafana", *SELECTOR).stdout)
    dashed = [
        {"record": f"panel:{i}", "expr": panel["targets"][0]["expr"]}
        for i, panel in enumerate(board["panels"])
    ]
    (tmp_path / "board.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": dashed}]})
    )
    for name in ("rules.yaml", "board.yaml"):
        checked = subprocess.run(
            ["promtool", "check", "rules", name], cwd=tmp_path, capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(_unit_tests()))
    tested = subprocess.run(
        ["promtool", "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def _unit_tests() -> dict[str, object]:
    """Three servers for two hours: a accepts 60 %, b 20 %, c stopped drafting."""

    def series(metric: str, instance: str, per_minute: int) -> dict[str, str]:
        labels = f'{{job="vllm",instance="{instance}"}}'
        return {"series": f"vllm:{metric}{labels}", "values": f"0+{per_minute}x120"}

    given = []
    for name, drafts, accepted in (("a", 600, 1440), ("b", 600, 480), ("c", 0, 0)):
        given += [
            series("spec_decode_num_drafts_total", name, drafts),
            series("spec_decode_num_draft_tokens_total", name, 4 * drafts),
            series("spec_decode_num_accepted_tokens_total", name, accepted),
            series("generation_tokens_total", name, 1200),
        ]
    given.append({"series": 'pairgate_degraded{line="line"}', "values": "0x120"})

    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": given,
                "promql_expr_test": [
                    {
                        "expr": f'count by (instance) (ALERTS{{alertname="{alert}",'
                        'alertstate="firing"})',
                        "eval_time": "110m",
                        "exp_samples": [
                            {"labels": f'{{instance="{name}"}}' if name else "{}", "value": 1}
                            for name in instances
                        ],
                    }
                    for alert, instances in (
                        ("PairgateAcceptanceLow", [""]),
                        ("PairgateReplicaOutlier", ["b"]),
                        ("PairgateNotDrafting", ["c"]),
                        ("PairgateDegraded", []),
                        ("PairgatePreemptions", []),
                    )
                ],
            }
        ],
    }
