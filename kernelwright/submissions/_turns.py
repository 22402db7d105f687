"""Whose turn it is: authors whose submissions wait take turns, whichever process claims them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kernelwright.submissions._files import read_file, write_whole

_MOST_BYTES: Final = 2**20


def in_turn(path: Path, authors: Mapping[str, str]) -> list[str]:
    """Submissions in the order in which they are to be judged: an author whose turn was longest ago comes first.

    Args:
        path: where turns are kept.
        authors: by submission.
    """
    turns = _read(path)
    return sorted(authors, key=lambda name: (turns.get(authors[name], 0), name))


def take_turn(path: Path, author: str, others: Iterable[str], temporary: Path) -> None:
    """Count a turn, for as long as anybody else waits.

    Args:
        others: authors of all that waits besides.

    Raises:
        OSError: it cannot be written.
    """
    if not (waiting := set(others)):
        path.unlink(missing_ok=True)
        return
    turns = {name: turn for name, turn in _read(path).items() if name in waiting}
    turns[author] = max(turns.values(), default=0) + 1
    write_whole(path, json.dumps(turns).encode(), temporary)


def _read(path: Path) -> dict[str, int]:
    """By author, the number of the last turn; of a file that is not whole, nothing is known."""
    try:
        kept = json.loads(read_file(path, _MOST_BYTES).data)
        return {str(author): int(turn) for author, turn in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
