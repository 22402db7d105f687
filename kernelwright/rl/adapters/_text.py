"""Makes untrusted text safe for a tokenizer."""

from __future__ import annotations

from typing import Any


def without_marks(tokenizer: Any, text: str) -> str:
    """The text with the tokenizer's special tokens broken up by a blank.

    So no kernel that a message quotes can begin a turn.
    """
    for mark in _marks(tokenizer):
        text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


def _marks(tokenizer: Any) -> list[str]:
    """The special tokens of a tokenizer, the longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    known = {str(token) for token in added} | set(getattr(tokenizer, "all_special_tokens", ()))
    return sorted((mark for mark in known if len(mark) > 2 and not mark.isalnum()), key=len, reverse=True)
