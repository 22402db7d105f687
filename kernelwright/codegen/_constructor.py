"""The constructor of a candidate: the reference's own ``__init__``, with the parts of the problem file that it needs.

For the same arguments, parameters have the same names, shapes and initial values as the reference's. Helper modules
keep their constructors and lose their ``forward``: they only hold parameters. Nothing is executed here. The capture
worker tries the text and reports which ``Carry`` reproduces the reference's state.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernelwright.codegen._graph import Carry, CodegenError

_DROPPED = {"get_inputs", "get_init_inputs", "PROBLEM"}
_NEW = "ModelNew"
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Constructor:
    """Text pieces of a candidate file: imports, helper definitions, and the body of ``ModelNew`` up to ``forward``."""

    imports: tuple[str, ...]
    helpers: str
    init: str
    bases: str


def constructor(source: str, carry: Carry = "needed") -> Constructor:
    """Take the constructor out of a problem file.

    Args:
        source: the text of the problem file.
        carry: ``needed`` takes the statements that the constructor reaches by name, without any ``forward``. ``whole``
            takes the file without its input makers, and keeps the helpers' ``forward``: some constructors call it.

    Raises:
        CodegenError: the source has no class Model.
    """
    tree = ast.parse(source)
    model = _model_class(tree)
    tree = _Renamed(model.name).visit(tree)
    carried = _Carried(tree, model, carry)
    return Constructor(
        imports=tuple(ast.unparse(node) for node in carried.imports()),
        helpers="\n\n\n".join(ast.unparse(node) for node in carried.helpers()),
        init="\n\n".join(_indent(text) for text in _grouped(carried.body(model))),
        bases=", ".join(ast.unparse(part) for part in [*model.bases, *model.keywords]),
    )


def constructor_module(source: str, carry: Carry) -> str:
    """The carried text as a module of its own, whose ``ModelNew`` computes nothing.

    Raises:
        CodegenError: the source has no class Model.
    """
    made = constructor(source, carry)
    future = [line for line in made.imports if line.startswith("from __future__")]
    return "\n".join(
        [
            *future,
            "import torch",
            "from torch import nn",
            *(line for line in made.imports if line not in future),
            made.helpers,
            f"class {_NEW}({made.bases or 'nn.Module'}):",
            made.init,
            "    def forward(self, *inputs):",
            "        return None",
            "",
        ]
    )


def _model_class(tree: ast.Module) -> ast.ClassDef:
    """The class that the file calls ``Model``, itself or by ``Model = Net``."""
    classes: dict[str, ast.ClassDef | None] = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and "Model" in _bound(node):
            classes["Model"] = classes.get(node.value.id, classes.get("Model"))
    model = classes.get("Model")
    if model is None:
        raise CodegenError("the problem has no class Model", hint="run `kernelwright problems lint` on it")
    return model


class _Renamed(ast.NodeTransformer):
    """Renames the model's class to ``ModelNew`` wherever the file uses its name, as in ``super(Model, self)``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Rename one use."""
        return ast.copy_location(ast.Name(_NEW, node.ctx), node) if node.id == self.name else node


class _Carried:
    """The parts of a problem file that go into the candidate: all that the constructor reaches by name or attribute."""

    def __init__(self, tree: ast.Module, model: ast.ClassDef, carry: Carry) -> None:
        self.model, self.whole = model, carry == "whole"
        self.statements = [node for node in tree.body if node is not model and not _is_main(node)]
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.kept: set[ast.stmt] = set(self._usable() if self.whole else ())
        before = -1
        while before != len(self.names) + len(self.attributes) + len(self.kept):
            before = len(self.names) + len(self.attributes) + len(self.kept)
            for node in self._roots():
                self.names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                self.attributes |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            self.kept |= {node for node in self._usable() if self._is_needed(node)}

    def imports(self) -> Iterator[ast.stmt]:
        """Import statements of the file that are needed, ``__future__`` first."""
        found = [n for n in self.statements if isinstance(n, ast.Import | ast.ImportFrom)]
        return (n for n in found if _is_future(n) or n in self.kept)

    def helpers(self) -> Iterator[ast.stmt]:
        """Everything else that is needed, in the order of the file."""
        return (self._container(n) for n in self.statements if n in self.kept and not _is_import(n))

    def body(self, cls: ast.ClassDef) -> list[ast.stmt]:
        """The kept statements of a class: all that are not methods, and the methods that kept code refers to."""
        found: list[ast.stmt] = []
        for node in cls.body:
            if isinstance(node, _Function):
                if self._keeps_method(node, cls):
                    found.append(_without_docstring(node))
            elif not _is_text(node) and "forward" not in _bound(node):
                found.append(node)
        return found

    def _keeps_method(self, method: _Function, cls: ast.ClassDef) -> bool:
        if method.name == "forward":
            return self.whole and cls is not self.model
        special = method.name.startswith("__") and method.name.endswith("__")
        return self.whole or special or method.name in self.attributes

    def _roots(self) -> Iterator[ast.AST]:
        yield from (*self.model.bases, *self.model.keywords, *self.body(self.model))
        yield from (self._container(n) for n in self.kept)

    def _container(self, node: ast.stmt) -> ast.stmt:
        """A helper class without its unused methods. Functions lose their docstring; other statements do not change."""
        if not isinstance(node, ast.ClassDef):
            return _without_docstring(node) if isinstance(node, _Function) else node
        return ast.copy_location(
            ast.ClassDef(
                name=node.name,
                bases=node.bases,
                keywords=node.keywords,
                body=self.body(node) or [ast.Pass()],
                decorator_list=node.decorator_list,
            ),
            node,
        )

    def _usable(self) -> list[ast.stmt]:
        """Statements that can precede ``ModelNew``: they neither define nor use the model or the makers of inputs."""
        found = [n for n in self.statements if not _is_text(n) and not _is_future(n)]
        return [n for n in found if not (_bound(n) | _used_at_once(n)) & {*_DROPPED, _NEW}]

    def _is_needed(self, node: ast.stmt) -> bool:
        bound = _bound(node)
        return "*" in bound or bool(bound & self.names) or _changed(node) in self.names & self._owned()

    def _owned(self) -> set[str]:
        """Module-level names that the file itself defines: statements that change their values belong to them."""
        return {name for node in self.statements if not _is_import(node) for name in _bound(node)}


def _bound(node: ast.stmt) -> set[str]:
    """The names that a module-level statement binds; ``*`` for a star import."""
    if isinstance(node, _Function | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    found = {n.id for n in _own_nodes(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inner = [n for n in _own_nodes(node) if isinstance(n, ast.stmt) and n is not node]
    return found.union(*(_bound(n) for n in inner if isinstance(n, _Function | ast.ClassDef) or _is_import(n)))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a statement outside of the scopes that it opens."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function | ast.ClassDef):
            yield child
        elif not isinstance(child, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            yield from _own_nodes(child)


def _used_at_once(node: ast.stmt) -> set[str]:
    """The names that a statement reads when the file is loaded. Names inside a function's body are left out."""
    if isinstance(node, _Function):
        return set()
    return {n.id for n in _own_nodes(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _changed(node: ast.stmt) -> str | None:
    """The name whose value a statement changes, as ``SIZES.append(3)`` and ``CONFIG["depth"] = 2`` do."""
    place: ast.expr | None = None
    if isinstance(node, ast.Assign):
        place = node.targets[0]
    elif isinstance(node, ast.AugAssign):
        place = node.target
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        place = node.value.func
    while isinstance(place, ast.Attribute | ast.Subscript):
        place = place.value
    return place.id if isinstance(place, ast.Name) else None


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_main(node: ast.stmt) -> bool:
    """True for ``if __name__ == "__main__"``, which a problem's file never runs."""
    return isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))


def _without_docstring(node: _Function) -> _Function:
    if len(node.body) > 1 and _is_text(node.body[0]):
        node.body = node.body[1:]
    return node


def _grouped(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The texts of a class body: attributes that follow each other together, each method by itself."""
    lines: list[str] = []
    for node in body:
        if isinstance(node, _Function | ast.ClassDef):
            if lines:
                yield "\n".join(lines)
            lines = []
            yield ast.unparse(node)
        else:
            lines.append(ast.unparse(node))
    if lines:
        yield "\n".join(lines)


def _indent(text: str) -> str:
    return "\n".join("    " + line if line else line for line in text.splitlines())
