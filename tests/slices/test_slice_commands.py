"""The slice commands and use cases on a real registry."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pairgate.app import slice_checks, slices
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.errors import IntegrityError, InvalidInput, NotFound, PairgateError, Refused
from pairgate.traffic.importing import ReadOptions
from pairgate.traffic.sampling import SampleSize


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    opened = Workspace.open(home=str(tmp_path / "home"), create=True)
    yield opened
    opened.close()


def write(path: Path, n: int, *, sql: float = 0.5, long: int = 1, seed: int = 0) -> Path:
    """A log of `n` requests, a share of them of domain sql, prompts of about `long` sentences."""
    rng = random.Random(seed)
    rows = [
        {
            "id": f"{seed}-{i}",
            "domain": "sql" if rng.random() < sql else "chat",
            "timestamp": 1_700_000_000 + i,
            "body": {
                "prompt": " ".join(f"word {rng.random()}" for _ in range(rng.randint(1, 4 * long))),
                "temperature": rng.choice((0.0, 0.7)),
                "max_tokens": rng.randint(8, 64),
            },
        }
        for i in range(n)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def run(ws: Workspace, *args: str | Path, fails: type[PairgateError] | None = None) -> Result:
    result = CliRunner().invoke(cli, ["--home", str(ws.home), "slice", *map(str, args)])
    if fails is None:
        assert result.exit_code == 0, (result.output, result.exception)
    else:
        assert isinstance(result.exception, fails), (result.output, result.exception)
    return result


def run_json(ws: Workspace, *args: str | Path) -> Any:
    return json.loads(run(ws, *args, "--json").stdout)


def test_create_is_idempotent_and_loads_verified(ws: Workspace, tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", 50)
    first = slices.import_slice(ws, "may", [log])
    second = slices.import_slice(ws, "may", [log])
    assert (first.created, second.created) == (True, False)
    assert first.row == second.row == slices.create_slice(ws, "may", [log])
    traffic = slices.load_slice(ws, "may")
    assert traffic == slices.load_slice(ws, first.row.digest)
    assert traffic.digest == first.row.digest
    assert (len(traffic.requests), traffic.requests[9].arrival_s) == (50, 9.0)
    assert dict(first.row.domains) == traffic.n_by_domain
    assert len(ws.registry.slices()) == 1


def test_other_content_is_a_new_revision_of_the_name(ws: Workspace, tmp_path: Path) -> None:
    old = slices.import_slice(ws, "may", [write(tmp_path / "a.jsonl", 40)])
    new = slices.import_slice(ws, "may", [write(tmp_path / "b.jsonl", 40, seed=1)])
    assert (new.created, new.replaced) == (True, old.row.digest)
    assert slices.load_slice(ws, "may").digest == new.row.digest
    assert slices.load_slice(ws, old.row.digest).digest == old.row.digest
    assert [s.newest for s in slices.slice_statuses(ws)] == [False, True]


def test_the_same_content_keeps_the_name_that_it_has(ws: Workspace, tmp_path: Path) -> None:
    log = write(tmp_path / "a.jsonl", 5)
    first = slices.create_slice(ws, "may", [log])
    again = slices.import_slice(ws, "june", [log])
    assert again.row == first
    assert not again.created
    assert [row.name for row in ws.registry.slices()] == ["may"]


def test_another_default_for_max_tokens_is_another_slice(ws: Workspace, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"prompt": "a"}')
    digests = {
        slices.create_slice(
            ws,
            "s",
            [tmp_path / "log.jsonl"],
            slices.SliceOptions(read=ReadOptions(default_max_tokens=n)),
        ).digest
        for n in (8, 16)
    }
    assert len(digests) == 2
    assert slices.load_slice(ws, "s").requests[0].max_tokens == 16


def test_changed_and_missing_texts_are_refused(ws: Workspace, tmp_path: Path) -> None:
    row = slices.create_slice(ws, "may", [write(tmp_path / "a.jsonl", 5)])
    path = ws.slices_dir / f"{row.digest.removeprefix('sha256:')}.jsonl"
    text = path.read_text()
    path.write_text(text.replace("word", "wort", 1))
    with pytest.raises(IntegrityError, match="have digest"):
        slices.load_slice(ws, "may")
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    with pytest.raises(IntegrityError, match="have digest"):
        slices.load_slice(ws, "may")
    path.unlink()
    with pytest.raises(IntegrityError, match="are not at"):
        slices.load_slice(ws, "may")
    assert slices.slice_status(ws, "may").texts == "missing"
    slices.create_slice(ws, "may", [tmp_path / "a.jsonl"])
    assert slices.load_slice(ws, "may").digest == row.digest


def test_expired_texts_are_refused_and_purged(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = slices.create_slice(ws, "kept", [write(tmp_path / "k.jsonl", 5, seed=1)])
    log = write(tmp_path / "a.jsonl", 5)
    made = slices.import_slice(ws, "may", [log], slices.SliceOptions(expires_days=30))
    assert made.record.expires_at is not None
    slices.load_slice(ws, "may")
    monkeypatch.setattr(slices, "now", lambda: "2999-01-01T00:00:00.000000Z")
    with pytest.raises(Refused, match="expired") as refused:
        slices.load_slice(ws, "may")
    assert "slice create" in str(refused.value.hint)
    assert run(ws, "purge", "--expired").stdout.count("purged 2999-01-01") == 1
    assert slices.slice_status(ws, "may").texts == "purged"
    assert slices.load_slice(ws, "kept").digest == kept.digest
    assert run(ws, "purge", "--expired").stdout == ""


def test_purge_keeps_digest_and_counts_and_no_text(ws: Workspace, tmp_path: Path) -> None:
    log = write(tmp_path / "a.jsonl", 5)
    log.write_text(log.read_text() + '\n{"id": "secret-id", "prompt": 5}')
    row = slices.create_slice(ws, "may", [log])
    assert "purged" in run(ws, "purge", "may").stdout
    status = slices.slice_status(ws, "may")
    assert (status.texts, status.row) == ("purged", row)
    assert status.record is not None
    assert status.record.purged_at is not None
    assert status.record.report.n_read == 6
    left = " ".join(p.read_text() for p in ws.slices_dir.iterdir())
    assert "word" not in left
    assert "a.jsonl:6" not in left
    with pytest.raises(Refused, match="were purged"):
        slices.load_slice(ws, "may")
    run(ws, "purge", "may")
    assert slices.import_slice(ws, "may", [log]).created is False
    assert slices.load_slice(ws, "may").digest == row.digest
    assert slices.slice_status(ws, "may").texts == "present"


def test_strict_and_empty_logs_are_errors(ws: Workspace, tmp_path: Path) -> None:
    log = write(tmp_path / "a.jsonl", 3)
    log.write_text(log.read_text() + '\n{"prompt": 5}\n{"id": "0-0", "prompt": "x"}\n{"pro')
    result = run(ws, "create", "s", "--from", log, "--strict", fails=InvalidInput)
    message = str(result.exception)
    assert "3 of 6 records are faulty" in message
    assert "a.jsonl:4: prompt is a number" in message
    assert ws.registry.slices() == []
    (tmp_path / "empty.jsonl").write_text("\n\n")
    run(ws, "create", "s", "--from", tmp_path / "empty.jsonl", fails=InvalidInput)
    run(ws, "create", "../s", "--from", log, fails=InvalidInput)
    run(ws, "create", "s", "--from", log, "--expires", "-1", fails=InvalidInput)
    run(ws, "create", "s", "--from", log, "--drop-leaks", fails=InvalidInput)
    run(ws, "show", "nothing", fails=NotFound)
    run(ws, "purge", fails=InvalidInput)


def test_create_from_the_command_line(ws: Workspace, tmp_path: Path) -> None:
    logs = [write(tmp_path / f"{i}.jsonl", 400, sql=0.1, seed=i) for i in range(2)]
    out = run(ws, "create", "may", "--from", *logs, "--per-domain", "50", "--seed", "3").stdout
    assert "800 read = 100 kept + 700 left out" in out
    shown = run_json(ws, "show", "may")
    assert shown["row"]["domains"] == [["chat", 50], ["sql", 50]]
    assert shown["record"]["report"]["left_out"][0]["n"] == 700
    assert shown["texts"] == "present"
    assert "may" in run(ws, "show", "may").stdout
    (listed,) = run_json(ws, "list")
    assert listed["row"]["digest"] == shown["row"]["digest"]
    assert "chat 50, sql 50" in run(ws, "list").stdout
    again = run_json(ws, "create", "may", "--from", *logs, "--per-domain", "50", "--seed", "3")
    assert (again["created"], again["row"]["digest"]) == (False, shown["row"]["digest"])


def test_mapping_and_defaults_from_the_command_line(ws: Workspace, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "a", "meta": {"team": "x"}}\n{"prompt": "b"}')
    options = ("--map", "domain=meta.team", "--domain", "rest", "--max-tokens", "9")
    run(ws, "create", "s", "--from", log, *options)
    requests = slices.load_slice(ws, "s").requests
    assert [(r.domain, r.max_tokens) for r in requests] == [("x", 9), ("rest", 9)]


def test_leaks_are_reported_and_dropped(ws: Workspace, tmp_path: Path) -> None:
    pytest.importorskip("datasketch")
    log = write(tmp_path / "a.jsonl", 30, long=9)
    leaked = json.loads(log.read_text().splitlines()[3])["body"]["prompt"]
    (tmp_path / "train.txt").write_text(f"before {leaked} after")
    against = ("--check-against", tmp_path / "train.txt")
    made = run_json(ws, "create", "s", "--from", log, *against)
    assert [leak["request_id"] for leak in made["record"]["leaks"]["leaks"]] == ["0-3"]
    assert made["row"]["n_requests"] == 30
    assert "1 of " in run(ws, "show", "s").stdout
    clean = run_json(ws, "create", "s", "--from", log, *against, "--drop-leaks")
    assert clean["row"]["n_requests"] == 29
    assert clean["record"]["report"]["left_out"][0]["reason"] == "stands in the training text"


def test_check_sees_what_moved_and_nothing_else(ws: Workspace, tmp_path: Path) -> None:
    log = write(tmp_path / "a.jsonl", 2000, sql=0.2)
    options = slices.SliceOptions(size=SampleSize(per_domain=200))
    slices.create_slice(ws, "may", [log], options)
    same = slice_checks.check_slice(ws, "may", [write(tmp_path / "b.jsonl", 2000, sql=0.2, seed=1)])
    assert same.warnings == ()
    assert same.n_compared == 6
    moved = write(tmp_path / "c.jsonl", 2000, sql=0.6, long=3, seed=2)
    moved.write_text(moved.read_text().replace('"domain": "sql"', '"domain": "code"', 100))
    found = run_json(ws, "check", "may", "--against", moved)
    assert len(found["warnings"]) == 4
    assert "domain" in found["warnings"][0]
    assert "code, which the slice lacks" in found["warnings"][1]
    assert all("prompt length" in w for w in found["warnings"][2:])
    text = run(ws, "check", "may", "--against", moved).stdout
    assert text.count("! ") == 4


def test_too_few_to_compare_is_said(ws: Workspace, tmp_path: Path) -> None:
    log = write(tmp_path / "a.jsonl", 10)
    slices.create_slice(ws, "s", [log])
    assert "too few" in run(ws, "check", "s", "--against", log).stdout
    run(ws, "check", "s", "--against", log, "--threshold", "2", fails=InvalidInput)


def test_size_by_formula(ws: Workspace, tmp_path: Path) -> None:
    found = run_json(ws, "size")
    # ((1.6449 + 1.2816) * 0.2 / d)^2
    assert [(x["distance"], x["n"]) for x in found["needed"]] == [
        (0.1, 35),
        (0.05, 138),
        (0.02, 857),
    ]
    slices.create_slice(ws, "s", [write(tmp_path / "a.jsonl", 138, sql=1.0)])
    (domain,) = run_json(ws, "size", "s")["domains"]
    assert (domain["domain"], domain["n"]) == ("sql", 138)
    assert domain["distance"] == pytest.approx(0.05, abs=1e-3)
    assert "decides from" in run(ws, "size", "s", "--sd", "0.3").stdout
    run(ws, "size", "--distance", "0", fails=InvalidInput)
    run(ws, "size", "--sd", "-1", fails=InvalidInput)
    # Beyond what a standard deviation of shares can be, and beyond what a float can hold.
    run(ws, "size", "--sd", "inf", fails=InvalidInput)
    run(ws, "size", "--distance", "1e-200", fails=InvalidInput)
    run(ws, "size", "--alpha", "1e-17", fails=InvalidInput)


def test_a_damaged_record_hides_no_other_slice(ws: Workspace, tmp_path: Path) -> None:
    damaged = slices.create_slice(ws, "damaged", [write(tmp_path / "a.jsonl", 3)])
    options = slices.SliceOptions(expires_days=1e-9)
    slices.create_slice(ws, "expired", [write(tmp_path / "b.jsonl", 4)], options)
    (ws.slices_dir / f"{damaged.digest.removeprefix('sha256:')}.json").write_text("x")
    states = {s["row"]["name"]: s["texts"] for s in run_json(ws, "list")}
    assert states == {"damaged": "damaged", "expired": "expired"}
    assert "expired" in run(ws, "purge", "--expired").stdout
    run(ws, "show", "damaged", fails=IntegrityError)
