"""Expressions of a loop nest as C++: names, memory accesses, operators, statements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import C_TYPES, HALVES, POINTWISE, STORED_TYPES, Value
from kernelwright.codegen._names import KernelSizes, atom, literal
from kernelwright.codegen._nest import Expr, Nest, is_element
from kernelwright.codegen._size import Affine, Loop, Size, product

_DOUBLE = {
    "sigmoid": "1.0 / (1.0 + std::exp(-{0}))",
    "silu": "{0} / (1.0 + std::exp(-{0}))",
    "softplus": "(({0} < 0 ? 0.0 : {0}) + std::log1p(std::exp(-std::abs({0}))))",
    "mish": "{0} * std::tanh(({0} < 0 ? 0.0 : {0}) + std::log1p(std::exp(-std::abs({0}))))",
    "gelu": "0.5 * {0} * (1.0 + std::erf({0} * 0.70710678118654752))",
    "gelu_tanh": "{0} / (1.0 + std::exp(-1.5957691216057308 * ({0} + 0.044715 * {0} * {0} * {0})))",
    "exp2": "std::exp2({0})",
    "log2": "std::log2({0})",
    "maximum": "(({0} > {1} || {0} != {0}) ? {0} : {1})",
    "minimum": "(({0} < {1} || {0} != {0}) ? {0} : {1})",
    "remainder": "{0} - std::floor({0} / {1}) * {1}",
}


class ExpressionWriter:
    """Writes expressions, and knows the names of everything in one function.

    Args:
        nest: the analysed region.
        name: the function's name.
        title: what the function does, for its comment.
        alias: outputs that are written over an input of the same size.
        options: structural choices of the schedule.
        form: ``kernel`` for a function of its own. Else a helper that a template calls on a tile in cache: ``row`` for
            one whole row of the nest, ``segment`` for ``count`` elements of a row from ``begin``.
        given: the value whose row (or segment) a helper gets as ``acc``.
    """

    def __init__(
        self,
        nest: Nest,
        name: str,
        title: str,
        alias: Mapping[Value, Value],
        options: Mapping[str, Any],
        form: str = "kernel",
        given: Value | None = None,
    ) -> None:
        self.form, self.given = form, given
        self.nest, self.name, self.title, self.alias, self.options = nest, name, title, dict(alias), options
        self.sizes = KernelSizes()
        self.lines: list[str] = []
        self.depth = 1
        self.texts: dict[Expr, str] = {}
        self.uses = _use_counts(nest)
        self.repeated = _repeated(nest)
        self.tensors: dict[Value, str] = {}
        self.numbers: dict[Any, str] = {}
        self.pointers: dict[tuple[Value, Affine], str] = {}
        self.names_taken: set[str] = set()
        self.cached: dict[Expr, str] = {}
        self.buffers: list[tuple[str, str]] = []
        self.local: dict[Expr, str] = {}
        self.striped = False
        self.total_names: dict[Expr, str] = {}
        self.total_texts: dict[Expr, str] = {}
        self.flags: dict[Expr, str] = {}
        self.counts: dict[Expr, int] = {}
        self.reading: set[Expr] = set()
        self.stage = 0

    def emit(self, text: str) -> None:
        """One line at the current depth; preprocessor lines too."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """A line that opens a block."""
        self.emit(text + " {")
        self.depth += 1

    def close(self) -> None:
        """The end of a block."""
        self.depth -= 1
        self.emit("}")

    def fresh(self, name: str) -> str:
        """A variable name that is not taken in this function."""
        candidate, n = name, 2
        while candidate in self.names_taken:
            candidate, n = f"{name}_{n}", n + 1
        self.names_taken.add(candidate)
        return candidate

    def _tensor(self, value: Value) -> str:
        if value in self.alias:
            value = self.alias[value]
        if value not in self.tensors:
            self.tensors[value] = self.fresh(value.name)
        return self.tensors[value]

    def _name_loops(self) -> None:
        nest = self.nest
        self.outer_vars: dict[Loop, str] = {}
        self.inner_vars: dict[Loop, str] = {}
        labels = ["j"] if len(nest.inner) == 1 else [f"k{n}" for n in range(len(nest.inner) - 1)] + ["j"]
        if nest.mode == "column":
            labels = ["k"] if len(nest.inner) == 1 else [f"k{n}" for n in range(len(nest.inner))]
        for loop, label in zip(nest.inner, labels, strict=True):
            self.inner_vars[loop] = label
            single = "n" if nest.mode == "pointwise" and not nest.outer else "cols"
            if nest.chunked:
                single = "n"
            self.sizes.name(loop.extent, "steps" if nest.mode == "column" else single if label == "j" else "groups")
        if nest.vector is not None and nest.mode == "column":
            self.sizes.name(nest.vector.extent, "width")
        for n, loop in enumerate(nest.outer):
            self.outer_vars[loop] = "row" if len(nest.outer) == 1 else f"i{n}"
            self.sizes.name(loop.extent, "rows" if len(nest.outer) == 1 else f"size{n}")
        self.names_taken |= {*self.inner_vars.values(), *self.outer_vars.values(), "row", "v", "begin", "count", "rows"}
        if nest.mode == "column" and nest.vector is not None:
            self.inner_vars[nest.vector] = "v"

    def _row_pointers(self) -> None:
        """Pointers to the start of a row, for every access that moves along it."""
        nest = self.nest
        accesses: list[tuple[Value, Affine]] = []
        for expr in nest.order:
            if expr.kind in ("load", "gather") and expr.position is not None and is_element(nest, expr):
                accesses.append((expr.value if expr.kind == "load" else expr.value.args[0], expr.position))
        accesses += [(v, p) for v, e, p in nest.stores if is_element(nest, e)]
        column = nest.mode == "column"
        for expr in nest.order if column else []:
            if expr.kind == "load" and expr.position is not None and nest.vector in expr.loops:
                accesses.append((expr.value, expr.position))
        accesses += [(v, p) for v, e, p in nest.stores if column and not is_element(nest, e)]
        written = {self.alias.get(v, v) for v, _, _ in nest.stores}
        for value, position in accesses:
            value = self.alias.get(value, value)
            if (value, position) in self.pointers:
                continue
            if value is self.given:
                self.pointers[value, position] = "acc"
                continue
            base = self._base(position)
            if base:
                name = self.fresh(f"{self._tensor(value)}_row")
                const = "" if value in written else "const "
                self.emit(f"{const}{STORED_TYPES[value.dtype]}* {name} = {self._tensor(value)} + {base};")
                self.pointers[value, position] = name
            else:
                self.pointers[value, position] = self._tensor(value)

    def _base(self, position: Affine) -> str:
        """The part of an index that comes from the outer loops, and from the block or chunk."""
        nest = self.nest
        text = self.sizes.affine(position, self.outer_vars, offset=True)
        if (nest.chunked or nest.mode == "column" or self.form == "segment") and nest.vector is not None:
            factor = self.sizes.expr(position.coefficient(nest.vector))
            if factor != "0":
                step = "begin" if factor == "1" else f"begin * {factor}"
                text = f"{text} + {step}" if text else step
        return text

    def _element(self, value: Value, position: Affine) -> str:
        value = self.alias.get(value, value)
        pointer = self.pointers.get((value, position))
        if pointer is None:
            variables = {**self.outer_vars, **self.inner_vars}
            return f"{self._tensor(value)}[{self.sizes.affine(position, variables, offset=True) or '0'}]"
        return f"{pointer}[{self.sizes.affine(position, self.inner_vars, offset=False) or '0'}]"

    def _statements(self, exprs: list[Expr]) -> None:
        for expr in exprs:
            self._statement(expr, self.uses[expr])

    def _statement(self, expr: Expr, uses: int = 2) -> None:
        text = self._compose(expr)
        if expr.value.op == "full" and expr.kind == "op":
            self.texts[expr] = text
            return
        if expr in self.repeated and not re.fullmatch(r"\w+", text):
            self._bind(expr, text)
            return
        limit = 44 if expr.kind == "op" else 60
        ternary = "?" in text and expr.kind == "op"
        squares = expr.value.op == "square" and expr.kind == "op"
        if (uses <= 1 and len(text) <= limit and not ternary and not squares) or (
            expr.kind in ("load", "iota") and is_element(self.nest, expr) and uses <= 1
        ):
            self.texts[expr] = text
        else:
            self._bind(expr, text)

    def _bind(self, expr: Expr, text: str) -> None:
        base = expr.value.name if expr.kind != "load" else f"{expr.value.name}_value"
        name = base if base not in self.names_taken else self.fresh(base)
        self.names_taken.add(name)
        self.emit(f"const {ctype(expr)} {name} = {text};")
        self.texts[expr] = name

    def _text(self, expr: Expr) -> str:
        if expr not in self.texts:
            self.texts[expr] = self._compose(expr)
        return self.texts[expr]

    def _compose(self, expr: Expr) -> str:
        """The C++ expression of a value from its operands' texts."""
        value = expr.value
        if expr.kind == "load" and expr.position is not None:
            text = self._element(value, expr.position)
            return text if value is self.given else self._guarded(expr, _loaded(text, value.dtype))
        if expr.kind == "iota" and expr.position is not None:
            text = self._walked(expr.position)
            return f"(int64_t)({text})" if text == "0" else text
        if expr.kind == "inside" and expr.position is not None:
            text = atom(self._walked(expr.position))
            tests = [f"{text} {sign} {self.sizes.expr(size, 'edge')}"
                     for sign, size in zip((">=", "<"), expr.bounds, strict=True) if size is not None]  # fmt: skip
            return " && ".join(tests)
        if expr.kind == "gather" and expr.position is not None and expr.stride is not None:
            at = f"{atom(self._text(expr.args[0]))}"
            step = self.sizes.expr(expr.stride)
            along = at if step == "1" else f"{at} * {step}"
            element = self._element(value.args[0], expr.position)
            head, inside = element[: element.index("[")], element[element.index("[") + 1 : -1]
            text = f"{head}[{along}]" if inside == "0" else f"{head}[{inside} + {along}]"
            return self._guarded(expr, _loaded(text, value.dtype))
        if value.op == "full":
            return self._number(value.args[0], value.dtype)
        return self._operation(expr)

    def _walked(self, position: Affine) -> str:
        """A position as text, also of an element in a block or chunk."""
        text = self.sizes.affine(position, {**self.outer_vars, **self.inner_vars}, offset=True) or "0"
        part = self.nest.mode == "column" or self.nest.chunked or self.form == "segment"
        if self.nest.vector in position.loops and part:
            text = f"{text} + begin * {self.sizes.expr(position.coefficient(self.nest.vector))}"
        return text

    def _guarded(self, expr: Expr, text: str) -> str:
        """What is read of memory, only where it may be read."""
        if not expr.guards:
            return text
        return f"({' && '.join(atom(self._text(g)) for g in expr.guards)} ? {text} : 0)"

    def _operation(self, expr: Expr) -> str:
        value = expr.value
        dtypes = [a.value.dtype for a in expr.operands]
        compute = value.dtype if value.dtype != "bool" else (dtypes or ["float32"])[0]
        if value.op == "cast":
            source = expr.args[0]
            text = atom(self._text(source))
            if value.dtype in HALVES and any(expr in other.operands for other in self.nest.order):
                return f"{STORED_TYPES[value.dtype]}::rounded({text})"  # a store alone rounds by itself
            return f"{text} != 0" if value.dtype == "bool" else f"({C_TYPES[value.dtype]}){text}"
        template = POINTWISE[value.op]
        if compute == "float64":
            template = _DOUBLE.get(value.op, re.sub(r"(\d)f\b", r"\1", template).replace("kw_", "std::"))
        texts = []
        for arg in expr.args:
            if isinstance(arg, Expr):
                texts.append(self._converted(arg, value, compute))
            else:
                texts.append(self._number(arg, compute))
        bare = re.fullmatch(r"[\w:]+\(\{0\}(, \{1\})?\)", template)
        return template.format(*(t if bare else atom(t) for t in texts))

    def _converted(self, arg: Expr, value: Value, compute: str) -> str:
        text = self._text(arg)
        boolean_context = value.op in ("where", "and", "or", "xor", "not", "copy")
        if C_TYPES[arg.value.dtype] == C_TYPES[compute] or boolean_context or arg.value.dtype == "bool":
            return text if arg.value.dtype != "bool" or boolean_context else f"({C_TYPES[compute]}){atom(text)}"
        return f"({C_TYPES[compute]}){atom(text)}"

    def _number(self, number: Any, dtype: str) -> str:
        if isinstance(number, (Scalar, Size)):
            varies = len(set(number.values)) > 1
            if varies and isinstance(number, Size):
                return f"({C_TYPES[dtype]}){atom(self.sizes.expr(number, 'count'))}"
            if varies:
                if number not in self.numbers:
                    self.numbers[number] = self.fresh("factor")
                return self.numbers[number]
            number = number.values[0]
        return literal(number, dtype)

    def _store(self, stores: list[tuple[Value, Expr, Affine]]) -> None:
        column = self.nest.mode == "column"
        for value, expr, position in stores:
            whole = column and not is_element(self.nest, expr)
            if whole:
                self.open("for (int64_t v = 0; v < count; ++v)")
            self.emit(f"{self._element(value, position)} = {self._text(expr)};")
            if whole:
                self.close()

    def _level_statements(self, wanted: Any) -> None:
        self._statements([e for e in self.nest.order if e.kind != "reduce" and wanted(e)])

    def _work(self) -> str:
        parts = []
        for loop in (*self.nest.outer, *self.nest.inner, *([self.nest.vector] if self.nest.mode == "column" else [])):
            if loop is not None:
                parts.append(self.sizes.expr(loop.extent, "extent"))
        numbers = [int(p) for p in parts if p.isdigit()]
        names = [p for p in parts if not p.isdigit()]
        constant = 1
        for number in numbers:
            constant *= number
        return " * ".join(([str(constant)] if constant != 1 or not names else []) + names)

    def _rows_extent(self) -> str:
        total = product([lp.extent for lp in self.nest.outer], self.nest.variants)
        return self.sizes.expr(total, "rows")

    def _limit(self) -> str:
        """The number of iterations of the vector loop."""
        nest = self.nest
        part = nest.chunked or nest.mode == "column" or self.form == "segment"
        return "count" if part else self.sizes.expr(nest.inner[-1].extent)


def _loaded(text: str, dtype: str) -> str:
    """An element of memory in the type that it is computed with."""
    if dtype == "bool":
        return f"({text} != 0)"
    return f"(float){text}" if dtype in HALVES else text


def ctype(expr: Expr) -> str:
    return C_TYPES[expr.value.dtype]


def _use_counts(nest: Nest) -> dict[Expr, int]:
    counts = dict.fromkeys(nest.order, 0)
    for expr in nest.order:
        for operand in expr.operands:
            counts[operand] += 2 if is_element(nest, expr) and not is_element(nest, operand) else 1
    for _, expr, _ in nest.stores:
        counts[expr] += 1
    return counts


def _repeated(nest: Nest) -> set[Expr]:
    """Operands that get a name of their own, because a consumer writes them twice or selects between them.

    A load inside a branch of a selection would become a masked load, and the loop would not be vectorised.
    """
    found: set[Expr] = set()
    for expr in nest.order:
        if expr.kind == "op" and expr.value.op in POINTWISE:
            template = POINTWISE[expr.value.op]
            for position, arg in enumerate(expr.args):
                twice = template.count(f"{{{position}}}") > 1 or (expr.value.op == "where" and position > 0)
                if isinstance(arg, Expr) and twice:
                    found.add(arg)
    return found
