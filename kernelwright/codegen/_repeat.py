"""The text of a loop of a graph (see ``_roll.py``): a Python function that launches the kernels of each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernelwright.codegen._forward import ForwardWriter
from kernelwright.codegen._graph import CodegenError, Repeat
from kernelwright.codegen._ir import Value
from kernelwright.codegen._plan import OWN_KINDS


def loop_report(name: str, entries: Iterable[dict[str, Any]], steps: int) -> dict[str, Any]:
    """The report's entry on a loop."""
    found = list(entries)
    own = [entry for entry in found if entry["kind"] in OWN_KINDS]
    return {
        "kind": "repeat" if own else "torch",
        "name": name,
        "ops": list(dict.fromkeys(op for entry in found for op in entry["ops"])),
        "why": "" if own else "a loop of library calls",
        "launches": steps * sum(entry.get("launches", 1) for entry in found),
        "kernels": steps * sum(entry.get("launches", 1) for entry in own),
    }


def loop_function(
    name: str, inner: ForwardWriter, loop: Repeat, places: dict[int, str], states: list[int]
) -> list[str]:
    """The lines of a loop's function.

    Args:
        inner: has the statements of one step.
        places: the parameters that collect results, by the number of the result.
        states: the numbers of the results that are states after the last step.

    Raises:
        CodegenError: if a size of the step follows from no shape, or a state is not read by a step.
    """
    leaves = {v.attrs["target"]: v for v in inner.program.values if v.op == "leaf"}
    taken = {n: (start, stride) for n, start, stride in loop.taken}
    parameters, body = ["count"], []
    for number, item in enumerate(loop.step.inputs):
        leaf = leaves.get(item.target)
        if leaf is None:
            parameters.append(f"unused_{number}")
        elif number in taken:
            parameters.append(f"{leaf.name}_all")
            body.append(f"{leaf.name} = {leaf.name}_all[{_position(inner, *taken[number])}]")
        else:
            parameters.append(leaf.name)
    body += inner.lines
    outputs = inner.program.outputs
    for number, place in places.items():
        if not inner.is_placed(outputs[number]):
            body.append(f"{place}[step].copy_({inner.returned(outputs[number])})")
    moved = [(leaves[loop.step.inputs[n].target].name, inner.returned(outputs[m])) for n, m in loop.carried
             if loop.step.inputs[n].target in leaves]  # fmt: skip
    if moved:
        body.append(f"{', '.join(to for to, _ in moved)} = {', '.join(text for _, text in moved)}")
    if inner.sizes.used_variant:
        raise CodegenError("the sizes of a loop's step follow from no shape", hint="declare fewer variants")
    carried = [leaves.get(loop.step.inputs[n].target) for n, _ in loop.carried]
    last = [_last(carried[number - loop.stacked], name) for number in states]
    return [
        f"def {name}({', '.join([*parameters, *places.values()])}):",
        '    """The steps of a loop, one after another."""',
        "    for step in range(count):",
        *(f"        {line}" for line in body),
        *([f"    return {', '.join(last)}{',' if len(last) == 1 else ''}"] if last else []),
    ]


def _position(inner: ForwardWriter, start: Any, stride: Any) -> str:
    text = "step" if stride.equals(1) else f"step * {inner.sizes.expr(stride)}"
    if start.equals(0):
        return text
    return f"{inner.sizes.expr(start)} {'-' if stride.equals(-1) else '+'} {'step' if stride.equals(-1) else text}"


def _last(leaf: Value | None, name: str) -> str:
    if leaf is None:
        raise CodegenError(f"{name} returns a state that no step reads")
    return leaf.name
