"""A candidate's text as it runs: its knobs set."""

from __future__ import annotations

import ast
from typing import Any

from kernelwright import inline
from kernelwright.records import Candidate


def effective_source(candidate: Candidate) -> str:
    """The candidate's source with its knob settings; a declared knob that nothing assigns takes its first value.

    Raises:
        ValueError: a setting for a knob that the file does not have, or text that is not Python.
    """
    try:
        body = ast.parse(candidate.source).body
    except SyntaxError as error:
        raise ValueError(f"the candidate is not Python: {error}") from None
    defaults: dict[str, Any] = {}
    assigned: set[str] = set()
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names = {t.id for t in targets if isinstance(t, ast.Name)}
        assigned |= names
        if "KNOBS" in names and isinstance(node, ast.Assign):
            defaults = _first_values(node.value)
    missing = {name: value for name, value in defaults.items() if name not in assigned}
    return inline.apply_knobs(candidate.source, missing | candidate.knobs)


def _first_values(node: ast.expr) -> dict[str, Any]:
    try:
        declared = ast.literal_eval(node)
    except ValueError:
        return {}
    if not isinstance(declared, dict):
        return {}
    return {str(k): v[0] for k, v in declared.items() if isinstance(v, list | tuple) and v}
