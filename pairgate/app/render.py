"""`render`: a version and a profile as the serving command that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.fetch import read_pair
from pairgate.app.lines import find_profile, profile_labels
from pairgate.app.switch import DOCUMENT
from pairgate.compat.decoding import require_agreement
from pairgate.compat.engines import require_engine
from pairgate.errors import InvalidInput, NotFound, Refused
from pairgate.render import Places, Serve, serve_command

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import ModelRef, Pair, PairVersion, VersionRef
    from pairgate.domain.records import ProfileRow, Reference

_HUB = "hf://"


def render(
    ws: Workspace,
    ref: VersionRef,
    *,
    profile: str | None = None,
    engine: str | None = None,
    models_dir: Path | None = None,
) -> Serve:
    """The command that serves a version as its profile says.

    Without `profile` it is the line's own, or with `engine` the newest of the line for that engine.
    `models_dir` is where `pairgate pull` put the files, on the serving machine; without it all
    weights must be referenced where the engine itself can read them.
    Raises `NotFound`, `InvalidInput`, and `Refused` where profile and pair contradict each other.
    """
    version = ws.registry.version(ref)
    pair = ws.registry.pair(version.pair_digest)
    row = _profile_row(ws, version, profile, engine)
    found = ws.registry.profile(row.digest)
    if engine not in (None, found.engine):
        raise InvalidInput(
            f"profile {row} names the engine {found.engine}, --engine says {engine}",
            hint="say one of the two",
        )
    require_engine(found.engine, pair.decoding.method, line=version.line, label=str(version))
    require_agreement(pair.decoding, found, label=str(version))
    at = _referenced(ws, version, pair) if models_dir is None else _pulled(models_dir, pair)
    return serve_command(pair, version.line, str(version), found, at)


def _profile_row(
    ws: Workspace, version: PairVersion, profile: str | None, engine: str | None
) -> ProfileRow:
    if profile is not None:
        return find_profile(ws, version.line, profile)
    head = ws.registry.head(version.line)
    rows = {r.digest: r for r in ws.registry.profiles(version.line)}
    used = [rows[d] for d in (head.profile_digest, *head.profiles) if d in rows]
    if engine is None and used:
        return used[0]
    wanted = [r for r in (*used, *reversed(rows.values())) if engine == _engine(ws, r)]
    if not wanted:
        named = ", ".join(profile_labels(ws, version.line, list(rows))) or "none"
        raise NotFound(
            f"line {version.line} has no profile for the engine {engine}; its profiles: {named}",
            hint=f"make one: pairgate profile set {version.line} NAME --from-command '…'",
        )
    return wanted[0]


def _engine(ws: Workspace, row: ProfileRow) -> str:
    return ws.registry.profile(row.digest).engine


def _pulled(folder: Path, pair: Pair) -> Places:
    """The folder of `pull`. Where it is on this machine it must hold this pair, and the version
    behind its link is named: the next `pull` must not change what this command serves."""
    document = folder / DOCUMENT
    if document.is_file():
        held = read_pair(document.read_bytes())
        if held.digest != pair.digest:
            raise Refused(
                f"{folder} holds another pair: {held.digest}",
                hint=f"pull the version there first: pairgate pull … --to {folder}",
            )
        folder = folder.resolve()
    elif not folder.is_absolute():
        folder = folder.absolute()
    return Places(
        target=str(folder / "target"), draft=str(folder / "draft") if pair.draft else None
    )


def _referenced(ws: Workspace, version: PairVersion, pair: Pair) -> Places:
    digests = [f.sha256 for model in pair.models for f in model.files]
    references = ws.registry.references(digests)
    target, revision = _origin(version, pair.target, references)
    if pair.draft is None:
        return Places(target=target, revision=revision)
    draft, draft_revision = _origin(version, pair.draft, references)
    return Places(target=target, revision=revision, draft=draft, draft_revision=draft_revision)


def _origin(
    version: PairVersion, model: ModelRef, references: dict[str, Reference]
) -> tuple[str, str | None]:
    """Where the engine itself can read the model: a hub's name with its commit, or a prefix."""
    weights = [f for f in model.files if f.path.endswith(".safetensors")]
    if not weights or any(f.sha256 not in references for f in weights):
        raise InvalidInput(
            f"the {model.role} of {version} is in pairgate's store, where no engine reads it",
            hint=f"bring it to the serving machine with `pairgate pull {version} --to DIR`, and "
            "name that folder: --models-dir DIR",
        )
    roots = {references[f.sha256].uri.removesuffix(f"/{f.path}") for f in weights}
    if len(roots) > 1:
        raise InvalidInput(
            f"the weights of the {model.role} lie in {len(roots)} places",
            hint=f"bring them together with `pairgate pull {version} --to DIR`, and name that "
            "folder: --models-dir DIR",
        )
    root = roots.pop()
    if root.startswith(_HUB):
        name, _, commit = root.removeprefix(_HUB).partition("@")
        return name, commit or None
    return (root.removeprefix("file://"), None) if root.startswith("file://") else (root, None)
