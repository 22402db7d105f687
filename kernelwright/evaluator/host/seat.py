"""One live worker of a problem: a candidate, a twin, or a worker of the referee's own. Each clock has a kind of seat.

A worker is frozen whenever it is not its turn. So it can neither compute ahead, nor disturb another one, nor watch the
referee prepare its data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelwright.errors import SandboxError
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.door import Window
from kernelwright.evaluator.host.host import Host, Program
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed, readable

__all__ = ["SETUP_TIMEOUT_S", "Seat", "WorkerSeat"]

SETUP_TIMEOUT_S = 60.0
_DYING_S = 0.25  # a killed worker is gone within this time, however large it is
_NAME_CHARS = 80  # of a name that a worker tells


class Seat(ABC):
    """What takes windows of a problem's calls.

    Attributes:
        name: role, as timing samples name it.
        client: the worker's socket.
        frozen: whether it is stopped at the moment.
    """

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.frozen = False

    @abstractmethod
    def enter(self, pool: Any) -> None:
        """Map the slots of a pool, unless they are mapped, and get ready for windows.

        Raises:
            WorkerFailed: it fails to.
        """

    @abstractmethod
    def leave(self, *, timeout_s: float) -> None:
        """Call the worker back to its socket, thawed.

        Raises:
            WorkerFailed: it does not come.
        """

    # ------------------------------------------------------------------------------------------ taking a turn

    @abstractmethod
    def window(self, slots: np.ndarray, reads: Sequence[int] | np.ndarray, *, call_timeout_s: float) -> Window:
        """Thaw, run one window of calls, freeze again.

        Args:
            slots: (calls,) slots to reveal. reads: positions in ``slots`` after which the outputs are read.

        Raises:
            WorkerFailed: the worker died, raised, hung, claimed an output that is not there, or does not rest.
        """

    @property
    def writer(self) -> Callable[[np.ndarray], None] | None:
        """Writes any weights, (state bytes,) uint8, into the frozen worker. None if only the worker can write them.

        It raises WorkerFailed if the worker died, or its tensors are not where it says.
        """
        return None

    @abstractmethod
    def take_weights(self, draw: int, *, call_timeout_s: float) -> None:
        """Rewrite the weights, off the clock. The worker is frozen afterwards.

        Raises:
            WorkerFailed: the worker died, raised or hung, or its tensors are not where it says.
        """

    def freeze(self) -> None:
        """Stop all tasks of the worker, if it lives.

        Raises:
            WorkerFailed: they do not stop (a system call that cannot be interrupted). The worker was killed.
        """
        if self.frozen or not self.client.worker.alive():
            return
        try:
            self.client.worker.freeze()
        except SandboxError:
            self.client.close()
            message = "its tasks could not be stopped within the time that takes everybody else microseconds"
            raise WorkerFailed(Failure("died", "forward", message), self.name) from None
        self.frozen = True

    def thaw(self) -> None:
        """Let the worker run on."""
        if self.frozen:
            self.client.worker.thaw()
            self.frozen = False

    def see_alive(self) -> None:
        """Give a worker that is being killed the time to end.

        Raises:
            WorkerFailed: it has ended.
        """
        self.client.worker.wait(_DYING_S)
        self.client.check_alive("forward")

    def end(self) -> None:
        """Kill the worker and free what was held for it."""
        self.client.close()


class WorkerSeat(Seat):
    """The seat of a worker that a program is handed to.

    Attributes:
        renamed: names of the reference's tensors and of the worker's own ones that were matched by order.
    """

    def __init__(self, name: str, client: Client) -> None:
        super().__init__(name, client)
        self.renamed: list[tuple[str, str]] = []

    @abstractmethod
    def load(self, host: Host, program: Program) -> None:
        """Hand the worker its program.

        Raises:
            WorkerFailed: it does not load.
        """

    def set_up(self, variant: Variant) -> None:
        """Construct the module of one variant and give it the first draw of the weights.

        Raises:
            WorkerFailed: its constructor raises, or its parameters do not correspond.
        """
        self._forget()
        self.client.request(
            "construct",
            timeout_s=SETUP_TIMEOUT_S,
            init=variant.init,
            variant=variant.constants,
            plan=variant.plan.to_json(),
        )
        if variant.state:
            reply = self._hand_weights(variant)
            self.renamed = _pairs(reply.get("renamed"))

    @abstractmethod
    def _forget(self) -> None:
        """Forget what belongs to an earlier variant."""

    @abstractmethod
    def _hand_weights(self, variant: Variant) -> Mapping[str, Any]:
        """Give the worker all draws of the weights; its reply."""


def _pairs(claim: Any) -> list[tuple[str, str]]:
    """Pairs of names out of a worker's claim, which may be anything."""
    pairs = claim if isinstance(claim, list) else []
    told = (pair for pair in pairs if isinstance(pair, list) and len(pair) == 2)
    return [(readable(one)[:_NAME_CHARS], readable(other)[:_NAME_CHARS]) for one, other in told]
