"""TorchInductor's Triton kernels, read as data and rewritten into plain ``@triton.jit`` functions.

Decorators that choose a launch at run time are dropped. Sizes and blocks become ``tl.constexpr`` parameters. Functions
of the file replace those of torch's private runtime. Kernels of several shapes that differ only in numbers become one
kernel, with these numbers as parameters. The text comes from a process that ran untrusted code, so nothing is executed,
and every unknown form is refused.
"""

from __future__ import annotations

import ast
import copy
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.codegen._graph import CodegenError

Number = int | float

_WIDTH = 104  # columns of a line, without the indentation of a method
_HEURISTICS = ("pointwise", "reduction", "persistent_reduction")
_NUMEL = re.compile(r"[xy]numel|r0_numel")
_BLOCK = re.compile(r"XBLOCK|YBLOCK|R0_BLOCK")
_POINTER = re.compile(r"(in|out|in_out)_ptr\d+")
_OPERATOR = re.compile(r"_triton_helper_fn\w*")  # the function with which a scan combines values
_PURE = frozenset({"tl.arange", "tl.full", "tl.zeros", "tl.program_id"})
_NODES = (
    ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.For, ast.Return,
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Attribute, ast.Name,
    ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.expr_context,
)  # fmt: skip

# Stand-ins for the functions of TorchInductor's runtime that its kernels call: name -> (helpers it needs, text).
HELPERS: dict[str, tuple[tuple[str, ...], str]] = {
    "maximum": ((), "def maximum(a, b):  # NaN where either is\n    return tl.where((a > b) | (a != a), a, b)"),
    "minimum": ((), "def minimum(a, b):  # NaN where either is\n    return tl.where((a < b) | (a != a), a, b)"),
    "not_a_number": (
        (),
        "def not_a_number(x, axis):  # whether any is\n    return tl.max((x != x).to(tl.int32), axis) > 0",
    ),
    "max_along": (
        ("not_a_number",),
        "def max_along(x, axis):  # NaN where any is\n"
        "    found = tl.max(x, axis)\n"
        "    if x.dtype.is_floating():\n"
        '        found = tl.where(not_a_number(x, axis), float("nan"), found)\n'
        "    return found",
    ),
    "min_along": (
        ("not_a_number",),
        "def min_along(x, axis):  # NaN where any is\n"
        "    found = tl.min(x, axis)\n"
        "    if x.dtype.is_floating():\n"
        '        found = tl.where(not_a_number(x, axis), float("nan"), found)\n'
        "    return found",
    ),
    "any_along": ((), "def any_along(x, axis):\n    return tl.max((x != 0).to(tl.int32), axis) > 0"),
    "product": ((), "def product(a, b):\n    return a * b"),
    "prod_along": (("product",), "def prod_along(x, axis):\n    return tl.reduce(x, axis, product)"),
    "maximum_with_index": (
        (),
        "def maximum_with_index(a, i, b, j):  # NaN is the largest; of equal ones the first\n"
        "    same = (a == b) | ((a != a) & (b != b))\n"
        "    first = (a > b) | ((a != a) & (b == b)) | (same & (i < j))\n"
        "    return tl.where(first, a, b), tl.where(first, i, j)",
    ),
    "minimum_with_index": (
        (),
        "def minimum_with_index(a, i, b, j):  # NaN is the smallest; of equal ones the first\n"
        "    same = (a == b) | ((a != a) & (b != b))\n"
        "    first = (a < b) | ((a != a) & (b == b)) | (same & (i < j))\n"
        "    return tl.where(first, a, b), tl.where(first, i, j)",
    ),
    "first_index": (
        (),
        "def first_index(x, index, found, axis):  # of the elements that are what was found\n"
        "    wanted = tl.expand_dims(found, axis)\n"
        "    chosen = (x == wanted) | ((x != x) & (wanted != wanted))\n"
        "    return tl.min(tl.where(chosen, index, 2147483647), axis)",
    ),
    "max_with_index": (
        ("max_along", "first_index"),
        "def max_with_index(x, index, axis):\n"
        "    found = max_along(x, axis)\n"
        "    return found, first_index(x, index, found, axis)",
    ),
    "min_with_index": (
        ("min_along", "first_index"),
        "def min_with_index(x, index, axis):\n"
        "    found = min_along(x, axis)\n"
        "    return found, first_index(x, index, found, axis)",
    ),
    "welford_reduce": (
        (),
        "def welford_reduce(x, mean, m2, weight, first):  # one more value; m2 is the sum of squared deviations\n"
        "    weight = tl.where(first, 1.0, weight + 1)\n"
        "    delta = x - mean\n"
        "    moved = tl.where(first, x, mean + delta / weight)\n"
        "    return moved, tl.where(first, 0.0, m2 + delta * (x - moved)), weight",
    ),
    "welford_combine": (
        (),
        "def welford_combine(mean_a, m2_a, weight_a, mean_b, m2_b, weight_b):  # Chan et al. 1979\n"
        "    weight = weight_a + weight_b\n"
        "    delta = mean_b - mean_a\n"
        "    share = tl.where(weight == 0, 0.0, weight_b / weight)\n"
        "    return mean_a + delta * share, m2_a + m2_b + delta * delta * weight_a * share, weight",
    ),
    "welford": (
        (),
        "def welford(mean, m2, weight, axis):  # of groups of values, together\n"
        "    count = tl.sum(weight, axis)\n"
        "    middle = tl.sum(mean * weight, axis) / count\n"
        "    delta = mean - tl.expand_dims(middle, axis)\n"
        "    return middle, tl.sum(m2 + delta * delta * weight, axis), count",
    ),
    "select_one": (
        (),
        "def select_one(x, chosen, dim: tl.constexpr, keep_dims: tl.constexpr):  # the one element that is chosen\n"
        "    return tl.sum(tl.where(chosen, x, 0.0), dim, keep_dims)",
    ),
    "div_floor_integer": (
        (),
        "def div_floor_integer(a, b):  # // rounds to zero on the device\n"
        "    quotient = a // b\n"
        "    return tl.where(((a < 0) != (b < 0)) & (a % b != 0), quotient - 1, quotient)",
    ),
    "remainder_integer": (
        (),
        "def remainder_integer(a, b):  # % has the sign of the dividend on the device\n"
        "    rest = a % b\n"
        "    return tl.where((rest != 0) & ((a < 0) != (b < 0)), rest + b, rest)",
    ),
    "bucketize_binary_search": (
        (),
        "def bucketize_binary_search(\n"
        "    x, bounds, SIZE: tl.constexpr, TOTAL, STRIDE, first, dtype: tl.constexpr, RIGHT: tl.constexpr,\n"
        "    sorter, SORTER_STRIDE, sorter_first,\n"
        "):  # the place of each x among SIZE sorted bounds; NaN comes last\n"
        "    tl.static_assert(sorter is None)\n"
        "    low, high = tl.zeros(x.shape, dtype), tl.full(x.shape, SIZE, dtype)\n"
        "    width = SIZE + 1\n"
        "    while width > 1:\n"
        "        middle = (low + high) // 2\n"
        "        bound = tl.load(bounds + first + middle * STRIDE, mask=middle < SIZE, other=0)\n"
        "        beyond = (bound > x) if RIGHT else (bound >= x)\n"
        "        further = (middle < SIZE) & (beyond == 0)\n"
        "        low, high = tl.where(further, middle + 1, low), tl.where(further, high, middle)\n"
        "        width = (width + 1) // 2\n"
        "    return low",
    ),
    "promote_to_tensor": ((), "def promote_to_tensor(x):\n    return x + tl.zeros((1,), tl.int1)"),
}
_ALONG = {"max2": "max_along", "min2": "min_along", "any": "any_along", "prod": "prod_along"}
_NAMES = {"tl", "triton_helpers", "tl_math", "libdevice", "float", "range"}  # range: of loops, by torch before 2.11


@dataclass(frozen=True)
class Source:
    """One kernel as TorchInductor wrote it for one shape.

    Attributes:
        kind: ``pointwise``, ``reduction`` (a loop over blocks of the reduced axis) or ``persistent_reduction``.
        inner: whether the reduced elements are adjacent in memory.
        pointers, numels, blocks: the parameters of each role, in order.
        fixed: block sizes that TorchInductor has set itself.
        operators: functions with which scans combine values.
    """

    name: str
    kind: str
    inner: bool
    function: ast.FunctionDef
    pointers: tuple[str, ...]
    numels: tuple[str, ...]
    blocks: tuple[str, ...]
    fixed: dict[str, int]
    operators: tuple[ast.FunctionDef, ...]


@dataclass
class Kernel:
    """A kernel of the candidate. ``numbers`` holds the numbers in which the sources that it replaces differ."""

    name: str
    text: str
    operators: list[str]
    numbers: dict[int, dict[str, Number]] = field(default_factory=dict)  # by id of the source


def refuse(why: str) -> CodegenError:
    """The error that says why TorchInductor's kernels give no candidate."""
    return CodegenError(f"TorchInductor's kernels: {why}", hint="start from the generator's own kernels")


# ---------------------------------------------------------------------------------------------------------- reading


def read_kernel(name: str, text: str) -> Source:
    """Read one kernel from the text that TorchInductor would compile.

    Raises:
        CodegenError: the kernel has an unknown form.
    """
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    found = [f for f in functions if f.name == name]
    operators = tuple(f for f in functions if f.name != name)
    if len(found) != 1 or not all(_OPERATOR.fullmatch(o.name) for o in operators):
        raise refuse(f"{name[:80]} is not one function")
    function = found[0]
    kind, inner = _heuristics(function)
    for each in functions:
        each.decorator_list = [ast.parse("triton.jit", mode="eval").body]
    fixed = _lift_sizes(function)
    parameters = [a.arg for a in function.args.args]
    roles = [tuple(p for p in parameters if role.fullmatch(p)) for role in (_POINTER, _NUMEL, _BLOCK)]
    if [*roles[0], *roles[1], *roles[2]] != parameters or not roles[0] or not _grid(function, roles[1]):
        raise refuse(f"{name[:80]} is launched in another way")
    _without_asserts(function)
    _without_dead_code(function)
    for each in functions:
        _check(each, {o.name for o in operators})
    return Source(name, kind, inner, function, roles[0], roles[1], (*roles[2],), fixed, operators)


def _heuristics(function: ast.FunctionDef) -> tuple[str, bool]:
    for decorator in function.decorator_list:
        text = ast.unparse(decorator)
        known = re.match(r"triton_heuristics\.(\w+)\(", text)
        if known and known[1] in _HEURISTICS:
            return known[1], "ReductionHint.INNER" in text or "ReductionHint" not in text
    raise refuse(f"{function.name[:80]} is launched by other heuristics")


def _lift_sizes(function: ast.FunctionDef) -> dict[str, int]:
    """Remove ``xnumel = 8192`` and ``R0_BLOCK: tl.constexpr = 128`` from the body: launches pass these sizes."""
    fixed, body = {}, []
    for statement in function.body:
        text = ast.unparse(statement)
        if re.fullmatch(r"([xy]|r0_)numel = \d+", text):
            continue
        block = re.fullmatch(r"([XY]BLOCK|R0_BLOCK): tl\.constexpr = (\d{1,6})", text)
        if block:
            fixed[block[1]] = int(block[2])
            function.args.args.append(ast.arg(block[1]))
            continue
        body.append(statement)
    function.body = body
    for argument in function.args.args:
        constant = _NUMEL.fullmatch(argument.arg) or _BLOCK.fullmatch(argument.arg)
        argument.annotation = ast.parse("tl.constexpr", mode="eval").body if constant else None
    return fixed


def _grid(function: ast.FunctionDef, numels: Sequence[str]) -> bool:
    """Whether programs are numbered as ``_triton_seed.py`` launches them: along x, then along y."""
    wanted = {"xoffset": "tl.program_id(0)", "yoffset": "tl.program_id(1)"}
    known = {name: text for name, text in wanted.items() if f"{name[0]}numel" in numels}
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in wanted:
            text = ast.unparse(node.value)
            found[node.targets[0].id] = re.sub(r"\.to\(tl\.int64\)| \* [XY]BLOCK$", "", text)
    return found == known and sum("tl.program_id" in ast.unparse(s) for s in function.body) == len(known)


def _without_asserts(function: ast.FunctionDef) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.For):
            node.body = [s for s in node.body if not ast.unparse(s).startswith("tl.device_assert(")] or [ast.Pass()]


def _without_dead_code(function: ast.FunctionDef) -> None:
    """Drop assignments to names that nothing reads, until all names are read."""
    while True:
        used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        before = sum(1 for _ in ast.walk(function))
        for node in ast.walk(function):
            if isinstance(node, ast.FunctionDef | ast.For):
                node.body = [s for s in node.body if not _dead(s, used)] or [ast.Pass()]
        if sum(1 for _ in ast.walk(function)) == before:
            return


def _dead(statement: ast.stmt, used: set[str]) -> bool:
    if isinstance(statement, ast.AnnAssign):
        target: ast.expr = statement.target
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    else:
        return False
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return isinstance(target, ast.Name) and target.id not in used and all(ast.unparse(c.func) in _PURE for c in calls)


def _check(function: ast.FunctionDef, operators: set[str]) -> None:
    """Refuse everything that is not arithmetic in Triton's language."""
    for node in ast.walk(function):
        if not isinstance(node, _NODES):
            raise refuse(f"{function.name[:80]} has a {type(node).__name__}")
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise refuse(f"{function.name[:80]} uses {node.attr[:80]}")
    bound = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {a.arg for a in function.args.args} | _NAMES | operators
    decorator = function.decorator_list[0]
    inside = {id(n) for n in ast.walk(decorator)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and id(node) not in inside and node.id not in bound:
            raise refuse(f"{function.name[:80]} uses {node.id[:80]}")


# ---------------------------------------------------------------------------------------------------------- merging


def merge(groups: Sequence[tuple[Sequence[Source], Mapping[int, Sequence[int]]]]) -> list[Kernel]:
    """Merge the sources of all shapes into kernels. ``groups`` holds each shape's sources, and their sizes by id."""
    alike: dict[str, list[Source]] = {}
    sizes: dict[int, Sequence[int]] = {}
    for sources, numels in groups:
        sizes.update(numels)
        for source in sources:
            alike.setdefault(_skeleton(source), []).append(source)
    taken: set[str] = set(HELPERS)
    kernels = []
    for sources in alike.values():
        name = _free(_plain_name(sources[0].name), taken)
        taken.add(name)
        kernels.append(_merged(name, sources, sizes))
    return kernels


def _skeleton(source: Source) -> str:
    function = copy.deepcopy(source.function)
    function.name = ""
    for node in _numbers(function):
        node.value = 0 if isinstance(node.value, int) else 0.0
    return "\n".join([source.kind, ast.dump(function), *(ast.dump(o) for o in source.operators)])


def _numbers(function: ast.FunctionDef) -> Iterator[ast.Constant]:
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node


def _merged(name: str, sources: Sequence[Source], sizes: dict[int, Sequence[int]]) -> Kernel:
    """Merge sources into one kernel. Numbers that differ become existing size parameters, or new parameters."""
    function = copy.deepcopy(sources[0].function)
    columns = list(zip(*(_numbers(s.function) for s in sources), strict=True))
    known = {
        tuple(map(repr, column)): numel
        for numel, column in zip(
            sources[0].numels, zip(*(sizes.get(id(s), ()) for s in sources), strict=False), strict=False
        )
        if len(set(column)) > 1
    }
    kernel = Kernel(name, "", [], {id(s): {} for s in sources})
    replaced = {}
    for node, column in zip(_numbers(function), columns, strict=True):
        values = [c.value for c in column]
        if len({repr(v) for v in values}) == 1:
            continue
        key = tuple(map(repr, values))
        if key not in known:
            known[key] = f"{'SIZE' if isinstance(values[0], int) else 'NUMBER'}{len(kernel.numbers[id(sources[0])])}"
            function.args.args.append(ast.arg(known[key], ast.parse("tl.constexpr", mode="eval").body))
            for source, value in zip(sources, values, strict=True):
                kernel.numbers[id(source)][known[key]] = value
        replaced[id(node)] = known[key]
    function = _Renamed(replaced, name).visit(function)
    function.name = name
    kernel.operators = [_operator(o, name) for o in sources[0].operators]
    kernel.text = _text(function)
    return kernel


class _Renamed(ast.NodeTransformer):
    """Replaces numbers by parameters, and names of torch's runtime by names of the file."""

    def __init__(self, replaced: dict[int, str], kernel: str) -> None:
        self.replaced, self.kernel = replaced, kernel

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        found = self.replaced.get(id(node))
        return ast.Name(found, ast.Load()) if found else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if _OPERATOR.fullmatch(node.id):
            return ast.Name(_operator_name(node.id, self.kernel), node.ctx)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "triton_helpers":
            name = _ALONG.get(node.attr, node.attr)
            if name not in HELPERS:
                raise refuse(f"there is no stand-in for {name[:80]}")
            return ast.Name(name, ast.Load())
        if isinstance(node.value, ast.Name) and node.value.id == "tl_math":
            return ast.Attribute(ast.Name("tl", ast.Load()), node.attr, node.ctx)
        return self.generic_visit(node)  # type: ignore[return-value]


def _operator(function: ast.FunctionDef, kernel: str) -> str:
    function = _Renamed({}, kernel).visit(copy.deepcopy(function))
    function.name = _operator_name(function.name, kernel)
    return _text(function)


def _operator_name(name: str, kernel: str) -> str:
    return f"{kernel}_{name.removeprefix('_triton_helper_fn_')}"


def _text(function: ast.FunctionDef) -> str:
    head, body = ast.unparse(ast.fix_missing_locations(function)).split(":\n", 1)
    return f"{wrapped(head + ':')}\n{body}"


def wrapped(line: str) -> str:
    """Wrap a long statement that ends in a parenthesis: the arguments of its last pair go on lines of their own."""
    if len(line) <= _WIDTH:
        return line
    opening = line.index("](") + 1 if "](" in line else line.index("(")
    closing = line.rindex(")")
    parts = (
        line[opening + 1 : closing].replace(", ", ",\0").replace(" ", "\1").replace("\0", " ")
    )  # breaks at commas only
    inside = textwrap.fill(parts, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    return f"{line[: opening + 1]}\n{inside},\n{line[closing:]}".replace("\1", " ")


def helpers(code: str) -> list[str]:
    """The stand-ins that kernels use, each after the stand-ins that it needs."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        needs, text = HELPERS[name]
        for other in needs:
            add(other)
        found.setdefault(name, f"@triton.jit\n{text}")

    for name in HELPERS:
        if re.search(rf"(?<![\w.]){name}\(", code):
            add(name)
    return list(found.values())


def _plain_name(name: str) -> str:
    """``triton_red_fused__softmax_mul_0`` as ``softmax_mul_kernel``."""
    words = re.sub(r"^triton_(poi|red|per)_fused(?=_)|_\d+$", "", name).strip("_").split("_")
    return "_".join([*([w for w in words[:5] if w] or ["fused"]), "kernel"])


def _free(name: str, taken: set[str]) -> str:
    number, found = 2, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found
