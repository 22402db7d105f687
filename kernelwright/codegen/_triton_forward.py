"""Writes the ``forward`` of a Triton candidate: allocations on the inputs' device, and kernel launches."""

from __future__ import annotations

from typing import Any

from kernelwright.codegen._forward import ForwardWriter
from kernelwright.codegen._graph import Graph, Input, Symbol
from kernelwright.codegen._ir import Program, Value
from kernelwright.codegen._size import Shape
from kernelwright.codegen._triton_tiles import Kernel


class TritonForward(ForwardWriter):
    """Like the C++ writer, but memory is on the device of the inputs, and kernels take only contiguous memory."""

    def __init__(self, program: Program, graph: Graph) -> None:
        super().__init__(program, graph)
        places = [item.target if item.kind == "input" else graph.place(item.target) for item in _tensors(graph)]
        self.device = f"{places[0]}.device" if places else '"cuda"'  # of the first tensor that forward can reach

    def _allocate(self, value: Value, dims: Shape) -> None:
        begun = value.op == "scatter" or value.attrs.get("routine") == "counts"
        if begun and value.attrs["fill"] is None:
            seen = "" if dims == value.shape else f".view({', '.join(self.sizes.expr(s) for s in dims)})"
            self.assign(value, f"{self.tensor(value.args[0])}.clone(){seen}")
            return
        like = next((v for v in self.inputs if v.shape == dims and v.dtype == value.dtype), None)
        if like is not None and not begun:
            self.assign(value, f"torch.empty_like({self.memory(like)})")
            return
        shape = ", ".join(self.sizes.expr(s) for s in dims)
        shape = f"({shape},)" if len(dims) == 1 else f"({shape})"
        call, fill = "empty", value.attrs["fill"] if begun else None
        if fill is not None:
            call, shape = ("zeros", shape) if fill == 0 else ("full", f"{shape}, {self.sizes.number(fill)}")
        self.assign(value, f"torch.{call}({shape}, dtype=torch.{value.dtype}, device={self.device})")

    def launch(self, kernel: Kernel) -> None:
        """The launch of a kernel, with the statements before it."""
        names = {name: self.sizes.expr(size) for name, size in kernel.sizes.items()}
        self.lines += [line.format(**names, device=self.device) for line in kernel.setup]
        arguments = [self._argument(argument, {}) for argument in kernel.arguments]
        arguments += [f"{key}={text.format(**names)}" for key, text in kernel.meta.items()]
        self.lines.append(f"{kernel.name}[({kernel.grid.format(**names)},)]({', '.join(arguments)})")

    def conv(self, value: Value, bias: Value | None = None) -> None:
        """A convolution by the library. Its result may be channels-last, so it is made contiguous."""
        super().conv(value, bias)
        self.lines[-1] += ".contiguous()"

    def argument(self, value: Any) -> str:
        """Any captured argument as Python. The device of the capture is replaced by that of the inputs."""
        if isinstance(value, Symbol) and value.kind == "device":
            return self.device
        return super().argument(value)

    def _input(self, leaf: Value, *, checked: bool) -> list[str]:
        lines = super()._input(leaf, checked=checked)
        plain = f"{leaf.name} = {leaf.attrs['target']}"
        lines = [line for line in lines if line not in (plain, f"{plain}.contiguous()")]
        return [f"{plain}.contiguous()", *lines]

    def _constant(self, leaf: Value) -> list[str]:
        super()._constant(leaf)
        return [f"{leaf.name} = {leaf.name.upper()}.to({self.device})"]

    def _constant_name(self, leaf: Value) -> str:
        return leaf.name.upper()


def _tensors(graph: Graph) -> list[Input]:
    """The tensors of a graph except its constants, the inputs of ``forward`` first."""
    given = [item for item in graph.inputs if item.kind != "constant"]
    return sorted(given, key=lambda item: item.kind != "input")
