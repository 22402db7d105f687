"""The candidate file around TorchInductor's kernels: knobs, kernels, and a method for each set of shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernelwright.codegen._file import carried, class_head, gradient_class, model_class, module_imports, signature
from kernelwright.codegen._graph import Gradient, Graph
from kernelwright.codegen._triton_seed_kernels import Kernel, helpers
from kernelwright.records import KnobValue

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "BLOCK": (1024, 256, 512, 2048),
    "SIDE": (32, 16, 64),
    "TILE": (2048, 1024, 4096),
    "COLUMNS": (32, 8, 16, 64),
    "WARPS": (4, 2, 8),
    "REDUCE_WARPS": (8, 4, 16),
}
_LAID_OUT = '''def laid_out(x, strides):
    """``x`` with the strides that a kernel was written for."""
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)'''


class Method(NamedTuple):
    """What one wrapper becomes: the names of its arguments, and its statements."""

    parameters: tuple[str, ...]
    lines: tuple[str, ...]


def seed_file(
    graph: Graph, kernels: Sequence[Kernel], methods: Sequence[tuple[Method, ...]], keys: Mapping[str, int]
) -> str:
    """The text of the file.

    Args:
        methods: for each set of launches the method of the forward pass; with gradients also that of the backward pass.
        keys: the number of the methods, by the shapes of the inputs as text.
    """
    made = carried(graph)
    body = "\n".join(line for passes in methods for method in passes for line in method.lines)
    code = [text for kernel in kernels for text in (*kernel.operators, kernel.text)]
    code = [*helpers("\n".join(code)), *code]
    names = [name for name in KNOBS if re.search(rf"\b{name}\b", body)]
    parts = [*code, *([_LAID_OUT] if "laid_out(" in body else []), *([made.helpers] if made.helpers else [])]
    if graph.gradient is None:
        parts.append("\n".join([*class_head(made), *_forward(graph, [passes[0] for passes in methods], keys)]))
    else:
        functions, forward = _passes(graph, graph.gradient, methods, keys)
        parts += [*functions, model_class(made, graph, forward)]
    lines = [
        *module_imports(made, ""),
        "",
        "import triton",
        "import triton.language as tl",
        *(["from triton.language.extra import libdevice"] if any("libdevice." in text for text in code) else []),
        "",
        "KNOBS = {",
        *(f"    {name!r}: {list(KNOBS[name])}," for name in names),
        "}",
        *(f"{name} = {KNOBS[name][0]!r}" for name in names),
        "",
        "",
        "\n\n\n".join(parts),
    ]
    return "\n".join(lines) + "\n"


def _forward(graph: Graph, methods: Sequence[Method], keys: Mapping[str, int]) -> list[str]:
    """``forward``, which picks a method by the shapes of its inputs, and one method for each set of launches."""
    arguments = ", ".join(graph.forward_parameters)
    if len(methods) == 1:
        return [f"    def forward(self, {signature(graph)}):", *(f"        {line}" for line in _split(methods[0]))]
    tensors = [item.target for item in graph.inputs if item.kind == "input"]
    lines = [
        f"    def forward(self, {signature(graph)}):",
        "        variants = {",
        *(f"            {key}: self._shapes_{number}," for key, number in keys.items()),
        "        }",
        f"        return variants[{_shapes(tensors)}]({arguments})",
    ]
    for number, method in enumerate(methods):
        lines += ["", f"    def _shapes_{number}(self, {arguments}):"]
        lines += [f"        {line}" for line in _split(method)]
    return lines


def _passes(
    graph: Graph, gradient: Gradient, methods: Sequence[tuple[Method, ...]], keys: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """A function for each pass of each set of launches, the autograd function, and the statements of ``forward``."""
    texts = []
    for number, passes in enumerate(methods):
        for name, method in zip(("forward", "backward"), passes, strict=True):
            head = f"def {name}_{number}({', '.join(method.parameters)}):"
            texts.append("\n".join([head, *(f"    {line}" for line in _split(method))]))
    numbers = range(len(methods))
    tables = [f"{name.upper()}S = ({', '.join(f'{name}_{n}' for n in numbers)},)" for name in ("forward", "backward")]
    tables.append(f"VARIANTS = {{{', '.join(f'{key}: {number}' for key, number in keys.items())}}}")
    count = gradient.returned
    given = ", ".join(gradient.arguments)
    there = [
        f"ctx.number = VARIANTS[{_shapes(gradient.arguments)}]",
        f"found = FORWARDS[ctx.number]({given})",
        f"ctx.save_for_backward(*found[{count}:])",
        "return found[0]" if graph.structure == "tensor" else f"return found[:{count}]",
    ]
    places = {place: number for number, place in enumerate(gradient.places)}
    wanted = [f"found[{places[n]}]" if n in places else "None" for n in range(len(gradient.arguments))]
    back = [
        f"found = BACKWARDS[ctx.number](*ctx.saved_tensors, {', '.join(gradient.cotangents)})",
        f"return {', '.join(wanted)}{',' if len(wanted) == 1 else ''}",
    ]
    function, forward = gradient_class(graph, there, back)
    return [*texts, "\n".join(tables), function], forward


def _split(method: Method) -> list[str]:
    return "\n".join(method.lines).splitlines()


def _shapes(tensors: Sequence[str]) -> str:
    """The shapes of tensors, as a tuple of tuples."""
    return "(" + "".join(f"tuple({name}.shape), " for name in tensors) + ")"
