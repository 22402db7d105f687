"""One island's elites, the best kernel of each cell: MAP-Elites over measured axes (Mouret, Clune, arXiv:1504.04909).

Two things differ from the textbook. An elite loses its place only in a race, never to a lucky timing. When the bins
change, all elites are placed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kernelwright.evolution._axes import Axis, Cell, Grid
from kernelwright.evolution._book import Book, Comparison, Member

Admission = Literal["new", "replaced", "contest", "refused"]


class Archive:
    """The elites of one island.

    Args:
        axes: the axes that define the cells.
        book: the kernels and their measurements.
        races: whether a place is lost only in a race; else the higher estimate gets it.
    """

    def __init__(self, axes: Sequence[Axis], book: Book, *, races: bool = True) -> None:
        self._grid = Grid(axes)
        self._book = book
        self._races = races
        self._cells: dict[Cell, str] = {}

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that define the cells."""
        return self._grid.axes

    @property
    def cells(self) -> Mapping[Cell, str]:
        """The elite's hash by cell, the earliest cell first."""
        return self._cells

    @property
    def elites(self) -> tuple[Member, ...]:
        """The elites, the earliest cell first."""
        return tuple(self._book[sha256] for sha256 in self._cells.values())

    @property
    def best(self) -> Member | None:
        """The elite of the highest rank."""
        return max(self.elites, key=lambda member: member.rank, default=None)

    def cell_of(self, sha256: str) -> Cell:
        """The cell that a member lies in."""
        return self._grid.cell(self._book[sha256].descriptor)

    def offer(self, sha256: str) -> Admission:
        """Place a member in its cell if the cell is free or the member won it; ``contest`` if a race must decide."""
        descriptor = self._book[sha256].descriptor
        if self._grid.stretch(descriptor):
            self._place_again()
        cell = self._grid.cell(descriptor)
        incumbent = self._cells.get(cell)
        if incumbent is None:
            self._cells[cell] = sha256
            return "new"
        if incumbent == sha256:
            return "refused"
        found = self._compare(sha256, incumbent)
        if found == "better":
            self._cells[cell] = sha256
            return "replaced"
        return "contest" if found == "unknown" else "refused"

    def _compare(self, challenger: str, incumbent: str) -> Comparison:
        if self._races:
            return self._book.compare(challenger, incumbent)
        return "better" if self._book[challenger].level > self._book[incumbent].level else "worse"

    def incumbent(self, sha256: str) -> str | None:
        """The elite that holds the cell of a member; None if the cell is free or the member holds it."""
        holder = self._cells.get(self.cell_of(sha256))
        return None if holder == sha256 else holder

    def drop(self, sha256: str) -> bool:
        """Remove a kernel that is no longer a member; returns whether it was an elite."""
        cells = [cell for cell, holder in self._cells.items() if holder == sha256]
        for cell in cells:
            del self._cells[cell]
        return bool(cells)

    def clear(self) -> None:
        """Remove all elites; the ranges of the axes stay."""
        self._cells = {}

    def _place_again(self) -> None:
        """Place all elites again in the current bins. If two meet in a cell, the one of the higher rank stays."""
        before, self._cells = self.elites, {}
        for member in sorted(before, key=lambda member: member.rank, reverse=True):
            self._cells.setdefault(self._grid.cell(member.descriptor), member.sha256)
