"""What a person types for an artifact that lies elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from pairgate.domain.canonical import is_digest
from pairgate.errors import InvalidInput

OCI = "oci://"
LAYOUT = "oci-layout:"

# Names as the OCI distribution-spec 1.1 allows them ("Pulling manifests").
_REFERENCE = re.compile(
    r"oci://(?P<host>(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?)"
    r"/(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OciReference:
    """`oci://host[:port]/repository[:tag][@digest]`; a digest wins over a tag."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether the registry runs on this machine."""
        name = re.sub(r":[0-9]+\Z", "", self.host).strip("[]")
        if name == "localhost":
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False

    def at(self, digest: str) -> OciReference:
        """The same repository, by digest."""
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{OCI}{self.host}/{self.repository}{tag}{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReference:
    """`oci-layout:DIR[@digest]`; without a digest the folder holds one pair."""

    folder: Path
    digest: str | None = None

    def __str__(self) -> str:
        return f"{LAYOUT}{self.folder}" + (f"@{self.digest}" if self.digest else "")


Reference = OciReference | LayoutReference


def is_reference(text: str) -> bool:
    """Whether the text names an artifact elsewhere, and not a version of a line."""
    return text.startswith((OCI, LAYOUT))


def parse_reference(text: str) -> Reference:
    """Raises `InvalidInput` for anything that is not exactly one of the two forms."""
    return _parse_layout(text) if text.startswith(LAYOUT) else parse_oci(text)


def parse_oci(text: str) -> OciReference:
    """Raises `InvalidInput`."""
    match = _REFERENCE.match(text)
    if match is None:
        raise InvalidInput(
            f"{text!r} does not name an artifact in a registry",
            hint="write oci://HOST[:PORT]/REPOSITORY[:TAG], or @sha256:DIGEST in place of the tag",
        )
    return OciReference(**match.groupdict())


def _parse_layout(text: str) -> LayoutReference:
    name, at, digest = text.removeprefix(LAYOUT).rpartition("@sha256:")
    if not at:
        name, digest = digest, ""
    if not name or (at and not is_digest(f"sha256:{digest}")):
        raise InvalidInput(
            f"{text!r} does not name an OCI layout",
            hint="write oci-layout:DIR, or oci-layout:DIR@sha256:DIGEST",
        )
    folder = Path(name).expanduser()
    return LayoutReference(folder=folder, digest=f"sha256:{digest}" if at else None)
