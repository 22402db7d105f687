"""Text of others on its way into a tokenizer."""

from __future__ import annotations

from typing import Any


def without_marks(tokenizer: Any, text: str) -> str:
    """A text in which what the tokenizer would take for its own marks is written apart.

    So no kernel that a message quotes can begin a turn of anybody.
    """
    for mark in _marks(tokenizer):
        text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


def _marks(tokenizer: Any) -> list[str]:
    """What a tokenizer reads as one token of its own, and not as text; the longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    known = {str(token) for token in added} | set(getattr(tokenizer, "all_special_tokens", ()))
    return sorted((mark for mark in known if len(mark) > 2 and not mark.isalnum()), key=len, reverse=True)
