"""Acceptance in detail: single requests per domain, then by position, length and temperature."""

from __future__ import annotations

from pairgate.domain.evidence import Estimate, Mixture, Scope
from pairgate.review import plots
from pairgate.review.acceptance import (
    MIN_TESTED,
    Histogram,
    RequestAcceptance,
    histograms,
    request_acceptance,
    worst_requests,
)
from pairgate.review.answers import MAX_DOMAINS, acceptance_threshold
from pairgate.review.story import Block, Figure, Paragraph, ReviewInput, Section, Table
from pairgate.review.wording import Cells, clipped, interval, natural, percent, share

N_WORST = 20
_BAR = 36


def requests_section(inputs: ReviewInput, draw: bool) -> Section:
    """Histogram of per-request acceptance per domain, with the band of identical requests."""
    blocks: list[Block] = []
    mixture = inputs.evaluation.measurements.mixture
    if mixture is not None:
        blocks.append(Paragraph(text=_mixture_sentence(mixture)))
    below = inputs.evaluation.measurements.find("share_below_floor")
    text = f"Requests whose own acceptance lies under the floor: {interval(below, percent)}."
    blocks.append(Paragraph(text=text))
    if inputs.acceptance is None:
        blocks.append(Paragraph(text="The traces of the acceptance pass are not at hand."))
    else:
        blocks += _histogram_figures(inputs, request_acceptance(inputs.acceptance), draw)
    return Section(key="requests", title="Single requests, by domain", blocks=tuple(blocks))


def breakdown_section(inputs: ReviewInput, draw: bool) -> Section:
    """Acceptance by position (in the round, in the output), prompt length and temperature."""
    kinds = (
        ("position", "token_acceptance.position", "position in the round"),
        ("token", "token_acceptance.pooled", "output position (tokens)"),
        ("prompt_length", "token_acceptance.request_mean", "prompt length (tokens)"),
        ("temperature", "token_acceptance.request_mean", "temperature"),
    )
    blocks: list[Block] = []
    for kind, metric, label in kinds:
        blocks += _breakdown(inputs, kind, metric, label, draw)
    found = inputs.evaluation.measurements
    reduced, raw = found.find("token_acceptance.overlap"), found.find("token_acceptance.pooled")
    if isinstance(reduced, Estimate):
        text = (
            f"Pooled token acceptance is {interval(raw, share)} as counted, and "
            f"{interval(reduced, share)} from Σ min(p, q) of the tested positions, which has the "
            "same mean without the noise of the accept test."
        )
        blocks.append(Paragraph(text=text))
    return Section(
        key="breakdowns", title="By position, prompt length and temperature", blocks=tuple(blocks)
    )


def worst_section(inputs: ReviewInput, draw: bool) -> Section:
    """The requests with the lowest acceptance; texts only where the policy shows them."""
    title = "The worst requests"
    if inputs.acceptance is None:
        text = "The traces of the acceptance pass are not at hand."
        return Section(key="worst", title=title, blocks=(Paragraph(text=text),))
    worst = worst_requests(request_acceptance(inputs.acceptance), N_WORST)
    texts = inputs.texts if inputs.policy.show_texts else None
    rows = tuple(
        (
            clipped(str(worst.request_id[i]), 40),
            clipped(str(worst.domain[i]), 24),
            f"{worst.temperature[i]:g}",
            f"{worst.accepted[i]} of {worst.tested[i]}",
            share(float(worst.share[i])),
        )
        for i in range(len(worst))
    )
    note = f"requests with fewer than {MIN_TESTED} tested tokens are left out"
    headers = ("request", "domain", "temperature", "accepted", "share")
    blocks: list[Block] = [Table(headers=headers, rows=rows, notes=(note,))]
    if texts is None:
        text = "Texts stay out of this report (show_texts is off in the policy, or they are gone)."
        blocks.append(Paragraph(text=text))
    else:
        shown = tuple(
            (clipped(str(i), 24), clipped(texts.get(str(i), "not kept"), 400))
            for i in worst.request_id
        )
        blocks.append(Table(headers=("request", "prompt"), rows=shown, prose=True))
    return Section(key="worst", title=title, blocks=tuple(blocks))


def text_histogram(data: Histogram) -> tuple[str, ...]:
    """A line per bin: `#` for requests (scaled), and the band; `<` or `>` marks counts outside."""
    scale = _BAR / max(1, int(data.counts.max()))
    lines = [f"{'share':<6}{'requests':<{_BAR + 7}}   if all were alike"]
    for edge, count, low, high in zip(data.edges, data.counts, data.low, data.high, strict=False):
        bar = "#" * (max(1, round(count * scale)) if count else 0)
        mark = ">" if count > high else "<" if count < low else " "
        lines.append(f"{edge:<4.2f} |{bar:<{_BAR}} {count:>6} {mark} {low:.0f} to {high:.0f}")
    return tuple(lines)


def _histogram_figures(inputs: ReviewInput, requests: RequestAcceptance, draw: bool) -> list[Block]:
    seed = inputs.evaluation.provenance.seed
    found = histograms(requests, seed=seed, n_bins=20 if draw else 10)
    if not found:
        text = f"No request has {MIN_TESTED} tested tokens, so there is no histogram."
        return [Paragraph(text=text)]
    text = (
        "Each histogram counts requests by their own token acceptance. The band holds 95 % of the "
        "counts that chance alone would give if all requests of the domain were alike; requests "
        "outside it differ in kind, which a mean hides."
    )
    blocks: list[Block] = [Paragraph(text=text)]
    for i, data in enumerate(found[:MAX_DOMAINS]):
        threshold = acceptance_threshold(inputs, data.domain)
        svg = plots.histogram_svg(f"requests-{i}", data, threshold) if draw else ""
        blocks.append(
            Figure(
                title=f"{clipped(data.domain, 60)}: {data.n:,} requests",
                alt=_histogram_sentence(data),
                lines=text_histogram(data),
                svg=svg,
            )
        )
    if len(found) > MAX_DOMAINS:
        left = len(found) - MAX_DOMAINS
        blocks.append(Paragraph(text=f"{left} domains with higher acceptance are not drawn."))
    return blocks


def _histogram_sentence(data: Histogram) -> str:
    text = (
        f"Median {data.median:.3f}, pooled {data.pooled:.3f}; {data.n_outside} of "
        f"{len(data.counts)} bins lie outside the band of identical requests."
    )
    if data.n_left_out:
        text += f" {data.n_left_out} with fewer than {MIN_TESTED} tested tokens are left out."
    return text


def _mixture_sentence(mixture: Mixture) -> str:
    strength = "a clear sign of two kinds of requests" if mixture.strong else "not a clear sign"
    return (
        f"Two-group fit over {mixture.n:,} requests: {percent(mixture.weight_low)} near "
        f"{mixture.mean_low:.3f}, the rest near {mixture.mean_high:.3f} "
        f"(ΔBIC {mixture.delta_bic:.1f}, valley {mixture.valley_ratio:.2f}): {strength}."
    )


def _breakdown(inputs: ReviewInput, kind: str, metric: str, label: str, draw: bool) -> list[Block]:
    found = inputs.evaluation.measurements
    scopes = sorted(found.scopes(metric, kind), key=natural)
    if not scopes:
        reason = found.find(metric, Scope(kind=kind))
        return [Paragraph(text=f"By {label}: {interval(reason, share)}.")]
    cells = Cells()
    values = [found.find(metric, s) for s in scopes]
    rows = tuple(
        (clipped(s.key, 30), f"{v.n:,}", cells(v, share))
        for s, v in zip(scopes, values, strict=True)
    )
    unit = next((v.unit for v in values if isinstance(v, Estimate)), "n")
    table = Table(headers=(label, unit, "token acceptance"), rows=rows, notes=cells.notes)
    if not draw:
        return [table]
    shown = tuple(v if isinstance(v, Estimate) else None for v in values)
    svg = plots.series_svg(
        f"by-{kind}",
        [s.key for s in scopes],
        [plots.Series(name="with draft", values=shown)],
        x_label=label,
        y_label="token acceptance",
    )
    alt = "Points with intervals; the numbers are in the table below."
    return [Figure(title=f"Token acceptance by {label}", alt=alt, svg=svg), table]
