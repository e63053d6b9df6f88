"""`import`: shapes that servers and AIPerf document publicly (not recorded here)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pairgate.app.imported import import_responses
from pairgate.cli import cli
from pairgate.errors import InvalidInput, NotFound

SGLANG = {
    "text": "x",
    "meta_info": {
        "prompt_tokens": 20, "completion_tokens": 12, "spec_verify_ct": 3,
        "spec_num_correct_drafts": 9, "spec_num_proposed_drafts": 24,
    },
}  # fmt: skip
LLAMACPP = {
    "choices": [],
    "usage": {"completion_tokens": 665, "prompt_tokens": 808},
    "timings": {"predicted_n": 665, "draft_n": 604, "draft_n_accepted": 515},
}
TRTLLM = {
    "request_id": 1,
    "perf_metrics": {
        "speculative_decoding": {
            "acceptance_rate": 0.5, "total_accepted_draft_tokens": 30, "total_draft_tokens": 60,
        }
    },
}  # fmt: skip
AIPERF = {
    "metadata": {"x_request_id": "a", "benchmark_phase": "profiling"},
    "metrics": {
        "time_to_first_token": {"value": 50.0, "unit": "ms"},
        "request_latency": {"value": 250.0, "unit": "ms"},
        "output_sequence_length": {"value": 11, "unit": "tokens"},
    },
    "error": None,
}
FAILED = {"metadata": {}, "metrics": {"error_isl": {"value": 5, "unit": "tokens"}},
          "error": {"code": 499, "type": "RequestCancellationError"}}  # fmt: skip


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def in_other_words(accepted: str, proposed: str) -> dict[str, Any]:
    meta = {"completion_tokens": 12, "spec_verify_ct": 3, accepted: 9, proposed: 24}
    return {"choices": [{"meta_info": meta}]}


@pytest.mark.parametrize(
    ("form", "row", "rate", "per_round"),
    [
        ("sglang", SGLANG, 9 / 24, 4.0),
        ("sglang", in_other_words("spec_accepted_drafts", "spec_proposed_drafts"), 9 / 24, 4.0),
        ("sglang", in_other_words("spec_accept_token_num", "spec_draft_token_num"), 9 / 24, 4.0),
        ("sglang", {"sglext": {"spec_tokens_details": SGLANG["meta_info"]}}, 9 / 24, 4.0),
        ("llamacpp", LLAMACPP, 515 / 604, None),
        ("trtllm", TRTLLM, 0.5, None),
    ],
)
def test_each_engine_by_its_own_definition(
    tmp_path: Path, form: str, row: dict[str, Any], rate: float, per_round: float | None
) -> None:
    found = import_responses(write(tmp_path, row, row), form)
    assert found.acceptance_rate == pytest.approx(rate)
    assert found.tokens_per_round == per_round
    assert found.definition.startswith(form) and found.origin == "imported"


def test_vllms_own_recorded_answer(tmp_path: Path) -> None:
    recorded = Path(__file__).resolve().parents[1] / "server" / "recorded" / "eos.sse"
    chunks = [json.loads(line[6:]) for line in recorded.read_text().splitlines() if "usage" in line]
    final = next(c for c in chunks if c.get("metrics"))
    found = import_responses(write(tmp_path, final), "vllm")
    counts = final["metrics"]["speculative_decoding"]
    assert found.acceptance_rate == pytest.approx(
        counts["num_accepted_draft_tokens"] / counts["num_draft_tokens"]
    )


def test_aiperf_gives_times_and_no_acceptance(tmp_path: Path) -> None:
    shown = CliRunner().invoke(
        cli, ["import", str(write(tmp_path, AIPERF, FAILED)), "--from", "aiperf"]
    )
    assert shown.exit_code == 0 and "never evidence" in shown.stderr
    assert "2, 1 failed" in shown.stdout and "acceptance" not in shown.stdout
    found = import_responses(write(tmp_path, AIPERF, FAILED), "aiperf")
    assert (found.ttft_p50_ms, found.tpot_p50_ms) == (50.0, 20.0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("[1]", "no JSON object"),
        ('{"timings": {"draft_n": 3, "draft_n_accepted": 4}}', "4 of 3"),
        ('{"timings": {"draft_n": "3"}}', "no count"),
        ("{", "line 1"),
    ],
)
def test_what_cannot_be_true_is_refused_with_its_line(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(InvalidInput, match=said):
        import_responses(path, "llamacpp")


def test_an_empty_or_absent_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no response"):
        import_responses(write(tmp_path), "sglang")
    with pytest.raises(NotFound):
        import_responses(tmp_path / "none", "sglang")
