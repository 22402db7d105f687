"""The constructor of a candidate: the reference's own ``__init__``, with what it needs of the problem file.

Parameters then have the same names, shapes and initial values as the reference's for the same arguments. Helper
modules keep their constructors and lose their ``forward``: they are containers here.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kernelwright.codegen._graph import CodegenError

_DROPPED = {"get_inputs", "get_init_inputs", "PROBLEM"}


@dataclass(frozen=True)
class Constructor:
    """Text pieces of a candidate file: imports, helper definitions, and the body of ``ModelNew`` up to ``forward``."""

    imports: tuple[str, ...]
    helpers: str
    init: str
    bases: str


def constructor(source: str) -> Constructor:
    """Take the constructor out of a problem file. Nothing is executed.

    Raises:
        CodegenError: the source has no class Model.
    """
    tree = ast.parse(source)
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    if "Model" not in classes:
        raise CodegenError("the problem has no class Model", hint="run `kernelwright problems lint` on it")
    model = classes["Model"]
    kept = _methods(model)
    needed = _closure(tree, {name for method in kept for name in _names(method)} | _base_names(model))
    imports, helpers = [], []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if _bound(node) & needed and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                imports.append(ast.unparse(node))
        elif _defined(node) & needed - {"Model"}:
            helpers.append(ast.unparse(_container(node)))
    init = "\n\n".join(_indent(ast.unparse(_without_docstring(m))) for m in kept)
    bases = ", ".join(ast.unparse(b) for b in model.bases)
    return Constructor(tuple(imports), "\n\n\n".join(helpers), init, bases)


def _methods(cls: ast.ClassDef) -> list[ast.FunctionDef]:
    """``__init__``, special methods (``self[0]`` calls one), and the methods that these call, transitively."""
    methods = {n.name: n for n in cls.body if isinstance(n, ast.FunctionDef)}
    wanted, queue = set(), [name for name in methods if name.startswith("__") and name.endswith("__")]
    while queue:
        name = queue.pop()
        if name in methods and name not in wanted:
            wanted.add(name)
            attributes = {n.attr for n in ast.walk(methods[name]) if isinstance(n, ast.Attribute)}
            queue += [a for a in attributes if a in methods and a != "forward"]
    return [m for m in methods.values() if m.name in wanted]


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _base_names(cls: ast.ClassDef) -> set[str]:
    return {name for base in cls.bases for name in _names(base)}


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name} - _DROPPED
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {name for t in targets for name in _names(t)} - _DROPPED
    return set()


def _bound(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {(alias.asname or alias.name).split(".")[0] for alias in node.names}


def _closure(tree: ast.Module, names: set[str]) -> set[str]:
    """``names`` and all module-level names that their definitions use."""
    definitions = {name: node for node in tree.body for name in _defined(node)}
    found, queue = set(names), list(names)
    while queue:
        node = definitions.get(queue.pop())
        if node is not None:
            fresh = _names(_container(node)) - found
            found |= fresh
            queue += fresh
    return found


def _container(node: ast.stmt) -> ast.stmt:
    """A helper class without the methods that its constructor doesn't need; other statements as they are."""
    if not isinstance(node, ast.ClassDef):
        return node
    methods = [_without_docstring(m) for m in _methods(node)]
    body: list[ast.stmt] = [*methods] or [ast.Pass()]
    return ast.ClassDef(
        name=node.name, bases=node.bases, keywords=node.keywords, body=body, decorator_list=node.decorator_list
    )


def _without_docstring(method: ast.FunctionDef) -> ast.FunctionDef:
    body = method.body
    if len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return ast.FunctionDef(
        name=method.name, args=method.args, body=body, decorator_list=method.decorator_list, returns=method.returns,
        type_comment=None, lineno=method.lineno, col_offset=0,
    )  # fmt: skip


def _indent(text: str) -> str:
    return "\n".join("    " + line if line else line for line in text.splitlines())
