"""`watch` on servers that write vLLM's own metrics text."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from replica import Replica, Totals

Run = Callable[..., Result]
GOOD, BAD = 0.55, 0.2


def look(
    run: Run, *replicas: Replica, code: int = 0, words: tuple[str, ...] = ()
) -> dict[str, Any]:
    where = [word for r in replicas for word in ("--metrics", r.url)]
    shown = run("watch", "line", *where, "--once", "--json", *words, code=code)
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def until_degraded(
    run: Run, *replicas: Replica, rates: list[float], most: int = 40
) -> dict[str, Any]:
    for _ in range(most):
        for replica, rate in zip(replicas, rates, strict=True):
            replica.totals.serve(300, rate)
        where = [word for r in replicas for word in ("--metrics", r.url)]
        shown = run_any(run, "watch", "line", *where, "--once", "--json")
        if shown["degraded"]:
            return shown
    raise AssertionError(f"not found in {most} looks")


def run_any(run: Run, *words: str) -> dict[str, Any]:
    from click.testing import CliRunner

    from pairgate.cli import cli

    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code in (0, 10), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["degraded"] == (done.exit_code == 10)
    return found


def test_a_healthy_line_stays_so_and_says_what_is_live(run: Run, names: list[str]) -> None:
    with Replica(names=names) as a, Replica(names=names) as b:
        first = look(run, a, b)
        assert first["total"]["n_drafts"] in (None, 0), "what was before the first look is not ours"
        for _ in range(10):
            a.totals.serve(300, GOOD)
            b.totals.serve(300, GOOD)
            seen = look(run, a, b)
    assert seen["total"]["n_drafts"] == 6000 and seen["problems"] == []
    assert seen["total"]["n_accepted"] / seen["total"]["n_draft_tokens"] == pytest.approx(GOOD)
    assert seen["promised"]["floor"] < GOOD < seen["promised"]["value"] + 0.1
    digests = {r["pair_digest"] for r in seen["replicas"]}
    assert digests == {seen["promised"]["pair_digest"]}
    shown = run("status", "line").stdout
    assert "promised" in shown and "0.550" in shown


def test_a_swapped_draft_under_a_running_line_is_found(run: Run, names: list[str]) -> None:
    with Replica(names=names) as a:
        look(run, a)
        for _ in range(5):
            a.totals.serve(300, GOOD)
            look(run, a)
        seen = until_degraded(run, a, rates=[BAD])
    assert "the line as a whole" in seen["problems"][0]
    assert seen["replicas"][0]["problem"] == "acceptance under the floor"


def test_a_swapped_draft_on_one_of_two_replicas_is_named(run: Run, names: list[str]) -> None:
    with Replica(names=names) as a, Replica(names=names) as b:
        look(run, a, b)
        seen = until_degraded(run, a, b, rates=[GOOD, BAD])
        assert [r["problem"] for r in seen["replicas"]] == ["", "acceptance under the floor"]
        assert any(b.url in p for p in seen["problems"])
        assert not any(a.url in p for p in seen["problems"])


def test_an_outlier_above_the_floor_is_named_and_is_no_degradation(
    run: Run, names: list[str]
) -> None:
    with Replica(names=names) as a, Replica(names=names) as b:
        look(run, a, b)
        for _ in range(60):
            a.totals.serve(300, 0.95)
            b.totals.serve(300, 0.5)
            seen = look(run, a, b, words=("--floor", "0.3"))
    assert not seen["degraded"]
    assert seen["replicas"][1]["problem"] == "accepts less than the other replicas"
    assert seen["replicas"][0]["problem"] == ""


def test_a_restart_is_told_from_a_reset(run: Run, names: list[str]) -> None:
    with Replica(names=names) as a:
        a.totals.serve(1000, GOOD)
        look(run, a)
        a.totals = Totals(started_at=1_760_000_100.0)
        a.totals.serve(5000, GOOD)
        seen = look(run, a)
        assert seen["replicas"][0]["event"] == "restart", "though every counter is larger"
        assert seen["total"]["n_drafts"] == 5000
        a.totals = Totals(started_at=1_760_000_100.0)
        a.totals.serve(100, GOOD)
        seen = look(run, a)
        assert seen["replicas"][0]["event"] == "reset"
        assert seen["total"]["n_drafts"] == 5100
        a.totals.serve(50, GOOD)
        assert look(run, a)["replicas"][0]["event"] == ""


def test_a_server_that_stopped_drafting_is_a_degradation(run: Run, names: list[str]) -> None:
    with Replica(names=names) as a:
        look(run, a)
        a.totals.serve(50, GOOD)
        look(run, a)
        for i in range(3):  # its counters stay, but nothing is drafted
            a.totals.n_generated += 200
            a.totals.n_finished += 10
            seen = look(run, a, code=10 if i == 2 else 0)
        assert seen["replicas"][0]["n_idle_tokens"] == 570
    assert "without one draft step" in seen["problems"][0]


def test_another_pair_and_an_unreachable_server_are_said_and_not_mixed_in(
    run: Run, names: list[str]
) -> None:
    other = ["line", f"line@sha256-{'0' * 64}"]
    with Replica(names=names) as a, Replica(names=other) as b, Replica(names=names) as c:
        look(run, a, b, c)
        c.broken = True
        for _ in range(20):
            a.totals.serve(300, GOOD)
            b.totals.serve(300, 0.05)
            seen = look(run, a, b, c)
    assert not seen["degraded"] and seen["total"]["n_drafts"] == 6000
    problems = [r["problem"] for r in seen["replicas"]]
    assert problems == ["", "serves another pair than production", "does not answer"]


def test_the_export_is_prometheus_text(run: Run, names: list[str], tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    file = tmp_path / "line.prom"
    with Replica(names=names) as a:
        look(run, a)
        a.totals.serve(400, GOOD)
        look(run, a, words=("--export", str(file)))
        families = {f.name: f.samples for f in text_string_to_metric_families(file.read_text())}
        up = families["pairgate_replica_up"][0]
        assert up.labels == {"line": "line", "replica": a.url} and up.value == 1.0
        live = families["pairgate_live_acceptance_rate"][0].value
        assert live == pytest.approx(GOOD)
        assert families["pairgate_replica_serves_production"][0].value == 1.0


def test_the_export_on_a_port_answers_while_it_watches() -> None:
    from pairgate.app.watchexport import Exporter

    exporter = Exporter("0")
    try:
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert "pairgate_degraded" in answer.read().decode()
    finally:
        exporter.close()


def test_a_prometheus_names_the_instances(run: Run, names: list[str]) -> None:
    from pairgate.engines.server.live import samples_of

    class Prometheus(Replica):
        query = ""
        instances: tuple[Totals, ...] = ()

        def answer(self, path: str) -> str | None:
            Prometheus.query = urllib.parse.unquote_plus(path)
            rows = [
                {
                    "metric": {"__name__": s.name, "instance": f"host{i}:8000", **dict(s.labels)},
                    "value": [1.0, str(s.value)],
                }
                for i, totals in enumerate(self.instances)
                for s in samples_of(totals.text())
            ]
            return json.dumps({"status": "success", "data": {"result": rows}})

    with Prometheus() as p:
        p.instances = (Totals(), Totals())
        where = ("--prometheus", p.url, "--selector", '{job="vllm"}', "--once", "--json")
        run("watch", "line", *where)
        p.instances[0].serve(400, GOOD)
        seen = json.loads(run("watch", "line", *where).stdout)
    assert [r["reading"]["replica"] for r in seen["replicas"]] == ["host0:8000", "host1:8000"]
    assert seen["total"]["n_drafts"] == 400
    assert re.search(r'job="vllm"\}$', Prometheus.query)


def test_the_hook_sends_one_message_per_degradation(
    run: Run, names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Replica(names=names) as a:
        look(run, a)
        until_degraded(run, a, rates=[BAD])
        look(run, a, words=("--hook",), code=10)
    said = tmp_path / "said.json"
    monkeypatch.setenv("PAIRGATE_DELIVERY_COMMAND", f"tee -a {said}")
    run("outbox", "deliver")
    last = said.read_text()
    assert '"kind": "degradation"' in last and "under" in last


def test_a_killed_writer_leaves_the_looks_before_it(run: Run, names: list[str], home: Path) -> None:
    file = home / "observations" / "line.jsonl"
    with Replica(names=names) as a:
        look(run, a)
        a.totals.serve(300, GOOD)
        look(run, a)
        with file.open("a") as handle:
            handle.write(file.read_text().splitlines()[-1][:100])
        a.totals.serve(300, GOOD)
        seen = look(run, a)
    assert seen["total"]["n_drafts"] == 600
    assert len(file.read_text().splitlines()) == 4, "one of them is cut"
    assert "live acceptance" in run("status", "line").stdout


def test_what_cannot_be_watched_says_why(run: Run, names: list[str]) -> None:
    assert "--metrics" in str(run("watch", "line", "--once", code=2).exception)
    run("watch", "other", "--metrics", "http://127.0.0.1:1", "--once", code=2)
    run("disable", "line", "--reason", "broken")
    refused = run("watch", "line", "--metrics", "http://127.0.0.1:1", "--once", code=15)
    assert "no draft" in str(refused.exception)


def test_the_whole_text_of_a_real_server_is_read() -> None:
    """vLLM 0.32 with an EAGLE-3 head of random weights, after four requests (histograms left
    out): 708 tokens were proposed in 236 steps, none accepted."""
    from pairgate.engines.server.live import reading_of, samples_of

    text = (Path(__file__).parent / "recorded" / "vllm-0.32-eagle3.txt").read_text()
    reading = reading_of("a", samples_of(text))
    counters = reading.counters
    assert (counters.n_drafts, counters.n_draft_tokens, counters.n_accepted) == (236, 708, 0)
    assert counters.per_position == (0, 0, 0) and counters.n_finished == 4
    assert counters.n_generated == 240 and counters.n_preemptions == 0
    assert counters.n_cache_queries is not None and counters.n_cache_hits is not None
    assert reading.started_at > 1.7e9 and reading.served_names == ("line",)
