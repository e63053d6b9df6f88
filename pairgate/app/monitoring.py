"""`monitoring`: alert rules and a dashboard with the thresholds of one line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pairgate.app.looking import OUTLIER_MARGIN
from pairgate.app.watch import promise_of

if TYPE_CHECKING:
    from pairgate.app.watch import Expectation
    from pairgate.app.workspace import Workspace
    from pairgate.domain.observation import Promised

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_PROPOSED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = "vllm:generation_tokens_total"
_PREEMPTIONS = "vllm:num_preemptions_total"
_QUERIES, _HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """What a line promises, and the series of its servers (`selector`, without braces)."""

    line: str
    promised: Promised
    selector: str

    def rate(self, metric: str, window: str = "15m", by: str = "") -> str:
        """Tokens (or steps) per second over a window, summed over the line or by a label."""
        grouped = f" by ({by})" if by else ""
        return f"sum{grouped} (rate({metric}{{{self.selector}}}[{window}]))"

    def acceptance(self, window: str = "15m", by: str = "") -> str:
        """Accepted of proposed tokens."""
        return f"{self.rate(_ACCEPTED, window, by)} / {self.rate(_PROPOSED, window, by)}"

    @property
    def own(self) -> str:
        """The label of pairgate's own gauges (`watch --export`)."""
        return f"line={json.dumps(self.line)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule of Prometheus; `for_` is how long it must hold, as `15m`."""

    name: str
    expression: str
    for_: str
    severity: str
    summary: str


def monitoring(ws: Workspace, line: str, expected: Expectation, selector: str) -> Monitoring:
    """What to watch for. Raises as `watch` does."""
    inside = selector.strip().removeprefix("{").removesuffix("}").strip(" ,")
    return Monitoring(line=line, promised=promise_of(ws, line, expected), selector=inside)


def alerts(m: Monitoring) -> tuple[Alert, ...]:
    """Rules on the servers' own series; the last two on those of `watch --export`."""
    floor = f"{m.promised.floor:.4f}"
    label = f"{m.line}@{m.promised.version}"
    drafting = f"{m.rate(_DRAFTS, by='instance')} > 1"
    return (
        Alert(
            name="PairgateAcceptanceLow",
            expression=f"({m.acceptance()}) < {floor} and {m.rate(_DRAFTS)} > 1",
            for_="15m",
            severity="critical",
            summary=f"{label} accepts {{{{ $value | humanize }}}} of what it proposes, under "
            f"{floor}. Run: pairgate diagnose {m.line}",
        ),
        Alert(
            name="PairgateReplicaOutlier",
            expression=f"({m.acceptance(by='instance')}) < on () group_left () "
            f"(({m.acceptance()}) - {OUTLIER_MARGIN}) and {drafting}",
            for_="30m",
            severity="warning",
            summary=f"{{{{ $labels.instance }}}} of {label} accepts less than the others",
        ),
        Alert(
            name="PairgateNotDrafting",
            expression=f"{m.rate(_GENERATED, by='instance')} > 10 unless {drafting}",
            for_="10m",
            severity="critical",
            summary=f"{{{{ $labels.instance }}}} of {label} generates without drafting. "
            f"Run: pairgate diagnose {m.line}",
        ),
        Alert(
            name="PairgatePreemptions",
            expression=f"{m.rate(_PREEMPTIONS, by='instance')} > 0",
            for_="15m",
            severity="warning",
            summary=f"{{{{ $labels.instance }}}} of {label} preempts requests: its cache is full",
        ),
        Alert(
            name="PairgateDegraded",
            expression=f"pairgate_degraded{{{m.own}}} == 1",
            for_="0m",
            severity="critical",
            summary=f"the sequential test of pairgate watch says that {label} lost acceptance. "
            f"Run: pairgate diagnose {m.line}",
        ),
        Alert(
            name="PairgateOtherPair",
            expression=f"pairgate_replica_serves_production{{{m.own}}} == 0",
            for_="30m",
            severity="warning",
            summary="{{ $labels.replica }} serves another pair than production",
        ),
    )


def prometheus_rules(m: Monitoring) -> str:
    """A rule file of Prometheus (YAML)."""
    rows = [
        f"# {m.line}@{m.promised.version} ({m.promised.pair_digest})",
        "groups:",
        f"  - name: {json.dumps(f'pairgate-{m.line}')}",
        "    rules:",
    ]
    for alert in alerts(m):
        rows += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.for_}",
            "        labels:",
            f"          severity: {alert.severity}",
            f"          line: {json.dumps(m.line)}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
        ]
    return "\n".join(rows) + "\n"


def grafana_dashboard(m: Monitoring) -> str:
    """A dashboard of Grafana (JSON, schema 39): import it and choose the data source."""
    by = "instance"
    hits = f"{m.rate(_HITS, '5m', by)} / {m.rate(_QUERIES, '5m', by)}"
    length = f"1 + {m.rate(_ACCEPTED, '5m', by)} / {m.rate(_DRAFTS, '5m', by)}"
    positions = f"{m.rate(_PER_POSITION, '5m', 'position')} / on () group_left () "
    panels = [
        _panel("Accepted of proposed tokens", m.acceptance("5m", by), floor=m.promised.floor),
        _panel("Accepted by position", positions + m.rate(_DRAFTS, "5m"), legend="position"),
        _panel("Tokens per draft step", length),
        _panel("Generated tokens per second", m.rate(_GENERATED, "5m", by)),
        _panel("Prefix cache hit share", hits),
        _panel("Preemptions per second", m.rate(_PREEMPTIONS, "5m", by)),
        _panel("Sequential test: degraded", f"pairgate_degraded{{{m.own}}}", legend="line"),
        _panel(
            "Serves production",
            f"pairgate_replica_serves_production{{{m.own}}}",
            legend="replica",
        ),
    ]
    for i, panel in enumerate(panels):
        panel |= {"id": i + 1, "gridPos": {"h": 8, "w": 12, "x": 12 * (i % 2), "y": 8 * (i // 2)}}
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    document = {
        "title": f"pairgate: {m.line}",
        "description": f"{m.line}@{m.promised.version} {m.promised.pair_digest}",
        "uid": f"pairgate-{m.line}"[:40],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source]},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


def _panel(
    title: str, expression: str, *, legend: str = "instance", floor: float | None = None
) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if floor is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": floor}]
    style = "line" if floor is not None else "off"
    return {
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "targets": [
            {
                "refId": "A",
                "datasource": source,
                "expr": expression,
                "legendFormat": f"{{{{{legend}}}}}",
            }
        ],
        "fieldConfig": {
            "defaults": {
                "custom": {"thresholdsStyle": {"mode": style}},
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
    }
