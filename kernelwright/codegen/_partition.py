"""Cuts a lowered program into steps: loop nests that are generated, and calls that stay in the library.

Regions grow greedily along producer-consumer edges, in execution order; a merge is kept when it makes no cycle and
the merged values still fit into one loop nest (``_nest.analyse`` decides).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._domain import NotFusible
from kernelwright.codegen._ir import Program, Value, root
from kernelwright.codegen._nest import Expr, Nest, analyse

_CHEAP = 32  # flops per element up to which computing a value again beats writing and reading it, on a GPU
_MANY, _SMALL = 8, 1 << 18  # readers of one element; elements up to which a launch costs more than any work


@dataclass(eq=False)
class Step:
    """One call in the generated forward.

    Attributes:
        kind: ``nest`` (generated loops), the operator of a heavy value (``matmul``, ``conv``, ``pool``, ``scan``,
            ``routine``, ``attention``, ``extern``, ``item``), or ``own_matmul`` and ``own_conv`` (generated ones).
        values: the values that are computed here, in execution order.
        outputs: the values that other steps or the caller need in memory.
        nest: the analysed loops of a generated step.
        alias: outputs that overwrite the result of an earlier step, each with that result.
        epilogue: of a generated product or convolution: the nest that runs on its tiles while they are in cache. Of an
            attention: the nest that runs on its scores.
        bias: of a library product: the vector that the library adds.
        region: the values of a nest with the views between them, for analysing it again.
        body: of a loop: the plan of one step.
        inside: of a loop: whether one kernel runs all steps.
    """

    kind: str
    values: list[Value]
    outputs: list[Value]
    nest: Nest | None = None
    alias: dict[Value, Value] = field(default_factory=dict)
    epilogue: Nest | None = None
    region: set[Value] = field(default_factory=set)
    bias: Value | None = None
    body: Any = None
    inside: bool = False

    @property
    def reads(self) -> set[Value]:
        """Values in memory that the step needs."""
        inside = set(self.values)
        return {root(i) for v in self.values for i in v.inputs} - inside


class KeepInTorch(Exception):
    """A lowered operator fits into no loop nest: lower the graph again, with this node left to torch."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass
class Partition:
    """The steps of a program in execution order, and why values were not fused."""

    steps: list[Step]
    reasons: dict[Value, str]


def partition(program: Program, options: Mapping[str, Any]) -> Partition:
    """Cut a program into steps.

    Args:
        options: ``fusion`` is ``full``, ``rows`` (no total together with its rows) or ``none`` (one kernel each).

    Raises:
        KeepInTorch: a value fits into no loop nest, not even alone.
    """
    return _Partitioner(program, options).run()


class _Partitioner:
    def __init__(self, program: Program, options: Mapping[str, Any]) -> None:
        self.program, self.options = program, options
        self.users: dict[Value, list[Value]] = {v: [] for v in program.values}
        for value in program.values:
            for operand in value.inputs:
                self.users[operand].append(value)
        self.results = {root(o) for o in program.outputs}
        self.order = {v: n for n, v in enumerate(program.values)}
        self.free = self._free_values()
        self.group: dict[Value, set[Value]] = {}
        self.nests: dict[int, Nest] = {}
        self.reasons: dict[Value, str] = {}

    @property
    def _on_gpu(self) -> bool:
        return bool(self.options.get("backend", "cpp") != "cpp")

    def run(self) -> Partition:
        for value in self.program.values:
            if value.is_view or value in self.free or value.op == "leaf":
                continue
            self.group[value] = {value}
            if value.is_fusible:
                self._require(value)
                self._merge_producers(value)
        self._merge_readers()
        return Partition(self._ordered(self._steps()), self.reasons)

    def _free_values(self) -> set[Value]:
        """Values that depend only on constants and positions. They are computed again wherever they are needed."""
        free: set[Value] = set()
        for value in self.program.values:
            made = value.op in ("full", "iota") or (value.is_fusible and not value.is_reduction and bool(value.inputs))
            if made and value.op not in ("gather", "scatter") and all(root(i) in free for i in value.inputs):
                free.add(value)
        needed = [v for v in free if v in self.results or any(self._in_memory(v, u) for u in self._real_users(v))]
        return free - set(needed)

    def _in_memory(self, value: Value, user: Value) -> bool:
        """True where a user needs a value as memory."""
        read = user.op == "gather" or (user.op == "scatter" and len(user.args) > 2)
        return not user.is_fusible or (read and root(user.args[0]) is value)

    def _real_users(self, value: Value) -> Iterable[Value]:
        for user in self.users[value]:
            if user.is_view:
                yield from self._real_users(user)
            else:
                yield user

    def _outputs(self, region: set[Value]) -> list[Value]:
        out = [v for v in region if v in self.results or any(u not in region for u in self._users_beyond_free(v))]
        return sorted(out, key=self.order.__getitem__)

    def _users_beyond_free(self, value: Value) -> Iterable[Value]:
        for user in self._real_users(value):
            if user in self.free:
                yield from self._users_beyond_free(user)
            else:
                yield user

    def _analyse(self, region: set[Value]) -> Nest:
        return analyse(self._full(region), self._outputs(region), self.program.variants)

    def _full(self, region: set[Value]) -> set[Value]:
        """A region with the views and constants that lie between its values."""
        full = set(region)
        stack = [i for v in region for i in v.inputs]
        while stack:
            value = stack.pop()
            if value in full:
                continue
            if value.is_view or value in self.free:
                full.add(value)
                stack.extend(value.inputs)
        return full

    def _require(self, value: Value) -> None:
        try:
            self.nests[id(self.group[value])] = self._analyse({value})
        except NotFusible as error:
            raise KeepInTorch(value.origin[0], str(error)) from error

    def _merge_producers(self, value: Value) -> None:
        if self.options.get("fusion") == "none":
            return
        producers: dict[int, set[Value]] = {}
        for operand in self._inputs_beyond_free(value):
            if operand.is_fusible and operand in self.group:
                producers.setdefault(id(self.group[operand]), self.group[operand])
        for group in sorted(producers.values(), key=lambda g: -max(self.order[v] for v in g)):
            self._try_merge(group, value)

    def _merge_readers(self) -> None:
        """Merge nests that run over the same loops and read the same memory, so that it is read once."""
        if self.options.get("fusion") == "none":
            return
        for value in self.program.values:
            if value not in self.group or not value.is_fusible:
                continue
            mine, before = self.group[value], self.order[value]
            others = {id(g): g for v, g in self.group.items() if v.is_fusible and self.order[v] < before}
            for key, other in others.items():
                if other is not mine and self._run_alike(self.nests[key], self.nests[id(self.group[value])]):
                    self._try_merge(other, value)

    def _run_alike(self, one: Nest, other: Nest) -> bool:
        extreme = any(e.value.op in ("argmax", "argmin") for nest in (one, other) for e in nest.order)
        if not self._on_gpu and (one.mode == "row" or extreme):
            return False  # a nest keeps values between passes over rows in memory of its own
        loops = [[loop.extent for loop in (*nest.outer, *nest.inner)] for nest in (one, other)]
        shapes = {value.shape for nest in (one, other) for value, _, _ in nest.stores}
        shared = set(one.loads()) & set(other.loads())
        return one.mode == other.mode and loops[0] == loops[1] and len(shapes) == 1 and bool(shared)

    def _inputs_beyond_free(self, value: Value) -> Iterable[Value]:
        for operand in value.inputs:
            operand = root(operand)
            if operand in self.free:
                yield from self._inputs_beyond_free(operand)
            else:
                yield operand

    def _try_merge(self, group: set[Value], value: Value) -> None:
        mine = self.group[value]
        if group is mine:
            return
        union = group | mine
        if self._has_cycle(union):
            return
        if self._on_gpu and self._costs_more_twice(group, mine):
            self.reasons[value] = "computed once for many elements"
            return
        try:
            nest = self._analyse(union)
        except NotFusible as error:
            self.reasons[value] = str(error)
            return
        if self.options.get("fusion") == "rows" and nest.has_total and len(nest.outer) > 0 and not nest.chunked:
            return
        for member in union:
            self.group[member] = union
        self.nests[id(union)] = nest

    def _costs_more_twice(self, group: set[Value], readers: set[Value]) -> bool:
        """True where many elements would compute again what one element of a group takes long for."""
        cost = sum(v.cost for v in group if not v.is_reduction)
        made, wanted = (self.nests[id(values)].volume().timed for values in (group, readers))
        return cost > _CHEAP and made * _MANY <= wanted and wanted > _SMALL

    def _has_cycle(self, union: set[Value]) -> bool:
        """True where a path leaves the union and comes back."""
        stack = [u for v in union for u in self._real_users(v) if u not in union]
        seen: set[Value] = set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            for user in self._real_users(value):
                if user in union:
                    return True
                stack.append(user)
        return False

    def _steps(self) -> list[Step]:
        steps, seen = [], set()
        for group in self.group.values():
            if id(group) in seen:
                continue
            seen.add(id(group))
            values = sorted(group, key=self.order.__getitem__)
            if values[0].is_fusible:
                nest = self.nests[id(group)]
                steps.append(Step("nest", values, self._outputs(group), nest, region=self._full(group)))
            elif values[0].op != "second":
                values += [u for u in self.users[values[0]] if u.op == "second"]
                steps.append(Step(values[0].op, values, values, epilogue=values[0].attrs.get("epilogue")))
        return steps

    def _ordered(self, steps: list[Step]) -> list[Step]:
        """The steps in an order in which every value is computed before it is read."""
        made = {v: step for step in steps for v in step.values}
        done: list[Step] = []
        state: dict[Step, int] = {}

        def place(step: Step) -> None:
            if state.get(step):
                return
            state[step] = 1
            for value in sorted(self._needs(step), key=self.order.__getitem__):
                if value in made and made[value] is not step:
                    place(made[value])
            done.append(step)

        for step in sorted(steps, key=lambda s: self.order[s.values[0]]):
            place(step)
        return done

    def _needs(self, step: Step) -> set[Value]:
        needed: set[Value] = set()
        for value in step.values:
            needed |= set(self._inputs_beyond_free(value))
        return needed


def in_place(steps: list[Step], results: Callable[[Value], bool]) -> None:
    """Let nests overwrite the results of earlier steps that no other step reads."""
    readers: dict[Value, int] = {}
    for step in steps:
        for value in step.reads:
            readers[value] = readers.get(value, 0) + 1
    shares = ("extern", "item", "repeat")  # a loop's last state may lie in its collected results, or in an input
    fresh = {v for s in steps if s.kind not in shares for v in s.outputs}
    for step in steps:
        if step.nest is None:
            continue
        last = max((e.stage for e in step.nest.order), default=0)
        for value, expr, position in step.nest.stores:
            if expr.kind == "scatter":
                continue
            others = [e for v, e, _ in step.nest.stores if v is not value]
            for source in step.nest.loads():
                if not _loads(expr, source) and any(_loads(e, source) for e in others):
                    continue  # the others would read the new value; a shared load precedes the store
                spots = {e.position for e in step.nest.order if e.kind == "load" and e.value is source}
                gathers = any(e.kind == "gather" and e.value.args[0] is source for e in step.nest.order)
                guarded = any(e.kind == "load" and e.value is source and e.guards for e in step.nest.order)
                elsewhere = gathers or guarded or results(source)
                mine = source in fresh and readers.get(source) == 1 and not elsewhere
                free = source not in step.alias.values() and value not in step.alias
                if mine and free and spots == {position} and expr.stage == last and _alike(source, value):
                    step.alias[value] = source


def _alike(one: Value, other: Value) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape


def _loads(expr: Expr, source: Value) -> bool:
    """Whether an expression reads a value in memory."""
    seen: set[int] = set()
    stack: list[Any] = [expr]
    while stack:
        one = stack.pop()
        if not isinstance(one, Expr) or id(one) in seen:
            continue
        seen.add(id(one))
        if one.kind == "load" and one.value is source:
            return True
        stack.extend(one.args)
    return False
