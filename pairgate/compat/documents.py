"""The small files of a model, as bytes that were read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pairgate.domain.documents import parse_document

Documents = Mapping[str, bytes]
"""Content of every file but the weights, by its path in the model's folder."""


def parse_object(documents: Documents, name: str, role: str) -> dict[str, Any]:
    """The JSON object in the file `name`, or an empty one without that file.

    Raises `InvalidInput` for what `parse_document` refuses.
    """
    data = documents.get(name)
    return {} if data is None else parse_document(data, f"{name} of the {role}", name=name)
