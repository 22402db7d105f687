"""Folders ``level1``, ``level2``... of problem files ``NN_name.py``: our own suites, and KernelBench's checkout.

KernelBench: A. Ouyang et al., "KernelBench: Can LLMs write efficient GPU kernels?" (arXiv 2502.10517).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelwright.datasets.loaders._base import Entry, read_text

_LEVEL = re.compile(r"level_?(\d+)$", re.IGNORECASE)
_NUMBERED = re.compile(r"(\d+)_(.+)$")


class Levels:
    """The layout that is named after nobody."""

    name = ""

    def recognises(self, folder: Path) -> bool:
        """Whether there is a folder of a level."""
        return any(_LEVEL.match(inner.name) and inner.is_dir() for inner in folder.iterdir())

    def entries(self, suite: str, folder: Path) -> Iterator[Entry]:
        """Every Python file of a level whose name does not begin with an underscore."""
        for level_folder in sorted(folder.iterdir()):
            level = _LEVEL.match(level_folder.name)
            if level is None or not level_folder.is_dir():
                continue
            for path in sorted(level_folder.glob("*.py")):
                if not path.name.startswith("_"):
                    number, name = numbered(path.stem)
                    yield Entry(suite, f"level{int(level[1])}", int(level[1]), number, name, path, read_text)


def numbered(stem: str) -> tuple[int | None, str]:
    """The number and the name of a file ``NN_name``; no number where there is none."""
    found = _NUMBERED.match(stem)
    return (int(found[1]), found[2]) if found else (None, stem)
