"""What a Triton kernel can be found guilty of, or excused from, in the interpreter."""

from __future__ import annotations


class OutOfBounds(Exception):
    """A kernel read or wrote outside the tensors that it was given."""


class NotCheckable(Exception):
    """The kernel uses what the interpreter cannot compute; it may well be right, so it is unchecked and not wrong."""
