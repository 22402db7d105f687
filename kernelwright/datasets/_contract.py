"""Reads a problem file without running it: syntax, the KernelBench contract, and the literal ``PROBLEM`` metadata."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pydantic import ValidationError

from kernelwright.errors import InvalidReferenceError
from kernelwright.records import Problem, ProblemMeta

MAX_SOURCE_CHARS = 8_000_000

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class _Fault(Exception):
    def __init__(self, line: int | None, message: str, hint: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.hint = hint


def parse_problem(
    source: str, *, id: str, suite: str, level: int, name: str, number: int | None = None, path: str | None = None
) -> Problem:
    """Make a :class:`Problem` from the text of a problem file. The check is static: nothing is executed.

    The file must be valid Python. It has a class ``Model``, whose ``forward`` returns something, and functions
    ``get_inputs`` and ``get_init_inputs``, which take no arguments. ``PROBLEM`` is optional: a literal dict with the
    fields of :class:`ProblemMeta`. In it, ``"inf"`` and ``"-inf"`` stand for infinities, variants set only constants
    that the file assigns, and inputs are parameters of ``forward``.

    Raises:
        InvalidReferenceError: the file breaks the contract. The line is in the message and in ``data["line"]``.
    """
    try:
        meta = _read(source)
    except _Fault as fault:
        where = f"{path or id}{'' if fault.line is None else f', line {fault.line}'}"
        raise InvalidReferenceError(
            f"{where}: {fault.message}", hint=fault.hint, problem=id, line=fault.line, stage="parse"
        ) from None
    return Problem(id=id, suite=suite, level=level, name=name, number=number, source=source, meta=meta, path=path)


def module_constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names assigned at module level, each with the expression of its last assignment."""
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = list(node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        assert node.value is not None
        for target in targets:
            elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            constants.update({element.id: node.value for element in elements if isinstance(element, ast.Name)})
    return constants


def find_forward(tree: ast.Module) -> ast.FunctionDef | None:
    """The ``forward`` method defined in class ``Model``, or None if it is inherited."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "forward":
                    return item
    return None


def own_nodes(function: _FunctionNode) -> Iterator[ast.AST]:
    """All nodes of a function's body, except those inside nested functions and classes."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(node))


def _read(source: str) -> ProblemMeta:
    tree = _parse(source)
    constants = module_constants(tree)
    _check_model(tree, constants)
    for name in ("get_inputs", "get_init_inputs"):
        _check_maker(tree, constants, name)
    node = constants.get("PROBLEM")
    if node is None:
        return ProblemMeta()
    meta = _read_meta(node)
    _check_variants(node, meta, constants)
    _check_inputs(node, meta, find_forward(tree))
    return meta


def _parse(source: str) -> ast.Module:
    if len(source) > MAX_SOURCE_CHARS:
        raise _Fault(None, f"the file has more than {MAX_SOURCE_CHARS:,} characters", "move data out of the file")
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise _Fault(error.lineno, f"not valid Python: {error.msg}", "correct the syntax of this line") from None
    except (ValueError, RecursionError, MemoryError) as error:
        what = str(error) or type(error).__name__
        raise _Fault(None, f"not readable as Python: {what}", "give a plain Python source file") from None


def _check_model(tree: ast.Module, constants: dict[str, ast.expr]) -> None:
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None:
        if "Model" in constants or _imports(tree, "Model"):
            return
        raise _Fault(1, "no class Model", "define `class Model(nn.Module)` with the reference in its forward")
    if not model.bases:
        raise _Fault(model.lineno, "Model is not a torch.nn.Module", "write `class Model(nn.Module):`")
    forward = find_forward(tree)
    if forward is None:
        if [_dotted(base) for base in model.bases] in (["nn.Module"], ["torch.nn.Module"], ["Module"]):
            raise _Fault(model.lineno, "Model has no forward", "define `def forward(self, ...)` in Model")
    elif not _returns_value(forward):
        raise _Fault(forward.lineno, "forward returns nothing", "return the output tensor (or a tuple of tensors)")


def _dotted(node: ast.expr) -> str:
    """A dotted name as written; empty for any other expression. It handles any depth of nesting."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _check_maker(tree: ast.Module, constants: dict[str, ast.expr], name: str) -> None:
    function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
    if function is None:
        if name in constants or _imports(tree, name):
            return
        purpose = "the list of forward's arguments" if name == "get_inputs" else "Model's constructor arguments, or []"
        raise _Fault(1, f"no function {name}()", f"define `def {name}():` that returns {purpose}")
    required = len(function.args.posonlyargs) + len(function.args.args) - len(function.args.defaults)
    if required > 0:
        raise _Fault(function.lineno, f"{name} requires arguments", "read sizes from module-level constants instead")
    if not _returns_value(function):
        raise _Fault(function.lineno, f"{name} returns nothing", f"return a list from {name}")


def _imports(tree: ast.Module, name: str) -> bool:
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return any(name == (alias.asname or alias.name) for node in imports for alias in node.names)


def _returns_value(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, (ast.Yield, ast.YieldFrom))
        or (
            isinstance(node, ast.Return)
            and node.value is not None
            and not (isinstance(node.value, ast.Constant) and node.value.value is None)
        )
        for node in own_nodes(function)
    )


def _read_meta(node: ast.expr) -> ProblemMeta:
    try:
        literal = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _Fault(
            _first_non_literal(node),
            "PROBLEM is not a literal",
            'use only numbers, strings, lists and dicts in PROBLEM; write infinities as "inf" and "-inf"',
        ) from None
    if not isinstance(literal, dict) or not all(isinstance(key, str) for key in literal):
        raise _Fault(node.lineno, "PROBLEM is not a dict with string keys", "write `PROBLEM = {...}`")
    try:
        return ProblemMeta.model_validate(literal)
    except ValidationError as error:
        _raise_invalid_field(node, error)


def _raise_invalid_field(node: ast.expr, error: ValidationError) -> NoReturn:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        message, hint = f"PROBLEM has an unknown field {where}", f"fields are: {', '.join(ProblemMeta.model_fields)}"
    else:
        message, hint = f"PROBLEM field {where}: {first['msg']}", "correct this field, or leave it out"
    raise _Fault(_locate(node, first["loc"]), message, hint) from None


def _locate(node: ast.AST, path: Sequence[Any]) -> int | None:
    """The line of the entry of a literal at a path of keys and indices, or of the last entry on that path."""
    line = getattr(node, "lineno", None)
    for step in path:
        if isinstance(node, ast.Dict):
            pairs = [(k, v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)]
            entry = next(((k, v) for k, v in pairs if k.value == step), None)
            if entry is None:
                break
            line, node = entry[0].lineno, entry[1]
        elif isinstance(node, (ast.List, ast.Tuple)) and isinstance(step, int) and step < len(node.elts):
            node = node.elts[step]
            line = getattr(node, "lineno", line)
        else:
            break
    return line


def _first_non_literal(node: ast.expr) -> int:
    literal = (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.UnaryOp, ast.unaryop, ast.expr_context)
    for inner in ast.walk(node):
        if not isinstance(inner, literal):
            return getattr(inner, "lineno", node.lineno)
    return node.lineno


def _check_variants(node: ast.expr, meta: ProblemMeta, constants: dict[str, ast.expr]) -> None:
    for device_class, variants in meta.variants.items():
        for position, variant in enumerate(variants):
            for name in variant:
                if name not in constants or name == "PROBLEM":
                    line = _locate(node, ("variants", device_class, position, name))
                    message = f"a {device_class} variant sets {name}, which the file does not assign"
                    raise _Fault(line, message, f"assign `{name} = ...` at module level, or drop it from the variant")


def _check_inputs(node: ast.expr, meta: ProblemMeta, forward: ast.FunctionDef | None) -> None:
    if forward is None or forward.args.vararg is not None:
        return
    parameters = [a.arg for a in (*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs)][1:]
    for name in meta.inputs:
        if name not in parameters:
            line = _locate(node, ("inputs", name))
            message = f"PROBLEM describes an input {name}, which forward does not take"
            raise _Fault(line, message, f"forward takes: {', '.join(parameters) or 'nothing'}")
