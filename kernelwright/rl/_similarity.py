"""Similarity of two references by the operators that they apply, independent of names and sizes.

A file is read as a syntax tree (nothing is run) and reduced to features:

- Left out are imports, docstrings, annotations, ``get_inputs``, ``get_init_inputs``, settings at module level, names of
  variables, classes, functions and keywords, and the values of numbers.
- Kept are the names of what torch offers, spelled one way (``self.act(x)`` after ``self.act = nn.ReLU()``,
  ``F.relu(x)`` and ``torch.relu(x)`` are ``relu``; ``a @ b`` is ``matmul``), strings and booleans that choose an
  algorithm, and which operator is applied to what.

The similarity of two files is the smaller of two overlaps of multisets (intersection over union): of the operators, and
of all pieces of the tree up to three levels deep. So files that differ in one operator are never equal, however much
boilerplate they share. Nor are files that connect the same operators differently. A module equals the function of its
name, and a method equals the function.

Measured over the 4,950 pairs of the built-in suite: median 0.00, 99th percentile 0.14, and at most 0.53 for two that
compute different things. Eleven pairs have 1.00: one operator in other sizes or dtypes, along another dimension, in
training, or with its gradients (the matrix products; softmax; layer and batch norm; cross entropy; gemm with GELU). A
problem with all its names, sizes and imports changed has 1.00 with itself. Of the 31,125 pairs of KernelBench's first
three levels, 153 have 1.00 (convolutions and products in several shapes). The next have 0.85 (one Mamba block with two
ways to return) and 0.83 (VGG16 and VGG19). Between the two suites, nothing lies between 0.70 and 1.00, so a threshold
of 0.9 lies in a gap. Not recognised: the same function in other operators (a softmax of exponentials and sums), or with
code added that does nothing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Fingerprint", "fingerprint", "similarity"]

_DEPTH = 3  # levels of a piece of the tree
_NOT_THE_MODEL = frozenset({"get_inputs", "get_init_inputs"})
_PACKAGES = frozenset({"torch", "math", "numpy", "einops"})
_LAYOUT = frozenset({"keepdim", "inplace"})  # keywords that change a result's shape or place, not its values
_STEPS = frozenset({"nn", "functional", "linalg", "special", "Tensor", "modules"})  # steps of a qualified name
_SAME = {"concat": "cat", "concatenate": "cat", "clip": "clamp", "bmm": "matmul", "mm": "matmul", "multiply": "mul"}
_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.keyword)
_VARIABLE = "name"
_NUMBER = "number"
_STEP = "step"
_KEPT = 4096  # fingerprints that are cached


class Fingerprint(NamedTuple):
    """The features of a file; ``text`` is compared instead if it does not parse or has no operators."""

    operators: Counter[str]
    pieces: Counter[str]
    text: str


def similarity(one: str, other: str) -> float:
    """The similarity of two references' sources, from 0 to 1; 1 if they differ only in names and sizes."""
    return _overlap(fingerprint(one), fingerprint(other))


@functools.lru_cache(maxsize=_KEPT)
def fingerprint(source: str) -> Fingerprint:
    """The features of a reference's source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Fingerprint(Counter(), Counter(), " ".join(source.split()))
    operators: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    try:
        reader = _Reader(_imported(tree))
        for node in reader.without_modules(list(_computing(tree))):
            operators.update(reader.operators(node))
            pieces.update(reader.pieces(node))
    except RecursionError:
        return Fingerprint(Counter(), Counter(), " ".join(source.split()))
    return Fingerprint(operators, pieces, "" if operators else " ".join(ast.unparse(tree).split()))


def _overlap(one: Fingerprint, other: Fingerprint) -> float:
    if one.text or other.text:
        return float(one.text == other.text)
    shared = _jaccard(one.operators, other.operators)
    return shared and min(shared, _jaccard(one.pieces, other.pieces))


def _jaccard(one: Counter[str], other: Counter[str]) -> float:
    """The size of the intersection of two multisets over the size of their union."""
    shared = sum((one & other).values())
    every = one.total() + other.total() - shared
    return shared / every if every else 1.0


def _imported(tree: ast.Module) -> dict[str, str]:
    """The qualified names behind a file's imported names, for packages that compute."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.asname or name.name.partition(".")[0]: name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return {name: path for name, path in names.items() if path.partition(".")[0] in _PACKAGES}


def _computing(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements in functions and methods, nested ones separately, without those that compute nothing."""
    waiting: list[ast.AST] = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in _NOT_THE_MODEL
    ]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            waiting += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]
        if isinstance(node, ast.ClassDef | ast.FunctionDef) or _is_frame(node):
            continue
        yield node


def _is_frame(node: ast.AST) -> bool:
    """Whether a statement computes nothing: a docstring, the base class's constructor, another name for a value."""
    if isinstance(node, ast.Pass | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        return all(isinstance(value, ast.Name | ast.Constant | None) for value in values)
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    return isinstance(value, ast.Constant) or any(
        isinstance(part, ast.Name) and part.id == "super" for part in ast.walk(value)
    )


class _Reader:
    """Reads a file's statements, knowing what its imported names stand for."""

    def __init__(self, imported: Mapping[str, str]) -> None:
        self._imported = imported
        self._modules: dict[str, str] = {}  # the operator of each attribute of self that holds a torch module

    def without_modules(self, statements: list[ast.AST]) -> list[ast.AST]:
        """The statements without those that only create a module of one operator. It counts where it is called."""
        found = {number: self._module(statement) for number, statement in enumerate(statements)}
        self._modules = dict(filter(None, found.values()))
        return [statement for number, statement in enumerate(statements) if found[number] is None]

    def _module(self, node: ast.AST) -> tuple[str, str] | None:
        """The attribute and the operator of ``self.act = nn.ReLU()``; None for other statements."""
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call)):
            return None
        target, operators = node.targets[0], [*self.operators(node.value)]
        name = self._known_name(node.value.func)
        if isinstance(target, ast.Attribute) and _is_own(target.value) and name and operators == [name]:
            return target.attr, name
        return None

    def operators(self, node: ast.AST) -> Iterator[str]:
        """The operators that a statement applies or creates modules of, once for each occurrence."""
        for part in _own(node):
            name = self._operator(part)
            if name:
                yield name

    def pieces(self, node: ast.AST) -> Iterator[str]:
        """Each piece of a statement's tree."""
        called = {id(part.func) for part in _own(node) if isinstance(part, ast.Call)}
        for part in _own(node):
            if id(part) not in called and not isinstance(_unsigned(part), _LEAVES):
                written = self._written(part, _DEPTH)
                if written not in (_VARIABLE, _STEP):
                    yield written

    def _operator(self, node: ast.AST) -> str:
        if isinstance(node, ast.BinOp | ast.AugAssign):
            return _ARITHMETIC.get(type(node.op), "")
        if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id in self._imported):
            return self._known_name(node)
        return ""

    def _known_name(self, node: ast.expr) -> str:
        """The normalised spelling of a name or an attribute; empty if the file's author chose it."""
        if isinstance(node, ast.Name):
            last = self._imported.get(node.id, "").rpartition(".")
            return _spelled(last[2]) if last[0] and last[2] not in _STEPS else ""
        if not isinstance(node, ast.Attribute):
            return ""
        if _is_own(node.value):
            return self._modules.get(node.attr, "")
        return "" if self._is_package(node) else _spelled(node.attr)

    def _is_package(self, node: ast.Attribute) -> bool:
        """Whether an attribute is only a package, such as the ``nn.functional`` of ``torch.nn.functional.relu``."""
        return node.attr in _STEPS and self._begins_imported(node)

    def _begins_imported(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._imported

    def _written(self, node: ast.AST, depth: int) -> str:
        """A piece of the tree as text, down to a depth."""
        node = _unsigned(node)
        if isinstance(node, ast.Constant):
            return _constant(node.value)
        if isinstance(node, ast.Name | ast.Attribute):
            found = self._known_name(node)
            return found or (_VARIABLE if isinstance(node, ast.Name) or _is_own(node.value) else _STEP)
        if not depth:
            return "..."
        if isinstance(node, ast.keyword):
            return self._written(node.value, depth)
        label = self._operator(node) or type(getattr(node, "op", node)).__name__
        inner = _parts(node)
        if isinstance(node, ast.Call):
            label = self._known_name(node.func) or label
            inner = [
                *self._receiver(node.func),
                *node.args,
                *(word for word in node.keywords if word.arg not in _LAYOUT),
            ]
        written = [self._written(part, depth - 1) for part in inner]
        if isinstance(
            node, ast.Call | ast.BinOp
        ):  # arguments that are sizes or variables say little, and modules keep them elsewhere
            written = [text for text in written if text not in (_VARIABLE, _NUMBER)]
        return f"{label}({','.join(written)})"

    def _receiver(self, function: ast.expr) -> list[ast.expr]:
        """The ``x`` of ``x.relu()``, which is the first argument of ``torch.relu(x)``."""
        if not isinstance(function, ast.Attribute) or _is_own(function.value) or self._begins_imported(function):
            return []
        return [function.value]


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and the expressions in it, without the statements inside of it."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [inner for inner in ast.iter_child_nodes(part) if not isinstance(inner, ast.stmt)]


def _parts(node: ast.AST) -> list[ast.AST]:
    """A node's children without nested statements, annotations, load and store contexts, and operator signs."""
    if isinstance(node, ast.AnnAssign):
        return [part for part in (node.target, node.value) if part is not None]
    if isinstance(node, ast.Attribute):
        return [node.value]
    left_out = (ast.stmt, ast.expr_context, ast.operator, ast.unaryop)
    return [part for part in ast.iter_child_nodes(node) if not isinstance(part, left_out)]


def _unsigned(node: ast.AST) -> ast.AST:
    """The constant under a minus sign; any other node as it is."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return node.operand if negative and isinstance(node.operand, ast.Constant) else node  # type: ignore[attr-defined]


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _constant(value: object) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)[:40]
    return _NUMBER


def _spelled(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return _SAME.get(plain, plain)
