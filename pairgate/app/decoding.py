"""The decoding settings of a new version: what was said, by whom, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pairgate.compat.decoding import head_method, read_speculative_config
from pairgate.compat.documents import parse_object
from pairgate.compat.heads import named_verifier, suggested_tokens
from pairgate.domain.pair import DecodingConfig, Method
from pairgate.errors import InvalidInput, PairgateError

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.compat.check import Model
    from pairgate.compat.mtp import Located
    from pairgate.domain.pair import Pair
    from pairgate.domain.profile import ServingProfile
    from pairgate.sources import Source

T = TypeVar("T")
DEFAULT_K = 4
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """What a person says about decoding; None is "as the models and the line's profile say, else
    the default"."""

    method: Method | None = None
    k: int | None = None
    draft_sampling: str | None = None
    compute_dtype: str = AUTO
    speculative_config: str | None = None
    kv_dtype_target: str | None = None
    kv_dtype_draft: str | None = None


def resolve_decoding(
    options: DecodingOptions, draft: Model | None, profile: ServingProfile | None = None
) -> DecodingConfig:
    """Options, a serving engine's JSON, the draft's own config, the line's serving command and
    the defaults, in this order of precedence.

    Raises `InvalidInput` where two of them contradict each other.
    """
    text = options.speculative_config
    said = read_speculative_config(text if text is not None else "{}")
    method = _method(options, said.method, draft)
    k = _agreed("draft length", options.k, said.num_speculative_tokens)
    if k is None and method is not Method.NONE:
        k = (suggested_tokens(draft.config) if draft else None) or DEFAULT_K
    if method.has_draft_files and draft is None:
        raise InvalidInput(
            f"method {method} needs a draft", hint=f"give it with --draft {said.draft or 'SRC'}"
        )
    if draft is not None and not method.has_draft_files:
        raise InvalidInput(
            f"method {method} stores no draft", hint="leave --draft out, or change --method"
        )
    sampling = _agreed("draft sampling", options.draft_sampling, said.draft_sampling)
    served = profile.kv_cache_dtype if profile else AUTO
    drafts = method not in (Method.NONE, Method.NGRAM)
    kv_dtype_draft = _agreed("KV dtype of the draft", options.kv_dtype_draft, said.kv_dtype_draft)
    return DecodingConfig(
        method=method,
        num_speculative_tokens=k or 0,
        draft_sampling=sampling or "sampled",
        compute_dtype=options.compute_dtype,
        kv_dtype_target=options.kv_dtype_target or served,
        kv_dtype_draft=kv_dtype_draft or (served if drafts else AUTO),
        speculative_config=text,
    )


def check_decoding(decoding: DecodingConfig, draft: Model | None) -> None:
    """That settings which another registry resolved are what their own parts give. Raises
    `InvalidInput` where the serving engine's JSON or the draft says otherwise."""
    stated = DecodingOptions(
        method=decoding.method,
        k=decoding.num_speculative_tokens,
        draft_sampling=decoding.draft_sampling,
        compute_dtype=decoding.compute_dtype,
        speculative_config=decoding.speculative_config,
        kv_dtype_target=decoding.kv_dtype_target,
        kv_dtype_draft=decoding.kv_dtype_draft,
    )
    try:
        resolved = resolve_decoding(stated, draft)
    except InvalidInput as error:
        raise InvalidInput(
            f"the pair's own decoding settings contradict each other: {error.message}",
            hint="register the models themselves with --target and --draft",
        ) from None
    if resolved != decoding:
        raise InvalidInput(f"the pair's decoding settings contradict each other: {decoding}")


def own_profile(ws: Workspace, line: str) -> ServingProfile | None:
    """How the line is served; None while nothing is set."""
    digest = ws.registry.head(line).profile_digest
    return None if digest is None else ws.registry.profile(digest)


def named_target(draft: Source) -> str:
    """The source of the target that a speculators checkpoint names.

    Raises `InvalidInput` for any other draft: then `--target` is needed.
    """
    documents = {
        file.path: file.location.read_bytes()
        for file in draft.files
        if file.path == "config.json" and isinstance(file.location, Path)
    }
    name = named_verifier(parse_object(documents, "config.json", "draft"))
    if name is None:
        raise InvalidInput(
            f"the draft {draft.spec} does not name its target",
            hint="give it with --target SRC (a speculators checkpoint names its own)",
        )
    return name if Path(name).expanduser().is_dir() else f"hf://{name}"


def stale_head(ws: Workspace, line: str, pair: Pair) -> tuple[str, ...]:
    """A warning when the MTP layers are byte-equal to those of the newest version of the line
    with another target: the target was trained further, its head was not."""
    from pairgate.compat.mtp import same_bytes

    if pair.decoding.method is not Method.MTP:
        return ()
    versions = reversed(ws.registry.versions(line))
    last = next((v for v in versions if v.target_digest != pair.target_digest), None)
    if last is None:
        return ()
    before, after = _stored_mtp(ws, ws.registry.pair(last.pair_digest)), _stored_mtp(ws, pair)
    if before is None or after is None:
        return (
            f"whether the MTP head is the one of {last} was not checked: its files are not on this "
            "machine",
        )
    if not same_bytes(before, after):
        return ()
    return (
        f"stale head: the MTP layers are byte for byte those of {last}, while the target changed: "
        "train them on the new target",
    )


def _stored_mtp(ws: Workspace, pair: Pair) -> Mapping[str, Located] | None:
    """The MTP tensors in the store; None where a file is not kept on this machine."""
    from pairgate.compat.check import read_headers
    from pairgate.compat.mtp import mtp_tensors

    try:
        paths = {f.path: ws.blobs.path(f.sha256) for f in pair.target.files}
        config = json.loads(paths["config.json"].read_bytes())
        return mtp_tensors(config, read_headers(paths), paths)
    except (PairgateError, FileNotFoundError):
        return None


def _method(options: DecodingOptions, said: Method | None, draft: Model | None) -> Method:
    method = _agreed("method", options.method, said)
    own = head_method(draft.config) if draft is not None else None
    if method is None:
        return Method.NONE if draft is None else own or Method.DRAFT_MODEL
    if own is not None and method.has_draft_files and method is not own:
        raise InvalidInput(
            f"the draft is a head of the method {own} by its own config, not {method}",
            hint=f"leave the method out, or name {own}",
        )
    return method


def _agreed(what: str, said: T | None, engine: T | None) -> T | None:
    if said is not None and engine is not None and said != engine:
        raise InvalidInput(
            f"the {what} is {said} by option and {engine} in --speculative-config",
            hint="say it once",
        )
    return engine if said is None else said
