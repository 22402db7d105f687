"""Knobs: tunable constants of a candidate file, declared in ``KNOBS`` and read as module globals of the same name."""

from __future__ import annotations

import ast
from collections.abc import Mapping

__all__ = ["apply_knobs"]


def apply_knobs(source: str, knobs: Mapping[str, int | float | str | bool]) -> str:
    """The candidate's text with its knobs set; nothing is executed and every other byte stays.

    Each module-level assignment to a knob's name gets the new value. What the file declares in ``KNOBS`` but never
    assigns is assigned on the line after ``KNOBS``: its setting, or the first of the declared values.

    Raises:
        ValueError: a knob that the file neither declares nor assigns; the message names those that it has.
        SyntaxError: the source is not Python.
    """
    body = ast.parse(source).body
    declared = next((node for node in body if "KNOBS" in _targets(node)), None)
    choices = _choices(declared)
    assigned = {name for node in body for name in _targets(node)}
    unknown = sorted(set(knobs) - assigned - set(choices))
    if unknown:
        known = ", ".join(sorted(choices)) or "none"
        raise ValueError(f"the candidate has no knob {', '.join(unknown)}; it has {known}")
    missing = {name: knobs.get(name, first) for name, first in choices.items() if name not in assigned}
    lines = source.encode().splitlines(keepends=True)
    for node in reversed(body):
        names = _targets(node) & set(knobs)
        value = getattr(node, "value", None)
        if names and isinstance(value, ast.expr):
            _replace(lines, value, repr(knobs[names.pop()]).encode())
        if node is declared and missing:
            last = (declared.end_lineno or declared.lineno) - 1
            added = "".join(f"{name} = {value!r}\n" for name, value in missing.items())
            lines[last] = lines[last].rstrip(b"\r\n") + b"\n" + added.encode()
    return b"".join(lines).decode()


def _targets(node: ast.stmt) -> set[str]:
    """Names that a plain module-level assignment sets (``A = 1``, ``A: int = 1``, ``A = B = 1``)."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _choices(declared: ast.stmt | None) -> dict[str, int | float | str | bool]:
    """First value of every knob that a literal ``KNOBS`` declares."""
    value = getattr(declared, "value", None)
    if not isinstance(value, ast.Dict):
        return {}
    try:
        literal = ast.literal_eval(value)
    except ValueError:
        return {}
    return {str(name): values[0] for name, values in literal.items() if isinstance(values, list | tuple) and values}


def _replace(lines: list[bytes], node: ast.expr, text: bytes) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    lines[first : last + 1] = [head + text + tail]
