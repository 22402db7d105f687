"""Reductions of Triton tiles: one tile at a time, or lanes that are carried over the blocks of a long row."""

from __future__ import annotations

from kernelwright.codegen._nest import Expr
from kernelwright.codegen._triton_tiles import TileWriter, friendly, tile_type

_LARGEST_INT = {"int64": 2**63 - 1, "int32": 2**31 - 1}
_NO_POSITION = 2**31 - 1


def is_position(expr: Expr) -> bool:
    """True where a reduction gives the position of an extreme, and not its value."""
    return expr.value.op in ("argmax", "argmin")


def parts_name(expr: Expr) -> str:
    """The name of the buffer that holds each program's share of a total."""
    return f"{friendly(expr.value.name)}_parts"


def lane_type(expr: Expr) -> str:
    """The type that a reduction is carried in; booleans are counted as 0 and 1."""
    kind = tile_type(expr.args[0].value.dtype if is_position(expr) else expr.value.dtype)
    return "int32" if kind == "bool" else kind


def identity(expr: Expr) -> str:
    """The identity element of a reduction, as text."""
    op, kind = expr.value.op, lane_type(expr)
    if op in ("sum", "prod", "any", "all"):
        start = {"sum": 0, "prod": 1, "any": 0, "all": 1}[op]
        return f"{start}.0" if kind.startswith("float") else str(start)
    sign = "-" if op.endswith("max") else ""
    return f'float("{sign}inf")' if kind.startswith("float") else f"{sign}{_LARGEST_INT[kind]}"


class ReductionWriter(TileWriter):
    """Adds reductions. ``along`` is the dim of a tile that is reduced."""

    along: int | None = 0
    keep = ""

    def watches_nan(self, expr: Expr) -> bool:
        """True where NaN needs a flag of its own: the device's max and min return the operand that is not NaN."""
        extreme = expr.value.op in ("amax", "amin", "argmax", "argmin")
        return extreme and lane_type(expr).startswith("float") and not expr.value.attrs.get("nan_may_vanish")

    def masked(self, expr: Expr, mask: str) -> str:
        """The operand of a reduction, with the identity outside of the mask."""
        text = self.value(expr.args[0])
        if lane_type(expr) == "int32" and expr.args[0].value.dtype == "bool":
            text = f"({text}).to(tl.int32)"
        return f"tl.where({mask}, {text}, {identity(expr)})" if mask else text

    def combined(self, expr: Expr, text: str) -> str:
        """One value out of the lanes of a tile."""
        op = expr.value.op
        if op == "prod":
            return f"tl.reduce({text}, {self.along}, kw_multiply{self.keep})"
        name = {"sum": "sum", "amax": "max", "amin": "min", "any": "max", "all": "min"}[op]
        return f"tl.{name}({text}, {self.along}{self.keep})"

    def reduce_tile(self, expr: Expr, mask: str) -> None:
        """Reduce an operand that is wholly in one tile."""
        if is_position(expr):
            operand = self.named(expr.args[0])
            at = self._positions()
            self._position(expr, f"tl.where({mask}, {operand}, {identity(expr)})", at, mask, operand)
            return
        text = self.masked(expr, mask)
        if self.watches_nan(expr):
            name = self.fresh(f"{friendly(expr.value.name)}_lanes")
            self.emit(f"{name} = {text}")
            text = name
        self._finish(expr, text)

    def _finish(self, expr: Expr, lanes: str) -> None:
        """The value of a reduction from its lanes, with NaN if there was one."""
        text = self.combined(expr, lanes)
        if expr.value.op in ("any", "all"):
            text = f"{text} != 0"
        name = self.fresh(friendly(expr.value.name))
        self.emit(f"{name} = {text}")
        if self.watches_nan(expr):
            flag = f"tl.max(({lanes} != {lanes}).to(tl.int32), {self.along}{self.keep}) != 0"
            self.emit(f'{name} = tl.where({flag}, float("nan"), {name})')
        self.texts[expr] = name

    def _positions(self) -> str:
        """The position along the reduced axis, as an index into a row."""
        return f"{self.axes[-1].name}.to(tl.int32)" if self.wide else self.axes[-1].name

    def _position(self, expr: Expr, lanes: str, at: str, mask: str, operand: str = "") -> None:
        """The first position of an extreme value, or of the first NaN."""
        best, name = self.fresh(f"{friendly(expr.value.name)}_best"), self.fresh(friendly(expr.value.name))
        extreme = "max" if expr.value.op == "argmax" else "min"
        operand = operand or lanes
        self.emit(f"{best} = tl.{extreme}({lanes}, {self.along}{self.keep})")
        found = f"{operand} == {best}"
        if self.watches_nan(expr):
            is_nan = self.fresh(f"{friendly(expr.value.name)}_nan")
            lost = f"({operand} != {operand})" + (f" & {mask}" if mask else "")
            self.emit(f"{is_nan} = {lost}")
            flag = f"tl.max({is_nan}.to(tl.int32), {self.along}{self.keep}) != 0"
            found = f"tl.where({flag}, {is_nan}, {found})"
        else:
            found = f"({found})"
        found = f"{found} & {mask}" if mask else found
        self.emit(f"{name} = tl.min(tl.where({found}, {at}, {_NO_POSITION}), {self.along}{self.keep}).to(tl.int64)")
        self.texts[expr] = name

    # ------------------------------------------------------------------------------------------ long rows

    def declare_lanes(self, expr: Expr, shape: str) -> str:
        """The lanes of a reduction before its loop."""
        name = self.fresh(f"{friendly(expr.value.name)}_lanes")
        self.emit(f"{name} = tl.full({shape}, {identity(expr)}, tl.{lane_type(expr)})")
        if is_position(expr):
            self.emit(f"{name}_at = tl.full({shape}, {_NO_POSITION}, tl.int32)")
        return name

    def update_lanes(self, expr: Expr, name: str, mask: str) -> None:
        """Combine the current tile into the lanes."""
        op = expr.value.op
        if is_position(expr):
            self._update_position(expr, name, mask)
            return
        text = self.masked(expr, mask)
        if op in ("sum", "prod"):
            self.emit(f"{name} {'+' if op == 'sum' else '*'}= {text}")
            return
        self.emit(f"{name} = tl.{self.extreme(expr)}({name}, {text}{self.carries_nan(expr)})")

    def _update_position(self, expr: Expr, name: str, mask: str) -> None:
        operand, at = self.named(expr.args[0]), self._positions()
        better = self.fresh(f"{friendly(expr.value.name)}_better")
        sign = ">" if expr.value.op == "argmax" else "<"
        text = f"({operand} {sign} {name}) | ({name}_at == {_NO_POSITION})"
        if self.watches_nan(expr):
            text += f" | (({operand} != {operand}) & ({name} == {name}))"
        self.emit(f"{better} = ({text}) & {mask}")
        self.emit(f"{name} = tl.where({better}, {operand}, {name})")
        self.emit(f"{name}_at = tl.where({better}, {at}, {name}_at)")

    def finish_lanes(self, expr: Expr, name: str) -> None:
        """The value of a reduction after its loop."""
        if is_position(expr):
            self._position(expr, name, f"{name}_at", "")
        else:
            self._finish(expr, name)

    # ------------------------------------------------------------------------------------------ totals

    def share(self, expr: Expr, text: str, mask: str) -> None:
        """Store this program's share of a total, for the kernel that combines the shares."""
        place = parts_name(expr)
        self.locals.append(place)
        if mask:
            lanes = self.fresh(f"{friendly(expr.value.name)}_shares")
            self.emit(f"{lanes} = tl.where({mask}, {text}, {identity(expr)})")
            kept, along = self.keep, self.along
            self.keep, self.along = "", None
            self._finish(expr, lanes)
            self.keep, self.along = kept, along
            text = self.texts[expr]
        self.emit(f"tl.store({place} + tl.program_id(0), {text})")

    def take_share(self, expr: Expr, lanes: str, place: str) -> None:
        """Combine a block of a total's shares into its lanes."""
        text = f"tl.load({place} + start + at, mask=inside, other={identity(expr)})"
        if expr.value.op in ("sum", "prod"):
            self.emit(f"{lanes} {'+' if expr.value.op == 'sum' else '*'}= {text}")
            return
        self.emit(f"{lanes} = tl.{self.extreme(expr)}({lanes}, {text}{self.carries_nan(expr)})")

    def extreme(self, expr: Expr) -> str:
        """The Triton function that combines two values of a reduction other than a sum or product."""
        return {"amax": "maximum", "amin": "minimum", "any": "maximum", "all": "minimum"}[expr.value.op]

    def carries_nan(self, expr: Expr) -> str:
        """The argument that makes ``tl.maximum`` and ``tl.minimum`` propagate NaN; empty where it is not needed."""
        return ", propagate_nan=tl.PropagateNan.ALL" if self.watches_nan(expr) else ""
