"""Decides which element values are kept between the passes over a row, and where. The others are computed again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import partial

from kernelwright.codegen._expressions import ExpressionWriter, ctype
from kernelwright.codegen._ir import HALVES, Value
from kernelwright.codegen._nest import Expr, Nest, is_element
from kernelwright.codegen._size import Affine, Loop, product


class KeepingWriter(ExpressionWriter):
    """Adds the element values of a pass: it plans and keeps them, and writes them inside their innermost loop."""

    def _plan_cache(self) -> None:
        """Decide which element values are kept between passes rather than computed again."""
        nest = self.nest
        if nest.mode == "pointwise" or self.options.get("scratch") == "recompute":
            return
        computed: set[Expr] = set()
        kept: list[Expr] = []
        for stage in range(max(e.stage for e in nest.order) + 1):
            roots = [e.args[0] for e in nest.order if e.kind == "reduce" and e.args[0].stage == stage]
            roots += [e for _, e, _ in nest.stores if e.stage == stage]
            stack = [r for r in roots if is_element(nest, r)]
            seen: set[Expr] = set()
            while stack:
                expr = stack.pop()
                if expr in seen:
                    continue
                seen.add(expr)
                if expr in computed and expr.kind == "op" and _heavy(nest, expr):
                    if expr not in kept:
                        kept.append(expr)
                    continue
                stack += [o for o in expr.operands if is_element(nest, o)]
            computed |= seen
        for expr in kept:
            self._give_place(expr)

    def _give_place(self, expr: Expr) -> None:
        nest = self.nest
        for value, stored, position in nest.stores:
            holders = [e for e, place in self.cached.items() if place == f"store:{value.name}"]
            taken = any(self._needed_after(expr.stage, partial(operator.is_, h), {*self.cached, expr}) for h in holders)
            fits = (
                value.dtype == expr.value.dtype
                and value.dtype not in HALVES
                and is_element(nest, stored)
                and self._overwritable(value, expr)
            )
            if fits and not taken and stored is not expr and stored.stage > expr.stage and self._whole_row(position):
                self.cached[expr] = f"store:{value.name}"
                return
        if nest.chunked:
            return
        name = self.fresh(f"{expr.value.name}_kept")
        loops = [lp.extent for lp in nest.inner]
        size = self.sizes.expr(product(loops, nest.variants), "cols")
        size = f"{size} * BLOCK" if nest.mode == "column" else size
        self.buffers.append((f"std::vector<{ctype(expr)}> {name}({size});", name))
        self.cached[expr] = f"buffer:{name}"

    def _overwritable(self, value: Value, expr: Expr) -> bool:
        """True where an output's memory is free once ``expr`` is known: no later pass reads its old content."""
        source = self.alias.get(value)
        if source is None:
            return True
        kept = {*self.cached, expr}
        return not self._needed_after(expr.stage, lambda e: e.kind == "load" and e.value is source, kept)

    def _needed_after(self, stage: int, wanted: Callable[[Expr], bool], kept: Collection[Expr] | None = None) -> bool:
        """True where a pass after ``stage`` still needs an expression for which ``wanted`` is true."""
        stack = [e.args[0] for e in self.nest.order if e.kind == "reduce" and e.args[0].stage > stage]
        stack += [e for _, e, _ in self.nest.stores if e.stage > stage]
        while stack:
            current = stack.pop()
            if wanted(current):
                return True
            if current not in (self.cached if kept is None else kept) and is_element(self.nest, current):
                stack += current.operands
        return False

    def _whole_row(self, position: Affine) -> bool:
        """True where every element of the row's work has its own place at ``position``."""
        return all(any(position.coefficient(lp).values) or lp.extent.equals(1) for lp in self.nest.inner)

    def _place(self, expr: Expr) -> str:
        """The lvalue of a kept value."""
        kind, name = self.cached[expr].split(":")
        if kind == "store":
            value, _, position = next(s for s in self.nest.stores if s[0].name == name)
            return self._element(value, position)
        strides = self._kept_strides()
        index = " + ".join(v if s == "1" else f"{v} * {s}" for v, s in strides)
        return f"{name}[{index}]"

    def _kept_strides(self) -> list[tuple[str, str]]:
        loops, out = self.nest.inner, []
        if self.nest.mode == "column":
            out = [("v", "1")]
        for n, loop in enumerate(loops):
            stride = self.sizes.expr(product([lp.extent for lp in loops[n + 1 :]], self.nest.variants))
            if self.nest.mode == "column":
                stride = "BLOCK" if stride == "1" else f"{stride} * BLOCK"
            out.append((self.inner_vars[loop], stride))
        return out

    def _plan_elements(self, roots: list[Expr], stage: int, *, again: bool = False) -> None:
        """Find the element values that a pass needs, and which of them were kept by an earlier one."""
        nest = self.nest
        self.stage = stage
        self.reading = {e for e in self.cached if e.stage < stage or again}
        self.counts = {}
        stack = [r for r in roots if is_element(nest, r)]
        for root in stack:
            self.counts[root] = self.counts.get(root, 0) + 1
        seen: set[Expr] = set()
        while stack:
            expr = stack.pop()
            if expr in seen or expr in self.reading:
                continue
            seen.add(expr)
            for operand in expr.operands:
                if is_element(nest, operand):
                    self.counts[operand] = self.counts.get(operand, 0) + 1
                    stack.append(operand)

    def _elements_at(self, loop: Loop | None) -> None:
        """Statements for the values that are known once ``loop`` runs, operands first."""
        nest = self.nest
        levels = [*nest.inner, nest.vector] if nest.mode == "column" else nest.inner
        level = next(n for n, known in enumerate(levels) if known is loop)
        for expr in nest.order:
            if expr not in self.counts or max(n for n, lp in enumerate(levels) if lp in expr.loops) != level:
                continue
            if expr in self.reading:
                self.texts[expr] = self._place(expr)
                if self.counts[expr] > 1:
                    self._bind(expr, self.texts[expr])
            elif expr in self.cached and expr.stage == self.stage:
                self._bind(expr, self._compose(expr))
                self.emit(f"{self._place(expr)} = {self.texts[expr]};")
            else:
                self._statement(expr, self.counts[expr])


def _heavy(nest: Nest, expr: Expr) -> bool:
    """True where computing the value again costs more than keeping it: 8 flops, or two streams from memory."""
    cost, loads = 0, 0
    stack, seen = [expr], set()
    while stack:
        current = stack.pop()
        if current in seen or not is_element(nest, current):
            continue
        seen.add(current)
        cost += current.value.cost if current.kind == "op" else 0
        loads += current.kind == "load" and nest.vector in current.loops and len(current.loops) > 1
        stack += current.operands
    return cost >= 8 or loads >= 2
