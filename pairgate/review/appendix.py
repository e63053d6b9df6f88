"""Fidelity, what was counted, and where the evidence came from."""

from __future__ import annotations

from pairgate.domain.evidence import (
    BoundaryResult,
    Counts,
    Fidelity,
    LawTests,
    Provenance,
    ZScore,
)
from pairgate.domain.trace import Finish
from pairgate.review.story import Block, Command, Paragraph, ReviewInput, Section, Table
from pairgate.review.wording import ARM_NAMES, clipped, interval, percent, short, unique

_LEVELS = {
    "F1": "black box, with draft against without",
    "F2": "scores of the emitted tokens under the target",
    "F3": "scores under target and draft, with the decoder's own log",
}


def fidelity_section(inputs: ReviewInput, draw: bool) -> Section:
    """Whether the output is the target's own, and the boundary requests."""
    found = inputs.evaluation.measurements
    blocks: list[Block] = []
    if found.fidelity is None:
        blocks.append(Paragraph(text="Fidelity was not measured."))
    else:
        blocks += _fidelity(found.fidelity)
    blocks += _boundary(found.boundary)
    return Section(key="fidelity", title="Fidelity to the target", blocks=tuple(blocks))


def counts_section(inputs: ReviewInput, draw: bool) -> Section:
    """The counters behind the ratios, and the requests that failed."""
    rows = tuple(
        (
            f"{ARM_NAMES[c.arm]}, {c.phase}, {c.concurrency}",
            _requests(c),
            f"{c.n_rounds:,}",
            f"{c.n_proposed:,}",
            f"{c.n_accepted:,}",
            f"{c.n_completion_tokens:,}",
        )
        for c in inputs.evaluation.measurements.counts
    )
    heads = ("arm, pass, conc.", "requests", "rounds", "proposed", "accepted", "tokens")
    blocks: list[Block] = [Table(headers=heads, rows=rows)] if rows else []
    found = inputs.evaluation.measurements
    odd = interval(found.find("inconsistent_requests"), percent)
    text = f"Counting definition: {found.definition}. Requests whose counters do not add up: {odd}."
    blocks.append(Paragraph(text=text))
    if inputs.acceptance is not None:
        lost = inputs.acceptance.finish == Finish.ERROR
        errors = unique((clipped(str(e), 300) for e in inputs.acceptance.error[lost]), 5)
        blocks += [Paragraph(text=f"Failed request: {e}", tone="warning") for e in errors]
    return Section(key="counts", title="What was counted", blocks=tuple(blocks))


def provenance_section(inputs: ReviewInput, draw: bool) -> Section:
    """Digests, engine, machine, seed, files, and the command that runs it again."""
    binding, origin = inputs.evaluation.binding, inputs.evaluation.provenance
    rows = (
        ("version", inputs.labels.candidate),
        ("pair", _named(binding.pair_digest, inputs.labels.pair)),
        ("target", short(binding.target_digest)),
        ("in production then", _named(binding.incumbent_digest, inputs.labels.incumbent)),
        ("policy", _named(binding.policy_digest, inputs.policy.name)),
        ("slice", short(binding.slice_digest)),
        ("profile", short(binding.profile_digest)),
        ("engine", f"{binding.engine} {binding.engine_version}"),
        ("hardware", f"{binding.hardware_class}, {origin.engine.device}, {origin.engine.dtype}"),
        ("packages", ", ".join(f"{n} {v}" for n, v in origin.engine.packages) or "not recorded"),
        ("pairgate", origin.pairgate_version),
        ("seed", str(origin.seed)),
        ("host", origin.host),
        ("started", origin.started_at),
        ("finished", origin.finished_at),
        ("evaluation", inputs.evaluation.digest),
    )
    blocks: list[Block] = [
        Table(headers=("what", "value"), rows=tuple(map(_clip_row, rows)), prose=True),
        Paragraph(text="The same evaluation again:"),
        Command(text=origin.command),
        *_trace_files(origin),
    ]
    return Section(key="provenance", title="Where the evidence comes from", blocks=tuple(blocks))


def _fidelity(found: Fidelity) -> list[Block]:
    level = f"Level {found.level}: {_LEVELS.get(found.level, 'see docs/fidelity.md')}."
    defect = f" Smallest defect it would have found: {found.smallest_defect}."
    greedy = (
        f"Greedy: {found.n_divergent} of {found.n_greedy_requests} requests "
        f"({found.n_greedy_tokens:,} tokens) differ from the target alone, {found.n_near_tie} of "
        f"them at a near tie; control of the target with itself: {found.n_control_divergent} of "
        f"{found.n_control_requests}."
    )
    sampled = (
        f"Sampled: {found.n_sampled_tokens:,} tokens, {found.n_support_violations} outside what "
        "the target allows."
    )
    texts = [level + (defect if found.smallest_defect else ""), greedy, sampled]
    if found.law is not None:
        texts.append(_law(found.law))
    blocks: list[Block] = [Paragraph(text=text) for text in texts]
    rows = tuple(
        (name, f"{score.z:+.2f}", f"{score.n:,}")
        for label, scores in (
            ("", (*found.scores, *_law_scores(found.law))),
            (" (control)", (*found.control_scores, *_law_scores(found.control_law))),
        )
        for name, score in ((f"{s.name}{label}", s) for s in scores)
    )
    if rows:
        blocks.append(Table(headers=("score", "z", "n"), rows=rows))
    return blocks


def _law(law: LawTests) -> str:
    means = (("surprisal", law.surprisal, " nat"), ("draft score", law.draft_score, ""))
    shown = "".join(
        f", mean {name} {mean.value:+.4f} [{mean.low:+.4f}, {mean.high:+.4f}]{unit}"
        for name, mean, unit in means
        if mean is not None
    )
    return (
        f"Teacher-forced: {law.n_tokens:,} sampled tokens{shown}; {law.n_violations} violations "
        f"({law.n_outside} outside the target's law, {law.n_after_end} after an end token, "
        f"{law.n_recovered_below} recovered tokens likelier under the draft). Would have found "
        f"{law.smallest_defect or 'nothing, as no sampled token was there'}."
    )


def _law_scores(law: LawTests | None) -> tuple[ZScore, ...]:
    return () if law is None else law.scores


def _boundary(results: tuple[BoundaryResult, ...]) -> list[Block]:
    """Those that failed, and folded away those that passed."""
    failed = [b for b in results if not b.ok]
    passed = [b for b in results if b.ok]
    blocks: list[Block] = []
    if failed:
        text = f"{len(failed)} of {len(results)} boundary requests failed:"
        blocks += [Paragraph(text=text, tone="warning"), _boundary_table(failed)]
    if passed:
        blocks.append(_boundary_table(passed, f"{len(passed)} boundary requests pass"))
    return blocks


def _boundary_table(results: list[BoundaryResult], folded: str = "") -> Table:
    rows = tuple(
        ("ok" if b.ok else "failed", f"{b.name}, {ARM_NAMES[b.arm]}", clipped(b.detail, 200))
        for b in results
    )
    return Table(
        headers=("result", "boundary request", "detail"), rows=rows, prose=True, folded=folded
    )


def _requests(counts: Counts) -> str:
    lost = counts.n_failed + counts.n_excluded
    return f"{counts.n_requests:,}" + (f" ({lost} lost)" if lost else "")


def _named(digest: str | None, name: str) -> str:
    return f"{short(digest)} ({name})" if name and digest else short(digest)


def _clip_row(row: tuple[str, str]) -> tuple[str, str]:
    return row[0], clipped(row[1], 400)


def _trace_files(origin: Provenance) -> list[Block]:
    files = origin.trace_files
    if not files:
        return []
    rows = tuple((clipped(name, 60), short(digest)) for name, digest in files[:30])
    notes = (f"and {len(files) - 30} more",) if len(files) > 30 else ()
    return [Table(headers=("trace file", "sha256"), rows=rows, notes=notes)]
