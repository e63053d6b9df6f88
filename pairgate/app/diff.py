"""What changed between two versions: files, config, tokenizer, decoding, evidence, profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from pairgate.app.compare import Comparison, compare
from pairgate.compat.documents import parse_object
from pairgate.compat.match import compare_tokenizers
from pairgate.compat.tokenizer import Tokenizer, read_tokenizer
from pairgate.errors import EvidenceMissing, InvalidInput, PairgateError

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import FileEntry, ModelRef, Pair, PairVersion, VersionRef
    from pairgate.domain.records import EvidenceRow

ABSENT = "absent"
_CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")
# Shown in words of their own, not as JSON.
_NOT_AS_KEYS = ("chat_template", "added_tokens_decoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """`kind`: added, removed or changed; sizes in bytes, None where it is not there."""

    role: str
    path: str
    kind: str
    before_size: int | None
    after_size: int | None
    before_digest: str | None
    after_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`part` is e.g. `target/config.json: rope_theta` or `decoding.num_speculative_tokens`."""

    part: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDiff:
    """`comparison` is None where `evidence_note` says why there is nothing to compare."""

    before: str
    after: str
    files: tuple[FileChange, ...]
    models: tuple[Difference, ...]
    configs: tuple[Difference, ...]
    tokenizers: tuple[Difference, ...]
    decoding: tuple[Difference, ...]
    evidence: tuple[Difference, ...]
    profiles: tuple[Difference, ...]
    comparison: Comparison | None
    evidence_note: str

    @property
    def same_pair(self) -> bool:
        return not (self.files or self.models or self.decoding)


def diff(ws: Workspace, before: VersionRef, after: VersionRef) -> VersionDiff:
    """Everything that is not equal, of two versions of one line or of two.

    Reads configs and tokenizers from the store, never weights. Raises `NotFound`.
    """
    versions = [ws.registry.version(r) for r in (before, after)]
    first, second = (ws.registry.pair(v.pair_digest) for v in versions)
    roles = list(dict.fromkeys(m.role for pair in (first, second) for m in pair.models))
    models = {role: (_model(first, role), _model(second, role)) for role in roles}
    try:
        comparison, note = compare(ws, before, after), ""
    except (EvidenceMissing, InvalidInput) as error:
        comparison, note = None, error.message
    rows = [_newest(ws, v) for v in versions]
    return VersionDiff(
        before=str(versions[0]),
        after=str(versions[1]),
        files=tuple(c for role, two in models.items() for c in _file_changes(role, *two)),
        models=tuple(d for role, two in models.items() for d in _model_changes(role, *two)),
        configs=tuple(d for role, two in models.items() for d in _config_changes(ws, role, *two)),
        tokenizers=tuple(
            d for role, two in models.items() for d in _tokenizer_changes(ws, role, *two)
        ),
        decoding=_differences("decoding.", asdict(first.decoding), asdict(second.decoding)),
        evidence=_differences("", *(_evidence(row) for row in rows)),
        profiles=_differences("profile.", *(_profile(ws, row) for row in rows)),
        comparison=comparison,
        evidence_note=note,
    )


def _model(pair: Pair, role: str) -> ModelRef | None:
    return next((m for m in pair.models if m.role == role), None)


def _files(model: ModelRef | None) -> dict[str, FileEntry]:
    return {f.path: f for f in model.files} if model else {}


def _file_changes(
    role: str, before: ModelRef | None, after: ModelRef | None
) -> Iterator[FileChange]:
    old, new = _files(before), _files(after)
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was is not None and now is not None and was.sha256 == now.sha256:
            continue
        yield FileChange(
            role=role,
            path=path,
            kind="added" if was is None else "removed" if now is None else "changed",
            before_size=was.size if was else None,
            after_size=now.size if now else None,
            before_digest=was.sha256 if was else None,
            after_digest=now.sha256 if now else None,
        )


def _model_changes(
    role: str, before: ModelRef | None, after: ModelRef | None
) -> tuple[Difference, ...]:
    """Architecture and what was allowed on purpose, where both have this model."""
    if before is None or after is None:
        return ()
    one, two = (
        {**asdict(m.architecture), "flags": ", ".join(m.flags) or "none"} for m in (before, after)
    )
    return _differences(f"{role}.", one, two)


def _config_changes(
    ws: Workspace, role: str, before: ModelRef | None, after: ModelRef | None
) -> tuple[Difference, ...]:
    found: list[Difference] = []
    for name in _CONFIGS:
        entries = [_files(m).get(name) for m in (before, after)]
        if None in entries or entries[0] == entries[1]:
            continue  # a file that came or went is in the list of files
        try:
            one, two = (_flat(_document(ws, entry, role)) for entry in entries if entry)
        except PairgateError as error:
            found.append(Difference(part=f"{role}/{name}", before="not read", after=error.message))
            continue
        found += _differences(f"{role}/{name}: ", one, two)
    return tuple(found)


def _document(ws: Workspace, entry: FileEntry, role: str) -> dict[str, Any]:
    value = parse_object({entry.path: ws.blobs.read(entry.sha256)}, entry.path, role)
    return {k: v for k, v in value.items() if k not in _NOT_AS_KEYS}


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            flat |= _flat(inner, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


def _tokenizer_changes(
    ws: Workspace, role: str, before: ModelRef | None, after: ModelRef | None
) -> Iterator[Difference]:
    if before is None or after is None:
        return
    old, new = _files(before), _files(after)
    if all(old.get(n) == new.get(n) for n in (old.keys() | new.keys()) if not _is_weights(n)):
        return
    try:
        one, two = _tokenizer(ws, before), _tokenizer(ws, after)
    except PairgateError as error:
        yield Difference(part=f"{role} tokenizer", before="not read", after=error.message)
        return
    if one is None or two is None:
        if one is not two:
            words = ["none" if t is None else f"{len(t.tokens)} tokens" for t in (one, two)]
            yield Difference(part=f"{role} tokenizer", before=words[0], after=words[1])
        return
    sizes = [m.architecture.vocab_size for m in (before, after)]
    match = compare_tokenizers(one, two, target_vocab_size=sizes[0], draft_vocab_size=sizes[1])
    if match.n_differing:
        part = f"{role} tokenizer: {match.n_differing} ids differ"
        counts = [f"{len(t.tokens)} tokens" for t in (one, two)]
        yield Difference(part=part, before=counts[0], after=counts[1])
    for d in match.differences:
        part = f"{role} tokenizer: id {d.token_id}"
        yield Difference(part=part, before=_shown(d.target), after=_shown(d.draft))
    yield from _differences(f"{role} tokenizer: ", _about(one), _about(two))
    yield from _template_changes(role, one.chat_template, two.chat_template)


def _about(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        **tokenizer.special,
        "added tokens": len(tokenizer.added_ids),
        "merges and normalisation": tokenizer.segmentation_digest[7:19],
    }


def _template_changes(role: str, before: str | None, after: str | None) -> Iterator[Difference]:
    """How many lines of the chat template differ, and the first of them."""
    if before == after:
        return
    old, new = ((t or "").splitlines() for t in (before, after))
    changed = [op for op in SequenceMatcher(a=old, b=new).get_opcodes() if op[0] != "equal"]
    if not changed:  # the line endings alone
        yield Difference(part=f"{role} chat template", before="changed", after="line endings")
        return
    _, a, a_end, b, b_end = changed[0]
    n_changed = sum(max(a1 - a0, b1 - b0) for _, a0, a1, b0, b1 in changed)
    yield Difference(
        part=f"{role} chat template: {n_changed} lines differ, first at {a + 1}",
        before=old[a] if a < a_end else ABSENT,
        after=new[b] if b < b_end else ABSENT,
    )


def _is_weights(path: str) -> bool:
    return path.endswith(".safetensors")


def _tokenizer(ws: Workspace, model: ModelRef) -> Tokenizer | None:
    documents = {
        f.path: ws.blobs.read(f.sha256)
        for f in model.files
        if f.path.endswith((".json", ".txt", ".model", ".jinja"))
    }
    return read_tokenizer(documents, role=model.role)


def _newest(ws: Workspace, version: PairVersion) -> EvidenceRow | None:
    rows = ws.registry.evaluations(version.line, version.number)
    return max(rows, key=lambda r: r.created_at, default=None)


def _evidence(row: EvidenceRow | None) -> dict[str, Any]:
    if row is None:
        return {"verdict": "not evaluated"}
    return {
        "verdict": row.outcome,
        "attempt": row.attempt,
        "recommendation": row.recommendation,
        "measured": row.measured_at[:19],
        "policy": row.policy_digest[7:19],
        "slice": row.slice_digest[7:19],
        "incumbent": row.incumbent_digest[7:19] if row.incumbent_digest else "none",
        "engine": f"{row.engine} {row.engine_version}",
        "hardware": row.hardware_class,
    }


def _profile(ws: Workspace, row: EvidenceRow | None) -> dict[str, Any]:
    """What the newest evaluation ran on."""
    if row is None:
        return {"name": ABSENT}
    labels = {r.digest: str(r) for r in ws.registry.profiles(row.line)}
    values = asdict(ws.registry.profile(row.profile_digest))
    return {**values, "name": labels.get(row.profile_digest, values["name"])}


def _differences(
    prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Difference, ...]:
    keys = dict.fromkeys([*before, *after])
    return tuple(
        Difference(part=f"{prefix}{k}", before=_text(before, k), after=_text(after, k))
        for k in keys
        if k not in before or k not in after or before[k] != after[k]
    )


def _text(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return ABSENT
    value = values[key]
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shown(token: bytes | None) -> str:
    return "no such id" if token is None else repr(token.decode("utf-8", "backslashreplace"))
