"""Other people's suites, read as they are: one file for each layout.

A new layout is a class with the two functions of :class:`Loader` in a file of its own, and a line in :data:`LOADERS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kernelwright.datasets.loaders._base import Entry, Loader
from kernelwright.datasets.loaders._flashinfer_trace import FlashInferTrace, workload_of
from kernelwright.datasets.loaders._levels import Levels
from kernelwright.datasets.loaders._multikernelbench import MultiKernelBench
from kernelwright.datasets.loaders._robust_kbench import RobustKBench

__all__ = ["LOADERS", "Entry", "Loader", "loader_of", "workload_of"]

# In the order in which they are asked: a checkout of somebody's may hold folders of levels as well.
LOADERS: Final[tuple[Loader, ...]] = (MultiKernelBench(), RobustKBench(), FlashInferTrace(), Levels())


def loader_of(folder: Path) -> Loader | None:
    """Whose layout a folder has; None where nobody knows it."""
    return next((loader for loader in LOADERS if folder.is_dir() and loader.recognises(folder)), None)
