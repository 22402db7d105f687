"""Knobs: tunable constants of a candidate file, declared in ``KNOBS`` and read as module globals of the same name."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache

__all__ = ["apply_knobs", "declared_knobs", "knob_settings"]

Value = int | float | str | bool


def apply_knobs(source: str, knobs: Mapping[str, Value]) -> str:
    """The candidate's text with its knobs set. Nothing is executed, and every other byte stays.

    Each module-level assignment to a knob's name gets the new value. A knob that ``KNOBS`` declares and the file never
    assigns is assigned on the line after ``KNOBS``: to its setting, or to the first declared value.

    Raises:
        ValueError: the file neither declares nor assigns a knob; the message lists the knobs that it has.
        SyntaxError: the source is not Python.
    """
    body = _body(source)
    declared = next((node for node in body if "KNOBS" in _targets(node)), None)
    choices = {name: values[0] for name, values in _choices(declared).items()}
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


def declared_knobs(source: str) -> dict[str, tuple[Value, ...]]:
    """The values of every knob that a file declares in a literal ``KNOBS``, in order and without duplicates.

    Empty if the file declares no knobs or is not Python.
    """
    try:
        body = _body(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return _choices(next((node for node in body if "KNOBS" in _targets(node)), None))


def knob_settings(source: str, knobs: Mapping[str, Value]) -> dict[str, Value]:
    """The value of each declared knob: from ``knobs``, else from the file's assignment, else the first declared one.

    A knob that the file computes is left out, since its value is known only once the file has run.
    """
    declared = declared_knobs(source)
    found = {name: values[0] for name, values in declared.items()}
    for node in _body(source) if declared else ():
        for name in _targets(node) & set(declared):
            try:
                found[name] = ast.literal_eval(getattr(node, "value", None) or ast.Name(name))
            except ValueError:
                found.pop(name, None)
    return {**found, **{name: value for name, value in knobs.items() if name in declared}}


@lru_cache(maxsize=64)  # a search reads the same few texts in every round
def _body(source: str) -> Sequence[ast.stmt]:
    """The statements of a file. They are cached: callers must not change them."""
    return ast.parse(source).body


def _targets(node: ast.stmt) -> set[str]:
    """Names that a plain module-level assignment sets (``A = 1``, ``A: int = 1``, ``A = B = 1``)."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _choices(declared: ast.stmt | None) -> dict[str, tuple[Value, ...]]:
    """The values of every knob that a literal ``KNOBS`` declares. Values of other types than ``Value`` are left out."""
    value = getattr(declared, "value", None)
    if not isinstance(value, ast.Dict):
        return {}
    try:
        literal = ast.literal_eval(value)
    except ValueError:
        return {}
    listed = {str(name): values for name, values in literal.items() if isinstance(values, list | tuple)}
    plain = {name: [v for v in values if isinstance(v, bool | int | float | str)] for name, values in listed.items()}
    once = {name: tuple({repr(v): v for v in values}.values()) for name, values in plain.items()}
    return {name: values for name, values in once.items() if values}


def _replace(lines: list[bytes], node: ast.expr, text: bytes) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    lines[first : last + 1] = [head + text + tail]
