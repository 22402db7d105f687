"""What names stand for in a candidate's Python: imports and plain aliases, scope by scope. Nothing is executed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def walk_scope(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of one scope in source order, without the insides of functions, lambdas and classes."""
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def bound_names(body: Sequence[ast.stmt]) -> set[str]:
    """Names that module-level code binds: classes, functions, assignments, imports; inside if, try and with as well."""
    return {name for node in walk_scope(body) for name, _ in _bindings(node)}


def _bindings(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Names that one node binds, with the dotted name that an import gives them."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name, None
    elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield node.id, None
    elif isinstance(node, ast.Import):
        for alias in node.names:
            root = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (root, root)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"


class Scopes:
    """A stack of scopes. A name bound by anything but an import or one plain alias stands for nothing known."""

    def __init__(self) -> None:
        self._stack: list[dict[str, str | None]] = []

    def enter(self, body: Sequence[ast.stmt], parameters: Sequence[str] = ()) -> None:
        """Open the scope of a module or function."""
        self._stack.append(dict.fromkeys(parameters))
        scope, counts, aliases, outer = self._stack[-1], Counter[str](), dict[str, ast.expr](), set[str]()
        for node in walk_scope(body):
            for name, meaning in _bindings(node):
                counts[name] += 1
                scope[name] = meaning if meaning is not None else scope.get(name)
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                aliases[node.targets[0].id] = node.value
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                outer.update(node.names)
        for name in outer:
            scope.pop(name, None)
        for name, value in aliases.items():
            if counts[name] == 1 and name in scope and scope[name] is None:
                scope[name] = self.resolve(value)

    def leave(self) -> None:
        """Close the innermost scope."""
        self._stack.pop()

    def resolve(self, node: ast.AST) -> str | None:
        """The dotted name that an expression stands for, imports followed; None for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root: str | None = node.id
        for scope in reversed(self._stack):
            if node.id in scope:
                root = scope[node.id]
                break
        return None if root is None else ".".join([root, *reversed(parts)])

    def is_module_global(self, name: str) -> bool:
        """Whether ``name``, seen from inside a function, is a name of the module."""
        return len(self._stack) > 1 and name in self._stack[0] and not any(name in s for s in self._stack[1:])


def parameters(node: FunctionNode | ast.Lambda) -> list[str]:
    """Names of a function's parameters."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    return [argument.arg for argument in named]
