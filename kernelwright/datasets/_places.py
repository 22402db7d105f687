"""Names for the numbers of a problem file that determine its sizes: constants, and parts of their values.

- ``batch_size``: the value that the file assigns to that name.
- ``layer_sizes.0``, ``CONFIG.model.dim``: a part of a tuple, a list, a dict, or of the keyword arguments of a call.
  The index in a list is left out if a key follows: ``CONFIGS.dim`` is that key in each dict of the list.
- ``get_inputs.rows``: a default argument of a function, or a value assigned in ``get_inputs`` or ``get_init_inputs``.
- ``Config.dim``: a value assigned in a class; ``Model.dim``: a default argument of a constructor.
- ``Model.4096``: every unnamed number 4096 that is written in a class, or in ``get_inputs`` or ``get_init_inputs``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_MAKERS = ("get_inputs", "get_init_inputs")
_LEAST_LITERAL = 16  # smaller numbers are axes, convolution windows or exponents
_DEEPEST = 8
_PLAIN = re.compile(r"\w+")  # keys that can stand in a name

Named = Mapping[str, Sequence[ast.expr]]


class Places(NamedTuple):
    """The expressions of a file that set its sizes, by name.

    ``constants`` holds constants; ``literals`` holds values set within the class ``Model``, and unnamed numbers.
    """

    constants: Named
    literals: Named

    def named(self, name: str) -> Sequence[ast.expr]:
        """The expressions that a name stands for; empty if it is unknown."""
        return self.constants.get(name) or self.literals.get(name) or ()


def places_of(tree: ast.Module) -> Places:
    """All places of a file. ``PROBLEM`` is left out, as it does not change the computation."""
    constants: dict[str, list[ast.expr]] = {}
    literals: dict[str, list[ast.expr]] = {}
    taken: set[int] = set()
    for name, node in _constants(tree):
        owner_name = name.partition(".")[0]
        if owner_name != "PROBLEM":
            (literals if owner_name == "Model" else constants).setdefault(name, []).append(node)
            taken |= {id(n) for n, _ in _numbers(node)} if isinstance(node, (ast.Constant, ast.BinOp)) else set()
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef) or (isinstance(owner, ast.FunctionDef) and owner.name in _MAKERS):
            for node, value in _numbers(owner):
                if id(node) not in taken and value >= _LEAST_LITERAL:
                    literals.setdefault(f"{owner.name}.{value}", []).append(node)
    return Places(constants, literals)


def assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names that statements assign, each with the assigned expression."""
    for node in body:
        targets: list[ast.expr]
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        assert node.value is not None
        for target in targets:
            yield from _pairs(target, node.value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for inner, given in zip(target.elts, value.elts, strict=False):  # Python itself reports different lengths
            yield from _pairs(inner, given)


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for name, node in assigned(tree.body):
        yield name, node
        yield from _parts(name, "", node)
    for owner in tree.body:
        if isinstance(owner, ast.FunctionDef):
            yield from _defaults(owner.name, owner)
            if owner.name in _MAKERS:
                yield from _within(owner.name, owner.body)
        elif isinstance(owner, ast.ClassDef):
            yield from _within(owner.name, owner.body)
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    yield from _defaults(owner.name, method)


def _within(owner: str, body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for name, node in assigned(body):
        yield f"{owner}.{name}", node
        yield from _parts(f"{owner}.{name}", "", node)


def _defaults(owner: str, function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    given = [*function.args.posonlyargs, *function.args.args]
    pairs = [*zip(given[::-1], function.args.defaults[::-1], strict=False)]
    keywords = [*zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]
    for argument, node in [*pairs, *((a, default) for a, default in keywords if default is not None)]:
        name = f"{owner}.{argument.arg}"
        yield name, node
        yield from _parts(name, "", node)


def _parts(name: str, place: str, node: ast.expr, depth: int = 0) -> Iterator[tuple[str, ast.expr]]:
    """The named parts of an expression's value. ``place`` is its index in a list, which only some names contain."""
    if depth > _DEEPEST:
        return
    inner: list[tuple[str, str, ast.expr]] = []  # name, place, part
    if isinstance(node, (ast.Tuple, ast.List)):
        inner = [(name, f"{place}.{position}", part) for position, part in enumerate(node.elts)]
    elif isinstance(node, ast.Dict):
        keyed = [(ast.unparse(key).strip("'"), part) for key, part in zip(node.keys, node.values, strict=True) if key]
        inner = [(f"{name}.{key}", "", part) for key, part in keyed if _PLAIN.fullmatch(key)]
    elif isinstance(node, ast.Call):
        inner = [(f"{name}.{keyword.arg}", "", keyword.value) for keyword in node.keywords if keyword.arg]
    for named, at, part in inner:
        if not isinstance(part, (ast.Tuple, ast.List, ast.Dict, ast.Call)):
            yield named + at, part
        yield from _parts(named, at, part, depth + 1)


def _numbers(node: ast.AST) -> Iterator[tuple[ast.Constant, int]]:
    """The integers written in a part of a file."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and type(inner.value) is int:
            yield inner, inner.value
