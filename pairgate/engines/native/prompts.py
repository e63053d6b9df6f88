"""Prompts are encoded alike for every engine (`pairgate.engines.prompts`)."""

from __future__ import annotations

from pairgate.engines.prompts import Prompts

__all__ = ["Prompts"]
