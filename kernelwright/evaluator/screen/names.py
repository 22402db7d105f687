"""Resolves names in a candidate's Python through imports and plain aliases, scope by scope. Nothing is executed."""

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
    """Names that one node binds, each with its dotted name if it is imported, else None."""
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
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name is not None:
        yield node.name, None
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest, None


class Scopes:
    """A stack of scopes. A name resolves only if an import or one plain alias binds it."""

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
        """The dotted name of an expression, with imports followed; None if it has none.

        ``getattr`` with a literal name, ``sys.modules["x"]`` and ``importlib.import_module("x")`` are followed too.
        """
        parts: list[str] = []
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
                continue
            called = self._written(node.func) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and called == "getattr" and _literal(node.args, 1):
                parts.append(_literal(node.args, 1))
                node = node.args[0]
                continue
            module = ""
            if isinstance(node, ast.Call) and called in ("importlib.import_module", "__import__"):
                module = _literal(node.args, 0)
            elif isinstance(node, ast.Subscript) and self._written(node.value) == "sys.modules":
                module = _literal([node.slice], 0)
            return ".".join([module, *reversed(parts)]) if module else None
        root = self._meaning(node.id)
        return None if root is None else ".".join([root, *reversed(parts)])

    def _written(self, node: ast.AST) -> str | None:
        """The dotted name of a chain of attributes on a name; None for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = self._meaning(node.id) if isinstance(node, ast.Name) else None
        return None if root is None else ".".join([root, *reversed(parts)])

    def _meaning(self, name: str) -> str | None:
        return next((scope[name] for scope in reversed(self._stack) if name in scope), name)

    def is_module_global(self, name: str) -> bool:
        """Whether ``name``, seen from inside a function, is a name of the module."""
        return len(self._stack) > 1 and name in self._stack[0] and not any(name in s for s in self._stack[1:])


def _literal(arguments: Sequence[ast.expr], position: int) -> str:
    """The string literal at a position, or an empty string."""
    if position >= len(arguments):
        return ""
    argument = arguments[position]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def parameters(node: FunctionNode | ast.Lambda) -> list[str]:
    """Names of a function's parameters."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    return [argument.arg for argument in named]
