"""Rivals, kernels that a candidate is timed beside: the elite whose place it wants, the kernel that it was made from.

A rival is as untrusted as the candidate and gets a worker of the same kind. A rival that fails is left out, and an
artifact says why: its faults are not the candidate's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.verdict.progress import Progress, Refused
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.evaluator.wire.roles import RIVAL
from kernelwright.records import Candidate

StartRival = Callable[[Candidate, CheckSet, str], Seat]


class RivalFailed(Exception):
    """A rival failed. The candidate is timed again without it."""


class Rivals:
    """The rivals of one candidate while it is timed.

    Args:
        candidates: kernels for the candidate's own backend, each once.
        start: starts a fresh worker that has loaded one of them, under a role.
    """

    def __init__(self, candidates: Sequence[Candidate], start: StartRival) -> None:
        self._by_role = {f"{RIVAL}{candidate.sha256[:12]}": candidate for candidate in candidates}
        self._start = start
        self._out: dict[str, str] = {}

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the rivals that have not failed."""
        return tuple(role for role in self._by_role if role not in self._out)

    def sha256(self, role: str) -> str:
        """The hash of the candidate that has a role."""
        return self._by_role[role].sha256

    def start(self, check_set: CheckSet, progress: Progress) -> Iterator[Seat]:
        """Start fresh workers of the remaining rivals. A rival whose worker does not start is left out."""
        for role in self.roles:
            try:
                yield self._start(self._by_role[role], check_set, role)
            except (WorkerFailed, Refused) as failed:
                reason = failed.failure.message if isinstance(failed, WorkerFailed) else failed.reason
                self._put_out(role, reason, progress)

    @contextmanager
    def watched(self, progress: Progress) -> Iterator[None]:
        """Turn the failure of a rival's worker into RivalFailed. Other workers' failures pass.

        Raises:
            RivalFailed: a rival failed inside; it is left out from now on.
        """
        try:
            yield
        except WorkerFailed as failed:
            if failed.worker not in self.roles:
                raise
            self._put_out(failed.worker, failed.failure.message, progress)
            raise RivalFailed(failed.worker) from None

    def _put_out(self, role: str, reason: str, progress: Progress) -> None:
        self._out[role] = reason
        progress.artifacts[f"left out: {role}"] = reason


class Races:
    """A candidate's races with its rivals, fed turn by turn."""

    def __init__(self, roles: Sequence[str], *, noise_bound: float, most_pairs: int) -> None:
        self._races = {role: statistics.Race(noise_bound=noise_bound, most_pairs=most_pairs) for role in roles}

    def add(self, claims: Mapping[str, float]) -> None:
        """Take the logarithms of the candidate's speedups in one turn, by role."""
        for role, race in self._races.items():
            race.add(claims[role])

    @property
    def over(self) -> bool:
        """Whether all are decided."""
        return all(race.decision is not None for race in self._races.values())

    @property
    def lost(self) -> bool:
        """Whether there are races, and the candidate can win none of them."""
        return bool(self._races) and all(race.decision == "not_faster" for race in self._races.values())

    def intervals(self) -> dict[str, statistics.LogInterval]:
        """``log(rival / candidate)`` with its interval by role."""
        return {role: race.interval() for role, race in self._races.items()}
