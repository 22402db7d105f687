"""Writes the Python half of a candidate: ``forward``, with its allocations, library calls and kernel calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kernelwright.codegen._graph import Gradient, Graph, Scalar, Symbol
from kernelwright.codegen._ir import Program, Value, root
from kernelwright.codegen._kernel import Argument, Function
from kernelwright.codegen._names import ForwardSizes
from kernelwright.codegen._partition import Step
from kernelwright.codegen._size import Shape, Size


class ForwardWriter:
    """Collects the statements of ``forward``."""

    def __init__(self, program: Program, graph: Graph) -> None:
        self.program, self.graph = program, graph
        self.lines: list[str] = []
        self.variables: dict[Value, str] = {}
        self._dims: dict[str, Shape] = {}  # allocated shapes by variable; they may be those of a view
        self.params: list[str] = []
        self.constants: list[str] = []
        self.placed: dict[Value, str] = {}  # values whose memory is there already
        leaves = [v for v in program.values if v.op == "leaf"]
        ranked = sorted(leaves, key=lambda v: v.attrs["kind"] != "input")
        atoms = []
        for leaf in leaves:
            self.variables[leaf] = leaf.name
        for leaf in ranked:
            if leaf.attrs["kind"] != "constant":
                atoms += [(f"{leaf.name}.shape[{d}]", s) for d, s in enumerate(leaf.shape)]
        atoms += [(graph.place(name), size) for name, size in graph.attributes.items()]
        self.sizes = ForwardSizes(atoms, program.variants)
        self.inputs = [v for v in leaves if v.attrs["kind"] == "input"]

    # ------------------------------------------------------------------------------------------ statements

    def assign(self, value: Value, text: str) -> None:
        """Assign an expression to the variable of ``value``."""
        self.variables[value] = value.name
        self.lines.append(f"{value.name} = {text}")

    def allocate(self, value: Value) -> None:
        """Allocate memory for a value that a kernel fills. If only a reshape of it is used, take that shape."""
        if value in self.placed:
            self.assign(value, self.placed[value])
            return
        shown = [o for o in self.program.outputs if o.op == "reshape" and o.args[0] is value]
        if shown and not any(value in v.inputs for v in self.program.values if v is not shown[0]):
            self.variables[value] = self.variables[shown[0]] = value.name
            self._allocate(value, shown[0].shape)
        else:
            self._allocate(value, value.shape)

    def _allocate(self, value: Value, dims: Shape) -> None:
        self._dims[value.name] = dims
        like = next((v for v in self.inputs if v.shape == dims and v.dtype == value.dtype), None)
        if like is not None:
            self.assign(value, f"torch.empty_like({self.memory(like)})")
            return
        shape = ", ".join(self.sizes.expr(s) for s in dims)
        shape = f"({shape},)" if len(dims) == 1 else f"({shape})"
        dtype = "" if value.dtype == "float32" else f", dtype=torch.{value.dtype}"
        self.assign(value, f"torch.empty({shape}{dtype})")

    def call(self, function: Function, names: Mapping[Value, str] | None = None) -> None:
        """A call of a generated function."""
        arguments = []
        for argument in function.arguments:
            arguments.append(self._argument(argument, names or {}))
        self.lines.append(f"lib.{function.name}({', '.join(arguments)})")

    def _argument(self, argument: Argument, names: Mapping[Value, str]) -> str:
        if argument.kind == "tensor":
            value = argument.value
            if value.is_view and value not in self.variables:
                return f"{self.tensor(value)}.contiguous()"
            return names.get(value) or self.memory(value)
        if argument.kind == "size":
            return self.sizes.expr(argument.value)
        if argument.kind == "number":
            return self.sizes.number(argument.value)
        return str(argument.value)

    # ------------------------------------------------------------------------------------------ expressions

    def memory(self, value: Value) -> str:
        """A contiguous tensor that holds the value."""
        return self.variables[value]

    def tensor(self, value: Value) -> str:
        """A tensor expression for a value or a view of one."""
        if value in self.variables or not value.is_view:
            return self.memory(value)
        source: Value = value.args[0]
        base = self.tensor(source)
        if value.op == "permute":
            dims = value.attrs["dims"]
            moved = [d for d, s in enumerate(dims) if d != s]
            if len(moved) == 2:
                return f"{base}.transpose({moved[0]}, {moved[1]})"
            return f"{base}.permute({', '.join(str(d) for d in dims)})"
        if value.op == "expand":
            return f"{base}.expand({', '.join(self.sizes.expr(s) for s in value.shape)})"
        if value.op == "slice":
            dim, start, step = value.attrs["dim"], value.attrs["start"], value.attrs["step"]
            if step.equals(1):
                return f"{base}.narrow({dim}, {self.sizes.expr(start)}, {self.sizes.expr(value.shape[dim])})"
            lead = ":, " * dim
            return f"{base}[{lead}{self.sizes.expr(start)}::{self.sizes.expr(step)}]"
        method = "reshape" if root(source) is not source else "view"
        shape = ", ".join(self.sizes.expr(s) for s in value.shape)
        return f"{base}.{method}({shape or '()'})"

    def window_sizes(self, value: Value) -> None:
        """Compute the output sizes of a convolution or pooling by their formula, as named variables."""
        source: Value = value.args[0]
        kernel = value.attrs["kernel"] if value.op == "pool" else value.args[1].shape[2:]
        rank = len(kernel)
        for d, letter in enumerate("dhw"[-rank:]):
            size, whole = value.shape[d - rank], source.shape[d - rank]
            pad, gap, step = (value.attrs[key][d] for key in ("padding", "dilation", "stride"))
            reach = gap * (kernel[d] - 1) + 1
            if size.is_const or size in self.sizes.atoms or (whole + pad * 2 - reach) // step + 1 != size:
                continue
            text = self.sizes.expr(whole)
            text += "" if pad.equals(0) else f" + 2 * {self.sizes.expr(pad)}"
            window = self.sizes.expr(kernel[d]) if gap.equals(1) else self.sizes.expr(reach)
            name = f"{value.name}_{letter}"
            self.lines.append(f"{name} = ({text} - {window}) // {self.sizes.expr(step)} + 1")
            self.sizes.atoms[size] = name

    def argument(self, value: Any) -> str:
        """Any captured argument as Python."""
        if isinstance(value, Value):
            return self.tensor(value)
        if isinstance(value, (tuple, list)):
            return "[" + ", ".join(self.argument(v) for v in value) + "]"
        if isinstance(value, Size):
            return self.sizes.expr(value)
        if isinstance(value, (Scalar, float)):
            return self.sizes.number(value)
        if isinstance(value, Symbol):
            return f"torch.{value.value}" if value.kind != "device" else f'torch.device("{value.value}")'
        return repr(value)

    # ------------------------------------------------------------------------------------------ library calls

    def library(self, step: Step) -> None:
        """A step that stays a call into torch."""
        value = step.values[0]
        if step.kind == "matmul":
            self.matmul(value, step.bias)
        elif step.kind == "conv":
            self.conv(value, step.bias)
        elif step.kind == "item":
            self.item(value)
        else:
            self.extern(value)
        for output in step.outputs:
            self.variables[output] = self.variables[value]

    def matmul(self, value: Value, bias: Value | None = None) -> None:
        """A matrix product by the library."""
        left, right = value.args
        a, b = self.tensor(left), self.tensor(right)
        if bias is not None and not value.attrs["transposed"]:
            self.assign(value, f"F.linear({a}, {b}.t(), {self.tensor(bias)})")
            return
        if value.attrs["transposed"]:
            if len(right.shape) == 2:
                extra = "" if bias is None else f", {self.tensor(bias)}"
                self.assign(value, f"F.linear({a}, {b}{extra})")
                return
            b = f"{b}.transpose(-2, -1)"
        self.assign(value, f"torch.matmul({a}, {b})")

    def conv(self, value: Value, bias: Value | None = None) -> None:
        """A convolution by the library."""
        x, weight = (self.tensor(a) for a in value.args)
        parts = [x, weight] if bias is None else [x, weight, self.tensor(bias)]
        for key, default in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1)):
            given = value.attrs[key]
            if key == "padding" and value.attrs["named"]:
                parts.append(f"padding={value.attrs['named']!r}")
            elif not all(p.equals(default) for p in given):
                texts = [self.sizes.expr(p) for p in given]
                parts.append(f"{key}={texts[0] if len(set(texts)) == 1 else '(' + ', '.join(texts) + ')'}")
        if not value.attrs["groups"].equals(1):
            parts.append(f"groups={self.sizes.expr(value.attrs['groups'])}")
        name = f"conv{'_transpose' if value.attrs['transposed'] else ''}{len(value.shape) - 2}d"
        self.assign(value, f"F.{name}({', '.join(parts)})")

    def extern(self, value: Value) -> None:
        """An operator that stays in torch, exactly as it was captured."""
        parts = [self.argument(a) for a in value.args]
        for key, entry in value.attrs["kwargs"].items():
            parts.append(f"{key}={self.argument(entry)}")
        suffix = "" if value.attrs.get("multiple") else ".contiguous()"
        self.assign(value, f"torch.ops.aten.{value.attrs['aten']}({', '.join(parts)}){suffix}")

    def item(self, value: Value) -> None:
        """One result of an operator that has several."""
        self.assign(value, f"{self.memory(value.args[0])}[{value.attrs['index']}].contiguous()")

    # ------------------------------------------------------------------------------------------ the whole

    def place(self, value: Value, text: str) -> None:
        """Let a value, or the one that it is a view of, be computed in memory that is there already."""
        base = root(value)
        if base.shape != value.shape:
            text = f"{text}.view({', '.join(self.sizes.expr(s) for s in base.shape) or '()'})"
        self.placed[base] = text

    def is_placed(self, value: Value) -> bool:
        """Whether a value was computed in memory that was there already."""
        return f"{root(value).name} = {self.placed.get(root(value))}" in self.lines

    def returned(self, value: Value) -> str:
        """An output in its own shape: it may have been computed in the memory of a view's base."""
        text = self.tensor(value)
        if self._dims.get(text, value.shape) == value.shape:
            return text
        return f"{text}.view({', '.join(self.sizes.expr(s) for s in value.shape) or '()'})"

    def body(self, structure: str) -> list[str]:
        """All statements of ``forward``, preceded by the definitions that they need."""
        return self._finished(lambda texts: [f"return {_structured(texts, structure)}"])

    def way_there(self, gradient: Gradient, structure: str) -> list[str]:
        """All statements of an autograd function's ``forward``. The last outputs are saved for ``backward``."""
        count = gradient.returned
        structure = "tuple" if structure == "list" else structure

        def finish(texts: list[str]) -> list[str]:
            kept = [f"ctx.save_for_backward({', '.join(texts[count:])})"] if gradient.saved else []
            return [*kept, f"return {_structured(texts[:count], structure)}"]

        return self._finished(finish)

    def way_back(self, gradient: Gradient) -> list[str]:
        """All statements of an autograd function's ``backward``."""
        places = {place: n for n, place in enumerate(gradient.places)}

        def finish(texts: list[str]) -> list[str]:
            given = [texts[places[n]] if n in places else "None" for n in range(len(gradient.arguments))]
            return [f"return {_structured(given, 'tuple')}"]

        names = ", ".join(gradient.saved) + ("," if len(gradient.saved) == 1 else "")
        return [*([f"{names} = ctx.saved_tensors"] if names else []), *self._finished(finish, checked=False)]

    def _finished(self, finish: Callable[[list[str]], list[str]], *, checked: bool = True) -> list[str]:
        for target, value in self.program.written:
            self.lines.append(f"{self.graph.place(target)}.copy_({self.returned(value)})")
        for target, step in self.program.counters:
            self.lines.append(f"{self.graph.place(target)}.add_({step})")
        texts = [self.returned(o) for o in self.program.returned]
        lines = [*self.lines, *finish(texts)]
        return [*self._prologue(lines, checked=checked), *_shared_sizes(lines)]

    def _prologue(self, lines: Iterable[str], *, checked: bool) -> list[str]:
        text = "\n".join(lines)
        out = []
        for leaf in (v for v in self.program.values if v.op == "leaf"):
            used = re.search(rf"\b{re.escape(leaf.name)}\b", text) is not None
            if leaf.attrs["kind"] == "input":
                out += self._input(leaf, checked=checked)
            elif used and leaf.attrs["kind"] == "constant":
                out += self._constant(leaf)
            elif used:
                out.append(f"{leaf.name} = {self.graph.place(leaf.attrs['target'])}")
        if self.sizes.used_variant:
            out.append(self._variant())
        return out

    def _constant(self, leaf: Value) -> list[str]:
        """Define a constant tensor at module level. Returns the statements that ``forward`` needs for it."""
        name = self._constant_name(leaf)
        self.constants.append(f"{name} = torch.tensor({leaf.attrs['data']!r}, dtype=torch.{leaf.dtype})")
        return []

    def _constant_name(self, leaf: Value) -> str:
        return leaf.name

    def _input(self, leaf: Value, *, checked: bool) -> list[str]:
        out = []
        target = leaf.attrs["target"]
        if target != leaf.name or not leaf.attrs["contiguous"]:
            out.append(f"{leaf.name} = {target}" + ("" if leaf.attrs["contiguous"] else ".contiguous()"))
        fixed = [(d, s.timed) for d, s in enumerate(leaf.shape) if s.is_const]
        if fixed and len(fixed) == len(leaf.shape):
            shape = ", ".join(str(s) for _, s in fixed)
            check = f"{leaf.name}.shape != ({shape}{',' if len(fixed) == 1 else ''})"
        else:
            check = " or ".join(f"{leaf.name}.shape[{d}] != {s}" for d, s in fixed)
        if fixed and checked:
            names = ", ".join(str(s.timed) if s.is_const else "any" for s in leaf.shape)
            out.append(f"if {check}:")
            out.append(
                f'    raise ValueError(f"made for {target} of shape ({names}), not {{tuple({leaf.name}.shape)}}")'
            )
        return out

    def _variant(self) -> str:
        """The statement that finds the captured shape variant of the inputs."""
        keys = []
        for k in range(self.program.variants):
            shapes = [tuple(s.values[k] for s in leaf.shape) for leaf in self.inputs]
            keys.append(f"{shapes if len(shapes) > 1 else shapes[0]!r}: {k}".replace("[", "(").replace("]", ")"))
        key = ", ".join(f"tuple({leaf.name}.shape)" for leaf in self.inputs)
        return f"variant = {{{', '.join(keys)}}}[{key if len(self.inputs) == 1 else f'({key})'}]"


def _structured(texts: Sequence[str], structure: str) -> str:
    """The returned expression: a tensor, a tuple or a list."""
    if structure == "tensor":
        return texts[0]
    joined = ", ".join(texts)
    return f"[{joined}]" if structure == "list" else f"{joined}," if len(texts) == 1 else joined


def _shared_sizes(lines: list[str]) -> list[str]:
    """Bind sizes that are read several times to local names."""
    text = "\n".join(lines)
    out: list[str] = []
    found = re.findall(r"\b\w+\.shape\[\d+\]|\bself(?:\.\w+|\[\d+\])+", text)
    for read in dict.fromkeys(found):
        if found.count(read) > 1:
            name = (
                read.replace(".shape[", "_size")
                .replace("]", "")
                .removeprefix("self.")
                .replace(".", "_")
                .replace("[", "_")
            )
            lines = [re.sub(re.escape(read) + r"(?![\w.\[])", name, line) for line in lines]
            out.append(f"{name} = {read}")
    return [*out, *lines]
