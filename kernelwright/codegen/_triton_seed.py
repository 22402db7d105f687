"""TorchInductor's Triton kernels for a problem, as a candidate file (worker-side half: ``_inductor_triton.py``).

The wrapper that TorchInductor generates is read statement by statement. Each becomes a line of a method: memory on the
device of the inputs, launches with explicit grids and block sizes, library calls as calls into torch. A statement of
unknown form is refused: there is then no candidate.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernelwright.codegen._cost import cost
from kernelwright.codegen._file import Generated
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._triton_seed_file import KNOBS, Method, seed_file
from kernelwright.codegen._triton_seed_kernels import HELPERS, Kernel, Source, merge, read_kernel, refuse, wrapped

# Errors that reading a malformed answer raises; the parser reports deep nesting as MemoryError.
_MALFORMED = (
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    RecursionError,
    MemoryError,
)
_MOST_TEXT = 1 << 20  # characters of a wrapper
_LIBRARY = {"mm": "torch.mm", "bmm": "torch.bmm", "addmm": "torch.addmm", "baddbmm": "torch.baddbmm",
            "convolution": "torch.ops.aten.convolution"}  # fmt: skip
_FALLBACK = re.compile(r"(?:torch\.ops\.)?(aten\.[a-z]\w*(?:\.\w+)?)")  # those that begin with _ belong to one device
_ALSO = {f"torch.ops.aten.{name}.default" for name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
                                                       "_embedding_bag_forward_only", "_embedding_bag")}  # fmt: skip
_LIBRARY_CALL = re.compile(r"\btorch\.(ops\.aten\.|mm|bmm|addmm|baddbmm)")
_WORD = re.compile(r"[a-z_]{1,32}")
_HEAVY = {"mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "conv1d", "conv2d", "conv3d", "convolution"}
_VIEWS = {"view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "reshape"}
_DTYPE = re.compile(r"torch\.(float16|bfloat16|float32|float64|u?int8|int16|int32|int64|bool)")
_SKIPPED = re.compile(
    r"del |args\.clear\(\)|torch\.cuda\.set_device\(0\)|(raw_)?stream0 = get_raw_stream\(0\)|assert_alignment\(|pass$"
)
_BUFFER = re.compile(r"buf\d+")


def triton_seed(graph: Graph, payload: Mapping[str, Any]) -> Generated:
    """A candidate made of TorchInductor's Triton kernels.

    Args:
        graph: the captured problem.
        payload: what ``inductor_triton_entry`` returned for it in a worker.

    Raises:
        CodegenError: no candidate can be made; the message says why.
    """
    if not payload.get("ok"):
        raise refuse(str(payload.get("reason", "no answer"))[:300])
    if graph.structure not in ("tensor", "tuple", "list"):
        raise refuse("the forward returns neither a tensor nor a flat sequence")
    try:
        return _seed(graph, payload)
    except _MALFORMED as error:
        raise refuse(f"a malformed answer ({type(error).__name__})") from error


def _seed(graph: Graph, payload: Mapping[str, Any]) -> Generated:
    if {node.op.split(".")[0] for node in graph.nodes} <= _HEAVY | _VIEWS:
        raise refuse("libraries do all of the arithmetic")
    wrappers = [_wrappers(graph, variant) for variant in payload["variants"]]
    kernels = merge([(list(w.sources.values()), w.sizes()) for w in itertools.chain(*wrappers)])
    if not any(wrapper.sizes() for wrapper in wrappers[0]):
        raise refuse("libraries do all of the work in the timed shape")
    of_source = {key: kernel for kernel in kernels for key in kernel.numbers}
    methods: dict[tuple[Method, ...], int] = {}
    keys: dict[str, int] = {}
    for passes in wrappers:
        written = tuple(Method(w.role.parameters, tuple(w.lines(of_source))) for w in passes)
        number = methods.setdefault(written, len(methods))
        if keys.setdefault(passes[0].key, number) != number:
            raise refuse("inputs of one shape need different kernels")
    source = seed_file(graph, kernels, list(methods), keys)
    found = cost(graph)
    report = ({"kind": "inductor", "name": "", "ops": [n.op.split(".")[0] for n in graph.nodes], "why": "",
               "launches": len([s for w in wrappers[0] for s in w.calls]), "bytes": found["bytes_moved"],
               "flops": found["flops"]},)  # fmt: skip
    knobs = {name: values[0] for name, values in KNOBS.items() if re.search(rf"^{name} = ", source, re.MULTILINE)}
    return Generated(source, knobs, report, found["bytes_moved"], found["flops"])


def _wrappers(graph: Graph, variant: Mapping[str, Any]) -> list[_Wrapper]:
    """The wrapper of one shape; with gradients those of the forward and the backward pass."""
    if graph.gradient is None:
        returned = len(graph.outputs)
        return [_Wrapper(graph, variant, _Role(graph.forward_parameters, graph.structure, returned, returned))]
    there, back = variant["halves"]
    returned, wanted = graph.gradient.returned, len(graph.gradient.places)
    saved = len(there["outputs"]) - returned
    given = (*(f"saved_{number}" for number in range(saved)), *graph.gradient.cotangents)
    return [
        _Wrapper(graph, there, _Role(graph.gradient.arguments, "tuple", returned + saved, returned)),
        _Wrapper(graph, back, _Role(given, "tuple", wanted, wanted)),
    ]


class _Role(NamedTuple):
    """What a wrapper's method takes and returns.

    Attributes:
        parameters: the names of its arguments.
        structure: ``tensor``, ``tuple`` or ``list``.
        results: how many values it returns.
        plain: how many of them, from the first on, are row-major in memory.
    """

    parameters: tuple[str, ...]
    structure: str
    results: int
    plain: int


@dataclass(frozen=True)
class _Launch:
    source: Source
    arguments: list[str]
    sizes: list[int]

    def line(self, kernel: Kernel) -> str:
        """The launch as a statement: x along the first axis of the grid, y along the second."""
        numels = dict(zip(self.source.numels, self.sizes, strict=True))
        blocks = self._blocks(numels)
        programs = [
            f"triton.cdiv({numels[numel]}, {blocks[block]})" if blocks[block] != "1" else str(numels[numel])
            for numel, block in (("xnumel", "XBLOCK"), ("ynumel", "YBLOCK"))
            if numel in numels
        ]
        grid = f"({programs[0]},)" if len(programs) == 1 else f"({', '.join(programs)})"
        given = {**numels, **blocks, **{k: repr(v) for k, v in kernel.numbers[id(self.source)].items()}}
        named = [f"{name}={value}" for name, value in given.items()]
        warps = "WARPS" if self.source.kind == "pointwise" else "REDUCE_WARPS"
        return wrapped(f"{kernel.name}[{grid}]({', '.join([*self.arguments, *named, f'num_warps={warps}'])})")

    def _blocks(self, numels: Mapping[str, int]) -> dict[str, str]:
        """Block sizes as expressions over the knobs. An axis of one element has no mask: its block is 1."""
        fixed = {name: str(size) for name, size in self.source.fixed.items()}
        if self.source.kind == "pointwise":
            chosen = dict.fromkeys(self.source.blocks, "SIDE" if "YBLOCK" in self.source.blocks else "BLOCK")
        elif self.source.kind == "persistent_reduction":
            chosen = {"XBLOCK": f"max(1, TILE // {fixed['R0_BLOCK']})"}
        elif self.source.inner:
            chosen = {"XBLOCK": "1", "R0_BLOCK": "TILE"}
        else:
            chosen = {"XBLOCK": "COLUMNS", "R0_BLOCK": "TILE // COLUMNS"}
        if self.source.kind != "pointwise":
            chosen["YBLOCK"] = "1"
        chosen |= {f"{n[0].upper()}BLOCK": "1" for n, size in numels.items() if size == 1 and n != "r0_numel"}
        return {
            name: value for name, value in {**chosen, **fixed}.items() if name in self.source.blocks or name in fixed
        }


class _Wrapper:
    """TorchInductor's wrapper for one shape, as steps of a method."""

    def __init__(self, graph: Graph, variant: Mapping[str, Any], role: _Role) -> None:
        text, inputs = variant["wrapper"], variant["inputs"]
        if not isinstance(text, str) or len(text) > _MOST_TEXT:
            raise refuse("the wrapper is not text, or is too long")
        self.graph, self.role = graph, role
        self.sources: dict[str, Source] = {}
        self._steps: list[str | _Launch] = []
        self._names: dict[str, str] = {}  # name in the wrapper -> text in forward
        self._shapes: dict[str, tuple[int, ...]] = {}  # of row-major tensors, by their text in forward
        shapes = [tuple(int(s) for s in i["shape"]) for i in inputs if i["kind"] == "input"]
        self.key = repr(tuple(shapes))
        call = self._definitions(ast.parse(text))
        self._given(inputs)
        self._written = [item["target"] for item in variant["outputs"] if item["kind"] == "buffer"]
        known = {target for target, _ in graph.writes}
        kinds = [item["kind"] for item in variant["outputs"]]
        if {*self._written} - known or kinds != ["buffer"] * len(self._written) + ["output"] * role.results:
            raise refuse("the wrapper writes other buffers than the graph does")
        self._body(call.body)

    @property
    def calls(self) -> list[str | _Launch]:
        """The steps that launch kernels or call a library."""
        return [step for step in self._steps if isinstance(step, _Launch) or _LIBRARY_CALL.search(step)]

    def sizes(self) -> dict[int, list[int]]:
        """The sizes that each source is launched with, by its id."""
        return {id(step.source): step.sizes for step in self._steps if isinstance(step, _Launch)}

    def lines(self, kernels: Mapping[int, Kernel]) -> list[str]:
        """The statements of this shape's method."""
        return [step.line(kernels[id(step.source)]) if isinstance(step, _Launch) else step for step in self._steps]

    # ------------------------------------------------------------------------------------------------ definitions

    def _definitions(self, tree: ast.Module) -> ast.FunctionDef:
        calls = []
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("async_compile.triton("):
                assert isinstance(node.value, ast.Call)
                name, text = (ast.literal_eval(argument) for argument in node.value.args[:2])
                self.sources[name] = read_kernel(name, text)
            elif isinstance(node, ast.ClassDef):
                calls += [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "call"]
        if len(calls) != 1:
            raise refuse("the wrapper has an unknown form")
        return calls[0]

    def _given(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        graph = self.graph
        reserved = {"self", "torch", "triton", "tl", "libdevice", "device", *KNOBS, *HELPERS}
        if any(p in reserved or _BUFFER.fullmatch(p) for p in self.role.parameters):
            raise refuse("a parameter of forward has a name that is taken")
        known = {item.target for item in graph.inputs if item.kind in ("parameter", "buffer")}
        for item in inputs:
            if item["kind"] == "input":
                name = self.role.parameters[item["target"]]
                if item["contiguous"] is not True:
                    raise refuse(f"the input {name} is not contiguous")
                self._steps.append(f"{name} = {name}.contiguous()")
            elif item["kind"] == "saved":
                name = self.role.parameters[item["target"]]
            else:
                if item["target"] not in known:
                    raise refuse("a parameter that the captured graph does not have")
                name = graph.place(item["target"])
            self._names[item["name"]] = name
            if item["contiguous"] is True:
                self._shapes[name] = tuple(int(s) for s in item["shape"])
        self.device = f"{next(iter(sorted(self._names.values(), key=lambda n: 'self' in n)))}.device"

    # ------------------------------------------------------------------------------------------------- statements

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            text = ast.unparse(statement)
            if isinstance(statement, ast.With) and text.startswith("with torch.cuda._DeviceGuard(0):"):
                self._body(statement.body)
            elif isinstance(statement, ast.Return):
                self._return(statement)
            elif text.endswith(" = args"):
                self._unpacked(statement)
            elif text.startswith("assert_size_stride("):
                self._strides(statement)
            elif re.fullmatch(r"del buf\d+", text):
                self._steps.append(text)  # the next buffer may take its memory
            elif not _SKIPPED.match(text):
                self._statement(statement)

    def _unpacked(self, statement: ast.stmt) -> None:
        assert isinstance(statement, ast.Assign)
        target = statement.targets[0]
        names = [e.id for e in target.elts if isinstance(e, ast.Name)] if isinstance(target, ast.Tuple) else []
        if names != list(self._names):
            raise refuse("the wrapper takes other inputs than the graph has")

    def _strides(self, statement: ast.stmt) -> None:
        """Give a library's result the strides that kernels expect. Inputs were made contiguous before."""
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        name, size, strides = statement.value.args[:3]
        if isinstance(name, ast.Name) and _BUFFER.fullmatch(name.id):
            self._steps.append(f"{name.id} = laid_out({name.id}, {_ints(strides)!r})")
            self._note(name.id, _ints(size), _ints(strides))

    def _statement(self, statement: ast.stmt) -> None:
        value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
        if value is None:
            raise refuse(f"a statement of unknown form: {ast.unparse(statement)[:80]}")
        if isinstance(statement, ast.Expr):
            if isinstance(value, ast.Call) and _is_launch(value):
                self._steps.append(self._launch(value))
            else:
                self._steps.append(wrapped(self._value(value)))
            return
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Name) or not _BUFFER.fullmatch(target.id):
            raise refuse(f"a statement of unknown form: {ast.unparse(statement)[:80]}")
        made = self._value(value)
        if made in self._shapes:
            self._shapes[target.id] = self._shapes[made]
        elif isinstance(value, ast.Call) and ast.unparse(value.func) == "empty_strided_cuda":
            self._note(target.id, _ints(value.args[0]), _ints(value.args[1]))
        elif isinstance(value, ast.Call) and ast.unparse(value.func) == "reinterpret_tensor":
            self._note(target.id, _ints(value.args[1]), _ints(value.args[2]))
        self._names[target.id] = target.id
        self._steps.append(f"{target.id} = {made}")

    def _note(self, name: str, size: tuple[int, ...], strides: tuple[int, ...]) -> None:
        if strides == _row_major(size):
            self._shapes[name] = size

    def _launch(self, call: ast.Call) -> _Launch:
        assert isinstance(call.func, ast.Attribute)
        assert isinstance(call.func.value, ast.Name)
        source = self.sources[call.func.value.id]
        tensors, sizes = call.args[: len(source.pointers)], call.args[len(source.pointers) :]
        if len(sizes) != len(source.numels):
            raise refuse(f"{source.name[:80]} is launched in another way")
        return _Launch(source, [self._value(t) for t in tensors], [_int(s) for s in sizes])

    def _return(self, statement: ast.Return) -> None:
        if not isinstance(statement.value, ast.Tuple):
            raise refuse("the wrapper returns something else than a tuple")
        values = statement.value.elts
        if len(values) != len(self._written) + self.role.results:
            raise refuse("the wrapper returns more or less than the forward does")
        for target, value in zip(self._written, values, strict=False):
            self._steps.append(f"{self.graph.place(target)}.copy_({self._value(value)})")
        shown = values[len(self._written) :]
        parts = [self._returned(e) if n < self.role.plain else self._value(e) for n, e in enumerate(shown)]
        together = ", ".join(parts)
        result = {"tensor": together, "tuple": f"({together},)", "list": f"[{together}]"}[self.role.structure]
        self._steps.append(f"return {result}")

    def _returned(self, node: ast.expr) -> str:
        written = self._value(node)
        return (
            written
            if written in self._shapes or written == "None" or re.search(r"\.view\([^()]*\)$", written)
            else f"{written}.contiguous()"
        )

    # ------------------------------------------------------------------------------------------------ expressions

    def _value(self, node: ast.expr) -> str:
        """A tensor, or an argument of a library call, as text of ``forward``."""
        if isinstance(node, ast.Name) and node.id in self._names:
            return self._names[node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | None):
            return repr(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORD.fullmatch(node.value):
            return repr(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return f"-{self._value(node.operand)}"
        if isinstance(node, ast.Tuple | ast.List):
            parts = ", ".join(self._value(e) for e in node.elts)
            return (
                f"[{parts}]" if isinstance(node, ast.List) else f"({parts},)" if len(node.elts) == 1 else f"({parts})"
            )
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            return f"{self._value(node.value)}[{_int(node.slice)}]"
        if isinstance(node, ast.Attribute) and _DTYPE.fullmatch(ast.unparse(node)):
            return ast.unparse(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise refuse(f"an expression of unknown form: {ast.unparse(node)[:80]}")

    def _call(self, node: ast.Call) -> str:
        name = ast.unparse(node.func)
        if name == "empty_strided_cuda":
            return self._allocation(node)
        if name == "reinterpret_tensor":
            return self._view(node)
        if name.startswith("extern_kernels.") and name.partition(".")[2] in _LIBRARY:
            name = _LIBRARY[name.partition(".")[2]]
        elif found := _FALLBACK.fullmatch(name):
            name = f"torch.ops.{found[1]}"
        elif name not in _ALSO:
            raise refuse(f"a call of {name[:80]}")
        arguments = [self._value(a) for a in node.args]
        arguments += [f"{k.arg}={self._value(k.value)}" for k in node.keywords if k.arg]
        if name == _LIBRARY["convolution"]:
            arguments = [self._value(a) for a in [*node.args, *_convolution(node)]]
        return f"{name}({', '.join(arguments)})"

    def _allocation(self, node: ast.Call) -> str:
        size, stride = _ints(node.args[0]), _ints(node.args[1])
        dtype = self._value(node.args[2])
        if stride == _row_major(size):
            return f"torch.empty({size!r}, dtype={dtype}, device={self.device})"
        return f"torch.empty_strided({size!r}, {stride!r}, dtype={dtype}, device={self.device})"

    def _view(self, node: ast.Call) -> str:
        of = self._value(node.args[0])
        size, stride, offset = _ints(node.args[1]), _ints(node.args[2]), _int(node.args[3])
        shape = self._shapes.get(of)
        if shape is not None and size and offset == 0:
            if stride == _row_major(size) and math.prod(size) == math.prod(shape):
                return of if size == shape else f"{of}.view{size!r}"
            if len(shape) == 2 and size == shape[::-1] and stride == (1, shape[1]):
                return f"{of}.t()"
        start = f", {of}.storage_offset() + {offset}" if offset else ""
        return f"{of}.as_strided({size!r}, {stride!r}{start})"


def _is_launch(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "run" and isinstance(call.func.value, ast.Name)


def _convolution(node: ast.Call) -> list[ast.expr]:
    """Keyword arguments of TorchInductor's convolution as the positional ones of ATen's."""
    named = {k.arg: k.value for k in node.keywords}
    order = ("bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")
    if set(named) != set(order) or len(node.args) != 2:
        raise refuse("a convolution of unknown form")
    return [named[name] for name in order]


def _int(node: ast.expr) -> int:
    value = ast.literal_eval(node)
    if type(value) is not int:
        raise refuse("a size that is not a whole number")
    return value


def _ints(node: ast.expr) -> tuple[int, ...]:
    value = ast.literal_eval(node)
    if not isinstance(value, tuple) or any(type(v) is not int for v in value):
        raise refuse("sizes that are not whole numbers")
    return value


def _row_major(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
