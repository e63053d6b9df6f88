"""From a request to token ids, with the target's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput, MissingExtra


class Prompts:
    """Encodes prompts and decodes output. A folder without a tokenizer serves token ids only."""

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise MissingExtra("transformers", "native") from None

        self._tokenizer: Any = None
        self._why = ""
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            self._why = (str(error).splitlines() or [""])[0]

    @property
    def n_ids(self) -> int | None:
        """One more than the largest id that the tokenizer knows; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        return max(self._tokenizer.get_vocab().values()) + 1

    def encode(self, request: Request) -> list[int]:
        """Token ids of the prompt; raises InvalidInput naming what is missing."""
        if request.token_ids is not None:
            return list(request.token_ids)
        if request.text is not None:
            return list(self._needed()(request.text).input_ids)
        assert request.messages is not None
        tokenizer = self._needed()
        if not tokenizer.chat_template:
            raise InvalidInput(
                "the request has chat messages, and the target's tokenizer has no chat template",
                hint="send completions, or add chat_template.jinja to the target's files",
            )
        try:
            text = tokenizer.apply_chat_template(
                json.loads(request.messages), add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template is code from the model: anything may come out
            raise InvalidInput(f"the chat template fails: {error}") from error
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def decode(self, ids: list[int]) -> str:
        text: str = self._needed().decode(ids, skip_special_tokens=False)
        return text

    def _needed(self) -> Any:
        if self._tokenizer is None:
            raise InvalidInput(
                f"the target has no tokenizer that loads ({self._why})",
                hint="add tokenizer.json to the target's files, or send token ids",
            )
        return self._tokenizer
