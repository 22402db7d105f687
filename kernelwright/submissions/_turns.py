"""Turns of authors: those with waiting submissions take turns, across all claiming processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kernelwright.submissions._files import read_file, write_whole

_MOST_BYTES: Final = 2**20


def in_turn(path: Path, authors: Mapping[str, str]) -> list[str]:
    """Submissions in the order of judging. The author whose last turn is longest ago comes first.

    Args:
        path: the file of turns.
        authors: the author of each submission, by id.
    """
    turns = _read(path)
    return sorted(authors, key=lambda name: (turns.get(authors[name], 0), name))


def take_turn(path: Path, author: str, others: Iterable[str], temporary: Path) -> None:
    """Record a turn of an author. If no other submission waits, delete the file instead.

    Args:
        others: the authors of all other waiting submissions.

    Raises:
        OSError: the file cannot be written.
    """
    if not (waiting := set(others)):
        path.unlink(missing_ok=True)
        return
    turns = {name: turn for name, turn in _read(path).items() if name in waiting}
    turns[author] = max(turns.values(), default=0) + 1
    write_whole(path, json.dumps(turns).encode(), temporary)


def _read(path: Path) -> dict[str, int]:
    """The number of the last turn by author; empty if the file is missing or damaged."""
    try:
        kept = json.loads(read_file(path, _MOST_BYTES).data)
        return {str(author): int(turn) for author, turn in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
