"""Selects the kernels worth learning from: few, fast, briefly explained, and balanced over categories.

The rule is that of ConCuR (L. Kong et al., "ConCuR: Conciseness Makes State-of-the-Art Kernel Generation", 2025,
https://arxiv.org/abs/2510.07356), whose authors found that models learn best from kernels that are fast and whose
reasoning is short. They use the measured speedup; here the lower end of its 95% interval counts.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernelwright.records import sha256_text
from kernelwright.rl._evidence import Evidence, Judged

__all__ = ["Curation", "Kept", "Key", "balanced"]


class Key(NamedTuple):
    """The key of a row of kind ``sft``."""

    problem: str
    environment: str
    candidate: str


class Kept(NamedTuple):
    """A kernel that passed the rules of its problem; ``length``: characters of its reasoning."""

    key: Key
    category: str
    length: int


class Curation(NamedTuple):
    """The rules for one problem and language at a time, in this order.

    Attributes:
        min_speedup: least lower bound of the speedup over eager.
        best_share: share of the remaining kernels to keep in each environment, the fastest by that bound, rounded up.
        per_problem: number of the remaining kernels to keep, those with the shortest reasoning.
    """

    min_speedup: float
    best_share: float
    per_problem: int

    def of(self, evidence: Evidence, kernels: Sequence[Judged], dropped: Counter[str]) -> list[Kept]:
        """The kernels of a problem to keep. Others are counted in ``dropped`` by rule."""
        kept: list[Kept] = []
        for backend in sorted({one.backend for one in kernels}):
            group = [one for one in kernels if one.backend == backend]
            said = [one for one in group if one.entry.candidate.note.strip()]
            _count(dropped, "concur: no reasoning", group, said)
            timed = [one for one in said if one.speedup() is not None]
            _count(dropped, "concur: not timed", said, timed)
            fast = [one for one in timed if _low(one) >= self.min_speedup]
            _count(dropped, f"concur: slower than {self.min_speedup:g} times eager", timed, fast)
            best = self._best(fast)
            _count(dropped, f"concur: not among the fastest {self.best_share:.0%}", fast, best)
            short = self._shortest(best)
            _count(dropped, "concur: another kernel has shorter reasoning", best, short)
            kept += [
                Kept(Key(evidence.problem.id, one.environment.id, one.sha256), evidence.category, _length(one))
                for one in short
            ]
        return kept

    def _best(self, kernels: Sequence[Judged]) -> list[Judged]:
        """The fastest share of each environment. Times of two machines cannot be compared."""
        found: list[Judged] = []
        for environment in sorted({one.environment.id for one in kernels}):
            group = [one for one in kernels if one.environment.id == environment]
            group.sort(key=lambda one: (-_low(one), one.sha256))
            found += group[: math.ceil(self.best_share * len(group))]
        return found

    def _shortest(self, kernels: Sequence[Judged]) -> list[Judged]:
        """The kernels with the shortest reasoning. Each counts once, in the environment where it gained most."""
        once: dict[str, Judged] = {}
        for one in sorted(kernels, key=lambda one: (_length(one), -_low(one), one.sha256, one.environment.id)):
            once.setdefault(one.sha256, one)
        return list(once.values())[: self.per_problem]


def balanced(kept: Iterable[Kept], most_times_median: float, dropped: Counter[str]) -> frozenset[Key]:
    """The kernels left when no category may have more than ``most_times_median`` times the median of all categories.

    That limit is rounded down, but at least 1. Kernels with the longest reasoning go first; a hash decides ties.
    """
    groups: dict[str, list[Kept]] = {}
    for one in kept:
        groups.setdefault(one.category, []).append(one)
    if not groups:
        return frozenset()
    most = max(1, math.floor(most_times_median * statistics.median(map(len, groups.values()))))
    left: list[Key] = []
    for group in groups.values():
        group.sort(key=lambda one: (one.length, sha256_text(" ".join(one.key))))
        left += [one.key for one in group[:most]]
        if len(group) > most:
            dropped["concur: its category has more than its share"] += len(group) - most
    return frozenset(left)


def _count(dropped: Counter[str], rule: str, before: Sequence[Judged], after: Sequence[Judged]) -> None:
    if len(before) > len(after):
        dropped[rule] += len(before) - len(after)


def _low(one: Judged) -> float:
    found = one.speedup()
    return -math.inf if found is None else found.low


def _length(one: Judged) -> int:
    return len(one.entry.candidate.note.strip())
