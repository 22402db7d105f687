"""Loops whose step is one nest, as one Triton kernel: a program runs all steps for its rows, states in registers."""

from __future__ import annotations

from typing import NamedTuple

from kernelwright.codegen._graph import Repeat
from kernelwright.codegen._ir import Value, root
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Expr, Nest
from kernelwright.codegen._partition import Step
from kernelwright.codegen._size import Affine, Size, product
from kernelwright.codegen._triton_nest import fits_whole, power_of_two
from kernelwright.codegen._triton_reductions import ReductionWriter
from kernelwright.codegen._triton_tiles import Axis, Kernel

_LAUNCH = {"STAGES": "LOOP_STAGES", "num_warps": "LOOP_WARPS"}


class _State(NamedTuple):
    """A state of the loop: its leaf, its next value, and where both lie."""

    leaf: Value
    following: Expr
    position: Affine


def runs_inside(step: Step) -> bool:
    """Whether one kernel can run all steps: each program needs only the states that it has computed itself."""
    plan = step.body
    if len(plan.steps) != 1 or plan.steps[0].nest is None:
        return False
    nest: Nest = plan.steps[0].nest
    whole = nest.mode == "pointwise" or (nest.mode == "row" and fits_whole(nest) and not nest.chunked)
    shared = any(e.final or e.scope in ("all", "outer") or e.kind == "scatter" for e in nest.order)
    stored = {value for value, _, _ in nest.stores}
    outputs = all(root(o) in stored and _in_order(o) for o in plan.program.outputs)
    return whole and not shared and outputs and _states(step) is not None


def _in_order(value: Value) -> bool:
    """Whether a view has its elements in the order of memory."""
    while value.is_view:
        if value.op != "reshape":
            return False
        value = value.args[0]
    return True


def _states(step: Step) -> list[_State] | None:
    """The states of a loop; None if one is read at a place where another program computes it."""
    loop: Repeat = step.values[0].attrs["repeat"]
    plan = step.body
    nest: Nest = plan.steps[0].nest
    leaves = {v.attrs["target"]: v for v in plan.program.values if v.op == "leaf"}
    found = []
    for number, output in loop.carried:
        leaf = leaves.get(loop.step.inputs[number].target)
        stores = [(e, p) for v, e, p in nest.stores if v is root(plan.program.outputs[output])]
        if leaf is None or not stores:
            return None
        following, position = stores[0]
        loads = [e for e in nest.order if e.kind == "load" and e.value is leaf]
        gathered = any(e.kind == "gather" and e.value.args[0] is leaf for e in nest.order)
        if gathered or any(e.position != position or e.guards for e in loads) or following.loops != position.loops:
            return None
        found.append(_State(leaf, following, position))
    return found


def loop_kernel(step: Step, name: str, title: str, variants: int) -> Kernel:
    """The kernel of a loop for which :func:`runs_inside` holds."""
    return _LoopWriter(step, variants).kernel(name, title)


class _LoopWriter:
    def __init__(self, step: Step, variants: int) -> None:
        self.value, self.variants = step.values[0], variants
        self.results = {v.attrs.get("index", 0): v for v in step.values}
        self.loop: Repeat = self.value.attrs["repeat"]
        self.program = step.body.program
        self.nest: Nest = step.body.steps[0].nest
        self.states = _states(step) or []
        self.row = self.nest.mode == "row"
        if self.row:
            self.axes = [Axis("row", self.nest.outer, "[:, None]"), Axis("column", self.nest.inner, "[None, :]")]
        else:
            self.axes = [Axis("at", [*self.nest.outer, *self.nest.inner])]
        given = {state.leaf: f"{state.leaf.name}_value" for state in self.states}
        self.writer = ReductionWriter(self.nest, self.axes, given=given, fill=True)
        if self.row:
            self.writer.along, self.writer.keep = 1, ", keep_dims=True"
        self.arguments: list[Argument] = []
        self.moves: list[tuple[str, str]] = []  # pointers that move on with each step, and how far

    def kernel(self, name: str, title: str) -> Kernel:
        """The whole kernel."""
        writer = self.writer
        self._name_tensors()
        if self.row:
            writer.declare(self.axes[0], f"{writer.program()} * ROWS", "ROWS", "rows")
            writer.declare(self.axes[1], "0", "BLOCK", "cols")
        else:
            writer.declare(self.axes[0], f"{writer.program()} * BLOCK", "BLOCK")
        self._begin()
        # Loads of the next steps begin early: else each step waits for memory.
        writer.open(f"for step in tl.range(0, {writer.sizes.expr(self.loop.steps, 'count')}, num_stages=STAGES):")
        self._step()
        writer.close()
        for number, state in enumerate(self.states):
            result = self.results.get(self.loop.stacked + number)
            if result is not None:
                pointer = self._argument(f"{state.leaf.name}_last", result)
                self._store(pointer, state)
        arguments = [*self.arguments, *(a for a in writer.arguments() if a.kind != "tensor")]
        text = writer.function(name, title, ["ROWS", "BLOCK", "STAGES"] if self.row else ["BLOCK", "STAGES"], arguments)
        if not self.row:
            sizes = {"n": self.nest.volume()}
            meta = {"BLOCK": "LOOP_TILE", **_LAUNCH}
            return Kernel(name, text, arguments, "triton.cdiv({n}, LOOP_TILE)", meta, sizes)
        sizes = {axis: self.axes[n].extent(self.variants) for n, axis in enumerate(("count", "length"))}
        setup = [f"block = {power_of_two(sizes['length'], 'length')}", "tile_rows = max(1, LOOP_TILE // block)"]
        meta = {"ROWS": "tile_rows", "BLOCK": "block", **_LAUNCH}
        return Kernel(name, text, arguments, "triton.cdiv({count}, tile_rows)", meta, sizes, setup)

    def _argument(self, name: str, value: Value) -> str:
        self.arguments.append(Argument("tensor", self.writer.fresh(name), value))
        return self.arguments[-1].name

    def _name_tensors(self) -> None:
        """Arguments for all memory. Slices, and collected results, have pointers that move on with the steps."""
        leaves = {v.attrs["target"]: v for v in self.program.values if v.op == "leaf"}
        taken = {n: (start, stride) for n, start, stride in self.loop.taken}
        for number, item in enumerate(self.loop.step.inputs):
            leaf = leaves.get(item.target)
            if leaf is None:
                continue
            numel = product(leaf.shape, self.variants)
            if number in taken:
                start, stride = taken[number]
                self._moving(leaf, leaf.name, self.value.args[number], start * numel, stride * numel)
            else:
                begun = leaf in self.writer.given
                name = self._argument(f"{leaf.name}_first" if begun else leaf.name, self.value.args[number])
                self.writer.tensors[leaf] = name
        for number in range(self.loop.stacked):
            value = root(self.program.outputs[number])
            if number in self.results:
                numel = product(value.shape, self.variants)
                self._moving(value, f"{value.name}_out", self.results[number], numel * 0, numel)

    def _moving(self, value: Value, name: str, argument: Value, start: Size, stride: Size) -> None:
        whole = self._argument(f"{name}_all", argument)
        pointer = self.writer.tensors[value] = self.writer.fresh(name)
        begin = "" if start.equals(0) else f" + {self.writer.sizes.expr(start, 'begin')}"
        self.writer.emit(f"{pointer} = {whole}{begin}")
        self.moves.append((pointer, self.writer.sizes.expr(stride, "length")))

    def _begin(self) -> None:
        """Load the states, and what is the same in all steps."""
        writer = self.writer
        for state in self.states:
            begun = Expr("load", state.leaf, position=state.position, loops=state.position.loops)
            text = writer.load(state.leaf, state.position, begun)
            writer.emit(f"{writer.given[state.leaf]} = {text}")
        moving = {pointer for pointer, _ in self.moves}
        for expr in self.nest.order:
            same = expr.kind == "load" and expr.value not in writer.given and not expr.guards
            if same and writer.tensors.get(expr.value) not in moving:
                writer.named(expr)

    def _step(self) -> None:
        writer = self.writer
        for expr in self.nest.order:
            if expr.kind == "reduce":
                writer.reduce_tile(expr, self.axes[1].inside)
        stacked = {root(self.program.outputs[n]) for n in range(self.loop.stacked) if n in self.results}
        for value, expr, position in self.nest.stores:
            if value in stacked:
                writer.store(value, expr, position)
        for state in self.states:
            writer.texts[state.following] = writer.named(state.following)
        for state in self.states:
            writer.emit(f"{writer.given[state.leaf]} = {writer.texts[state.following]}")
        for pointer, stride in self.moves:
            writer.emit(f"{pointer} += {stride}")

    def _store(self, pointer: str, state: _State) -> None:
        writer = self.writer
        mask = writer.mask(state.position.loops)
        place = writer.position(state.position)
        target = f"{pointer} + {place}" if place else pointer
        writer.emit(f"tl.store({target}, {writer.given[state.leaf]}{f', mask={mask}' if mask else ''})")
