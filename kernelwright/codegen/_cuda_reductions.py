"""Passes over the rows or columns of a nest in CUDA: accumulators, what stays in registers between passes, stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.codegen._cuda_math import C_TYPES, STORED_TYPES
from kernelwright.codegen._cuda_threads import ARRAY, ThreadWriter, atom
from kernelwright.codegen._ir import Value
from kernelwright.codegen._nest import Expr, Nest, is_element
from kernelwright.codegen._size import Affine
from kernelwright.codegen._triton_reductions import is_position, lane_type, parts_name
from kernelwright.codegen._triton_tiles import friendly

LANE_TYPES = {"float32": "float", "float64": "double", "int64": "long long", "int32": "int"}
_OPERATORS = {"sum": "kw_sum", "prod": "kw_prod", "amax": "kw_max", "amin": "kw_min", "any": "kw_max", "all": "kw_min",
              "argmax": "kw_first_max", "argmin": "kw_first_min"}  # fmt: skip
_LARGEST = {"int64": "9223372036854775807LL", "int32": "2147483647"}

Store = tuple[Value, Expr, Affine]


def operator_of(expr: Expr) -> str:
    """The structure that combines two values of a reduction."""
    return _OPERATORS[expr.value.op]


def accumulated(expr: Expr, name: str, text: str, mask: str = "") -> str:
    """The statement that combines a value into an accumulator. Values that may come twice need no mask."""
    kind = LANE_TYPES[lane_type(expr)]
    if expr.value.op in ("sum", "prod"):
        sign = "+=" if expr.value.op == "sum" else "*="
        return f"{f'if ({mask}) ' if mask else ''}{name} {sign} {text};"
    if is_position(expr):
        return f"{name} = {operator_of(expr)}::of({name}, {text});"
    return f"{name} = {operator_of(expr)}::of<{kind}>({name}, {text});"


def _identity(expr: Expr) -> str:
    op, kind = expr.value.op, lane_type(expr)
    if op in ("sum", "prod", "any", "all"):
        return "0" if op in ("sum", "any") else "1"
    largest = op in ("amax", "argmax")
    if kind.startswith("float"):
        extreme = "-INFINITY" if largest else "INFINITY"
    else:
        extreme = f"-{_LARGEST[kind]} - 1" if largest else _LARGEST[kind]
    return f"{{{extreme}, 2147483647}}" if is_position(expr) else extreme


def _accumulator_type(expr: Expr) -> str:
    kind = LANE_TYPES[lane_type(expr)]
    return f"kw_place<{kind}>" if is_position(expr) else kind


class PassWriter(ThreadWriter):
    """Writes passes over what a nest reduces.

    Args:
        whole: whether values that later passes need stay in registers.
    """

    columns = False  # whether a thread's neighbours are kept apart by reductions

    def __init__(self, nest: Nest, *, whole: bool = False) -> None:
        super().__init__(nest)
        self.whole = whole
        self.guard = ""  # the condition under which a thread stores elements
        self.first_lane = ""  # the condition that is true in one thread of a row
        self._scratch = False

    def position_in_row(self) -> str:
        """The index along the reduced loops: that of the neighbours' loop, where it is the only one."""
        return "j"

    # ------------------------------------------------------------------------------------------ declarations

    def vectors(self, extent: str, name: str) -> str:
        """Declare the number of vectors that cover an extent; returns its name."""
        self.emit(f"const {self.index} {name} = ({extent} + VECTOR - 1) / VECTOR;")
        return name

    def place(self, pack: str, extent: str) -> None:
        """Declare the first of a thread's neighbours, and how many there are."""
        self.emit(f"const {self.index} column = {pack} * VECTOR;")
        self.emit(f"const int count = {extent} - column < VECTOR ? {extent} - column : VECTOR;")
        self.variables[self.lane_loop] = "column"

    def items(self, most: str, threads: str) -> None:
        """Declare how many vectors of a row a thread has at most, and the arrays of what stays in registers."""
        self.emit(f"constexpr int ITEMS = ({most} + {threads} - 1) / {threads};")
        for expr in self._worth_keeping():
            base = expr.value.name if expr.kind == "load" else friendly(expr.value.name)
            name = self.fresh(f"{base}_kept")
            self.emit(f"{C_TYPES[expr.value.dtype]} {name}[ITEMS][VECTOR];")
            self.kept[expr] = name

    def use_scratch(self) -> None:
        """Declare the shared memory through which threads combine their values, once."""
        if self._scratch:
            return
        self._scratch = True
        reduces = [e for e in self.nest.order if e.kind == "reduce"]
        size = max((8 if lane_type(e).endswith("64") else 4) * (2 if is_position(e) else 1) for e in reduces)
        count = "VECTOR * BLOCK" if self.columns else "BLOCK / 32"
        self.emit(f"__shared__ __align__(16) char scratch[{count} * {size}];")

    def local(self, name: str, kind: str) -> str:
        """An argument that is a variable of ``forward``."""
        self.names_taken.add(name)
        self.locals.append(name)
        self.types[name] = kind
        return name

    # ------------------------------------------------------------------------------------------ registers

    def _roots(self, stage: int) -> list[Expr]:
        reduces, stores = self._of(stage, self.nest.stores)
        return [*(e.args[0] for e in reduces), *(e for _, e, _ in stores)]

    def _of(self, stage: int, stores: Sequence[Store]) -> tuple[list[Expr], list[Store]]:
        """The reductions and the stores of elements in one pass."""
        reduces = [e for e in self.nest.order if e.scope in ("row", "all") and e.args[0].stage == stage]
        return reduces, [s for s in stores if is_element(self.nest, s[1]) and s[1].stage == stage]

    def _worth_keeping(self) -> list[Expr]:
        """The values of an earlier pass that a later one starts from."""
        seen: set[Expr] = set()
        kept: dict[Expr, None] = {}
        for stage in range(max(e.stage for e in self.nest.order) + 1):
            now: set[Expr] = set()
            self._walk(self._roots(stage), seen, now, kept)
            seen |= now
        return list(kept)

    def _walk(self, roots: Sequence[Expr], seen: set[Expr], now: set[Expr], kept: dict[Expr, None]) -> None:
        for expr in roots:
            if expr in now or not is_element(self.nest, expr):
                continue
            now.add(expr)
            if expr in seen and expr.kind != "iota" and self.varies(expr):
                kept.setdefault(expr)
            else:
                self._walk(expr.operands, seen, now, kept)

    # ------------------------------------------------------------------------------------------ passes

    def passes(self, stores: Sequence[Store], opened: Callable[[], None], depth: int) -> None:
        """Write all passes, and the totals of row values."""
        for stage in range(max(e.stage for e in self.nest.order) + 1):
            reduces, elements = self._of(stage, stores)
            if reduces or elements:
                self.hoist([*(e.args[0] for e in reduces), *(e for _, e, _ in elements)])
                self.run(reduces, elements, opened, depth)
            for expr in reduces:
                if expr.scope == "all":
                    self.share(expr, self.texts[expr])
            for expr in self.nest.order:
                if expr.scope == "outer" and expr.args[0].stage == stage:
                    self.hoist([expr.args[0]])
                    self.share(expr, self.value(expr.args[0]), self.first_lane)

    def hoist(self, roots: Sequence[Expr]) -> None:
        """Before the loop of a pass, write the values that it needs and does not change."""
        seen: set[Expr] = set()
        wanted: list[Expr] = []

        def visit(expr: Expr) -> None:
            if expr in seen:
                return
            seen.add(expr)
            if is_element(self.nest, expr):
                for operand in expr.operands:
                    visit(operand)
            elif expr.value.op != "full" and expr not in self.texts:
                wanted.append(expr)

        for root in roots:
            visit(root)
        for expr in wanted:
            if not self.varies(expr):
                self.named(expr)
        self.arrays([expr for expr in wanted if self.varies(expr)])

    def arrays(self, exprs: Sequence[Expr]) -> None:
        """Give values that differ between neighbours arrays of their own."""
        names: dict[Expr, str] = {}
        self.begin_lanes()
        for expr in exprs:
            text = self.value(expr)
            if not ARRAY.fullmatch(text):
                names[expr] = self.fresh(friendly(expr.value.name))
                self.emit(f"{C_TYPES[expr.value.dtype]} {names[expr]}[VECTOR];")
                self.write(f"{names[expr]}[v] = {text};", inside=True)
        self.end_lanes()
        self.texts |= {expr: f"{name}[v]" for expr, name in names.items()}

    def run(self, reduces: Sequence[Expr], stores: Sequence[Store], opened: Callable[[], None], depth: int) -> None:
        """Write one pass: its accumulators, its loops, and what becomes of the accumulators."""
        names = {expr: self.accumulator(expr) for expr in reduces}
        known, taken, walks = dict(self.texts), set(self.names_taken), list(self.walks)
        opened()
        self.begin_lanes()
        for expr, name in names.items():
            self._accumulate(expr, name)
        after = [self._store(*store) for store in stores]
        self.end_lanes()
        for line in filter(None, after):
            self.emit(line)
        for _ in range(depth):
            self.close()
        used = (*self.sizes.arguments.values(), *self.numbers.values(), *self.tensors.values(), *self.locals)
        self.names_taken, self.walks = taken | {*used}, walks
        self.texts = known | {e: f"{name}[item][v]" for e, name in self.kept.items() if e in self.texts or e in known}
        for expr, name in names.items():
            self._finish(expr, name)

    def accumulator(self, expr: Expr) -> str:
        """Declare the accumulator of a reduction."""
        name = self.fresh(f"{friendly(expr.value.name)}_lanes")
        kind, start = _accumulator_type(expr), _identity(expr)
        if not self.columns:
            self.emit(f"{kind} {name} = {start};")
            return name
        self.emit(f"{kind} {name}[VECTOR];")
        self.emit("#pragma unroll")
        self.emit(f"for (int v = 0; v < VECTOR; ++v) {name}[v] = {start};")
        return name

    def _accumulate(self, expr: Expr, name: str) -> None:
        text = self.value(expr.args[0])
        if is_position(expr):
            text = f"{_accumulator_type(expr)}{{{text}, (int)({self.position_in_row()})}}"
        mask = "" if self.columns else "v < count"
        self.write(accumulated(expr, f"{name}[v]" if self.columns else name, text, mask), inside=True)

    def _finish(self, expr: Expr, name: str) -> None:
        """The value of a reduction from its accumulators."""
        self.texts.pop(expr, None)
        if self.columns:
            self.use_scratch()
            self.emit(f"kw_stack<COLUMNS, BLOCK, {operator_of(expr)}>({name}, scratch);")
            text = f"{name}[v]"
            self.texts[expr] = f"(long long){text}.at" if is_position(expr) else text
            self.arrays([expr] if is_position(expr) else [])
        elif expr.scope == "all":
            self.texts[expr] = name  # each thread's own; the block's is shared
        else:
            self.use_scratch()
            self.named_result(expr, f"kw_combine<LANES, {operator_of(expr)}>({name}, scratch)")

    def named_result(self, expr: Expr, text: str) -> None:
        """Name the value of a reduction."""
        if is_position(expr):
            text = f"{text}.at"
        elif expr.value.op in ("any", "all"):
            text = f"{text} != 0"
        name = self.fresh(friendly(expr.value.name))
        self.emit(f"const {C_TYPES[expr.value.dtype]} {name} = {text};")
        self.texts[expr] = name

    def share(self, expr: Expr, text: str, mask: str = "") -> None:
        """Store this block's share of a total, for the kernel that combines the shares."""
        kind = LANE_TYPES[lane_type(expr)]
        place = self.local(parts_name(expr), f"{kind}* __restrict__")
        self.use_scratch()
        conditions = " && ".join(c for c in (self.guard, mask) if c)
        own = f"{conditions} ? ({kind})({text}) : ({kind})({_identity(expr)})" if conditions else text
        name = self.fresh(f"{friendly(expr.value.name)}_share")
        self.emit(f"const {kind} {name} = kw_combine<BLOCK, {operator_of(expr)}, {kind}>({own}, scratch);")
        self.emit(f"if (threadIdx.x == 0) {place}[blockIdx.x] = {name};")

    # ------------------------------------------------------------------------------------------ stores

    def _store(self, value: Value, expr: Expr, position: Affine) -> str:
        """Write what an element's store needs into the loop over the neighbours; returns the store itself."""
        condition = f"if ({self.guard}) " if self.guard else ""
        if expr.kind == "scatter":
            self._add_at(value, expr, position)
            return ""
        if not self.is_contiguous(position):  # one place for all elements: they are all the same
            return f"if (pack == 0) {self.tensor(value)}[{self.position(position) or '0'}] = {self.value(expr)};"
        return f"{condition}kw_store({self._pointer(value, position)}, {self._array(value, expr)}, count);"

    def _add_at(self, value: Value, expr: Expr, position: Affine) -> None:
        """Add values to the places that an index names. What would go beyond the end is left out."""
        at, size = self.named(expr.args[0]), self.sizes.expr(value.shape[value.attrs["dim"]], "places")
        term = expr.args[1]
        text = self.value(term) if isinstance(term, Expr) else self._number(term, value.dtype)
        if (scale := value.attrs["scale"]) != 1:
            text = f"{atom(text)} * {self._number(scale, value.dtype)}"
        step = self.sizes.expr(expr.stride, "step") if expr.stride is not None else "1"
        place = self.place_of(position, at if step == "1" else f"{at} * {step}")
        tests = " && ".join(part for part in (self.guard, "v < count", f"{at} >= 0", f"{at} < {size}") if part)
        address, kind = f"{self.tensor(value)} + {place}", STORED_TYPES[value.dtype]
        if kind == "long long":
            address, kind = f"(unsigned long long*)({address})", "unsigned long long"
        self.write(f"if ({tests}) atomicAdd({address}, ({kind})({text}));", inside=True)

    def _array(self, value: Value, expr: Expr) -> str:
        """The array that holds a value of each neighbour."""
        text = self.value(expr)
        found = ARRAY.fullmatch(text)
        if found is not None:
            return found[1]
        name = self.fresh(f"{self.tensor(value)}_value")
        self.emit(f"{C_TYPES[value.dtype]} {name}[VECTOR];")
        self.write(f"{name}[v] = {text};", inside=True)
        return name

    def store_alone(self, value: Value, expr: Expr, position: Affine, condition: str) -> None:
        """Write a value that has one element per row, or per column."""
        text = ""
        if self.varies(expr):
            self.begin_lanes()
            array = self._array(value, expr)
            self.end_lanes()
            if self.is_contiguous(position):
                self.emit(f"if ({condition}) kw_store({self._pointer(value, position)}, {array}, count);")
                return
            text = f"{array}[0]"  # the loop has one step
        text = text or self.value(expr)
        self.emit(f"if ({condition}) {self.tensor(value)}[{self.position(position) or '0'}] = {text};")
