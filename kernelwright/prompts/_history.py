"""The history of a search as a table of measured moves.

Kernels have short labels (k1, k2, ...) in the order in which they were made, and not their hashes. A hash changes with
a comment, and a prompt of the Judge must not.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.prompts._quoting import one_line
from kernelwright.prompts._views import KernelView, Move

__all__ = ["MAX_MOVES", "label", "table"]

MAX_MOVES = 16
_BEST_KEPT = 3
_PLAN_CHARS = 160
_OUTCOME_CHARS = 200


def table(moves: Sequence[Move], limit: int = MAX_MOVES) -> str:
    """A table of at most ``limit`` moves, newest last: the best ones, and the newest of the others."""
    labels = _labels(moves)
    shown = _chosen(moves, limit)
    lines = ["kernel | from | operator | change | outcome"]
    lines += [f"[... {len(moves) - len(shown)} moves left out ...]"] * (len(shown) < len(moves))
    for move in (moves[position] for position in shown):
        parent = labels.get(move.parent, "elsewhere") if move.parent else "-"
        cells = (labels[move.child], parent, _cell(move.operator, 20), _cell(move.plan, _PLAN_CHARS) or "-")
        lines.append(" | ".join([*cells, _cell(move.outcome, _OUTCOME_CHARS)]))
    return "\n".join(lines)


def label(kernel: KernelView, moves: Sequence[Move]) -> str:
    """A kernel's label in the table, for a heading; empty if the kernel is not in it."""
    found = _labels(moves).get(kernel.sha256)
    return f" ({found})" if found else ""


def _labels(moves: Sequence[Move]) -> dict[str, str]:
    made = dict.fromkeys(move.child for move in moves)
    return {child: f"k{number}" for number, child in enumerate(made, 1)}


def _chosen(moves: Sequence[Move], limit: int) -> list[int]:
    """Positions of the moves to show, in order."""
    ranked = sorted(
        (-move.speedup.low, position) for position, move in enumerate(moves) if move.passed and move.speedup is not None
    )
    best = [position for _, position in ranked][: min(_BEST_KEPT, limit)]
    others = [position for position in range(len(moves)) if position not in best]
    newest = others[max(0, len(others) - max(0, limit - len(best))) :] if limit > len(best) else []
    return sorted([*best, *newest])


def _cell(text: str, most: int) -> str:
    return one_line(text, most).replace("|", "/")
