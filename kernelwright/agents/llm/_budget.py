"""The budget of a run for models: reserved before each request, settled after it, and kept in the store.

The amount spent never shrinks, even when a run is resumed. Requests that a killed process left open are booked with
their reserved amount, since a model may have worked on them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.agents.llm._faults import Stopped
from kernelwright.agents.llm._types import Request
from kernelwright.errors import BudgetReached
from kernelwright.records import LLMCall

if TYPE_CHECKING:
    from kernelwright.store import Store

_LOOK_AGAIN_S = 1.0  # interval of looks for a stop, while waiting for requests in flight


class Limits(NamedTuple):
    """The most that a run may use; None for no limit."""

    cost_usd: float | None = None
    tokens: int | None = None


class Worst(NamedTuple):
    """The most that one request can use. ``cost_usd`` is None if the price is unknown."""

    tokens: int
    cost_usd: float | None


class Used(NamedTuple):
    """The totals of closed requests. ``cost_usd`` includes only requests with a known price."""

    tokens: int
    cost_usd: float


class Budget:
    """The budget of a run, shared by all threads of the process that drives it.

    A request may be sent only if the limits cover the sum of three amounts: what is spent, what is reserved for
    requests in flight, and the most that the request itself can use.
    """

    def __init__(self, store: Store, run_id: str, limits: Limits, stopped: Callable[[], str] = lambda: "") -> None:
        """``stopped``: returns a reason to stop waiting for requests in flight, or an empty string."""
        self._store = store
        self._run_id = run_id
        self._limits = limits
        self._stopped = stopped
        self._changed = threading.Condition()
        store.book_lost_requests(run_id)
        # Read once: one process drives a run, and adding up thousands of requests before each one is slow.
        spent = store.spending(run_id)
        self._spent = Used(spent.tokens, spent.cost_usd)
        self._open: dict[str, Worst] = {}

    def reserve(self, request: Request, *, key: str, provider: str, model: str, try_number: int, worst: Worst) -> str:
        """Reserve a request; returns its id. Waits while requests in flight may still free enough of the budget.

        Raises:
            BudgetReached: the budget cannot cover the request.
            Stopped: the run must stop.
        """
        with self._changed:
            while reason := self._lack(worst):
                if not self._open:
                    raise BudgetReached(reason, hint="resume the run with a larger budget", run=self._run_id)
                self._changed.wait(_LOOK_AGAIN_S)
                if why := self._stopped():
                    raise Stopped(why)
            request_id = self._store.open_request(
                self._run_id,
                **request.place._asdict(),
                try_number=try_number,
                provider=provider,
                model=model,
                key=key,
                tokens=worst.tokens,
                cost_usd=worst.cost_usd,
            )
            self._open[request_id] = worst
        return request_id

    def settle(self, request_id: str, call: LLMCall, request: Request, reply: str) -> str:
        """Replace a reservation by the reply's real usage, and store the reply; returns the call's id."""
        with self._changed:
            call_id = self._store.settle_request(
                request_id, call, prompt=request.prompt, reply=reply, run_id=self._run_id, step=request.place.step
            )
            known = call.input_tokens is not None and call.output_tokens is not None
            tokens = (call.input_tokens or 0) + (call.output_tokens or 0)
            self._close(request_id, Worst(tokens, call.cost_usd) if known else self._open[request_id])
        return call_id

    def book(self, request_id: str, outcome: str) -> None:
        """Count a request with its reserved amount, since a model may have worked on it."""
        with self._changed:
            self._store.book_request(request_id, outcome)
            self._close(request_id, self._open[request_id])

    def release(self, request_id: str, outcome: str) -> None:
        """Count nothing for a request that was rejected before any work."""
        with self._changed:
            self._store.release_request(request_id, outcome)
            self._close(request_id, Worst(0, 0.0))

    def _close(self, request_id: str, used: Worst) -> None:
        """Remove a request from those in flight and count its usage, as the store does."""
        del self._open[request_id]
        self._spent = Used(self._spent.tokens + used.tokens, self._spent.cost_usd + (used.cost_usd or 0.0))
        self._changed.notify_all()

    def _lack(self, worst: Worst) -> str:
        """The reason why the budget does not cover a request now, or an empty string."""
        spending, reserved = self._spent, self._open.values()
        tokens = spending.tokens + sum(other.tokens for other in reserved)
        if self._limits.tokens is not None and tokens + worst.tokens > self._limits.tokens:
            return (
                f"the budget of {self._limits.tokens:,} tokens: {spending.tokens:,} are used, "
                f"and the next call may take {worst.tokens:,}"
            )
        cost = spending.cost_usd + sum(other.cost_usd or 0.0 for other in reserved)
        if self._limits.cost_usd is not None and cost + (worst.cost_usd or 0.0) > self._limits.cost_usd:
            return (
                f"the budget of ${self._limits.cost_usd:.2f}: ${spending.cost_usd:.4f} are spent, "
                f"and the next call may cost ${worst.cost_usd or 0.0:.4f}"
            )
        return ""
