"""The programs of one launch in the interpreter: in which order they run, and what happens where one waits for another.

A device promises no order. Orders change from call to call, so that a kernel that needs one of them answers wrongly in
another. A program that waits (it asks a word of memory again and again, and nothing changes) is parked, and others run
in the meantime on a thread of their own; one thread runs at a time.
"""

from __future__ import annotations

import inspect
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from triton.runtime import interpreter as engine

from kernelwright.evaluator.worker.triton import quick
from kernelwright.evaluator.worker.triton.faults import NotCheckable

__all__ = ["next_order", "polled", "run_programs"]

_ORDERS: Final = 3  # ascending, descending, shuffled, in turn
_POLLS: Final = 3  # of the same words with the same answer, after which a program is taken to wait
_MOST_PARKED: Final = 64  # programs that wait at the same time
_IDLE_TURNS: Final = 200  # of every program that waits, after which none of them can go on

_calls = itertools.count(1)
_state: dict[str, Any] = {"order": 0, "launch": None}


def next_order() -> None:
    """From now on programs run in another order."""
    _state["order"] = next(_calls)


def run_programs(executor: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Run all programs of a launch: what the interpreter's executor does, but for the order.

    Args:
        executor: Triton's ``GridExecutor`` of the kernel.
        arguments: the launch's arguments, and ``named`` those by name, compile-time options among them.
    """
    named = {name: value for name, value in named.items() if name in executor.arg_names}
    hosted, hosted_named = executor._init_args_hst(arguments, named)
    for hook in executor.pre_run_hooks:
        hook(*hosted, **hosted_named)
    restore = quick.patched(executor.fn)
    try:
        bound = inspect.getcallargs(executor.fn, *hosted, **hosted_named)
        values = {k: v if k in executor.constexprs else engine._implicit_cvt(v) for k, v in bound.items()}
        grid = executor.grid(values) if callable(executor.grid) else executor.grid
        x, y, z = (*grid, 1, 1)[:3]
        engine.interpreter_builder.set_grid_dim(x, y, z)
        _state["launch"] = _Launch(lambda: executor.fn(**values), (x, y, z))
        _state["launch"].run()
    except Exception as error:
        raise engine.InterpreterError(repr(error)) from error
    finally:
        _state["launch"] = None
        restore()
    executor._restore_args_dev(arguments, hosted, named, hosted_named)


def polled(words: Any, answer: Any, *, changed: bool) -> None:
    """A program asked ``words`` (addresses) and got ``answer``; where that repeats and changes nothing, it waits."""
    if _state["launch"] is not None:
        _state["launch"].polled((words.tobytes(), answer.tobytes()), changed)


class _Abandoned(BaseException):
    """Ends a parked program of a launch that has failed."""


class _Seat:
    """Where a thread waits for its turn, and what its program asked last."""

    def __init__(self) -> None:
        self.turn = threading.Event()
        self.asked: tuple[bytes, bytes] | None = None
        self.polls = 0


class _Launch:
    """The programs of a launch: those that have not begun, those that are parked, and the one that runs."""

    def __init__(self, program: Callable[[], Any], grid: tuple[int, int, int]) -> None:
        self._program = program
        self._pending = _ordered(grid)
        self._seat = _Seat()
        self._parked: deque[_Seat] = deque()
        self._threads: list[threading.Thread] = []
        self._alive = 0  # threads beside the first
        self._idle = 0  # turns since anything changed
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run all programs; the first fault of any of them is raised."""
        try:
            self._run_pending()
        except BaseException as error:  # noqa: BLE001 - raised below, once the parked programs have ended
            self._fail(error)
        while self._alive:
            self._park()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def polled(self, question: tuple[bytes, bytes], changed: bool) -> None:
        """Count what the program that runs asks in vain; others have their turn in the meantime."""
        seat = self._seat
        if question != seat.asked or changed:
            seat.asked, seat.polls, self._idle = question, 0, 0
            return
        seat.polls += 1
        if seat.polls < _POLLS:
            return
        self._idle += 1
        if self._idle > _IDLE_TURNS * (len(self._parked) + 1):
            raise NotCheckable("programs wait for each other, and none of them can go on")
        self._park()
        if self._error is not None:
            raise _Abandoned

    def _run_pending(self) -> None:
        for place in self._pending:
            engine.interpreter_builder.set_grid_idx(*place)
            self._seat.asked, self._seat.polls, self._idle = None, 0, 0
            self._program()

    def _park(self) -> None:
        """Give the turn to another program, and come back when it is this one's again."""
        seat, place = self._seat, engine.interpreter_builder.grid_idx
        following = self._begin() or (self._parked.popleft() if self._parked else None)
        if following is None:
            return
        self._parked.append(seat)
        following.turn.set()
        seat.turn.wait()
        seat.turn.clear()
        self._seat = seat
        engine.interpreter_builder.grid_idx = place

    def _begin(self) -> _Seat | None:
        """A thread for a program that has not begun, where there is one; it waits for its turn."""
        place = None if self._error else next(self._pending, None)
        if place is None:
            return None
        if self._alive >= _MOST_PARKED:
            raise NotCheckable(f"more than {_MOST_PARKED} programs wait for others")
        self._pending = itertools.chain([place], self._pending)
        seat = _Seat()
        thread = threading.Thread(target=self._thread, args=(seat,))
        self._threads.append(thread)
        self._alive += 1
        thread.start()
        return seat

    def _thread(self, seat: _Seat) -> None:
        seat.turn.wait()
        seat.turn.clear()
        self._seat = seat
        try:
            with np.errstate(all="ignore"):
                self._run_pending()
        except BaseException as error:  # noqa: BLE001 - raised by the first thread
            self._fail(error)
        self._alive -= 1
        self._parked.popleft().turn.set()

    def _fail(self, error: BaseException) -> None:
        if self._error is None and not isinstance(error, _Abandoned):
            self._error = error
        self._pending = iter(())


def _ordered(grid: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    order = _state["order"] % _ORDERS
    places = [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]
    if order == 1:
        places.reverse()
    if order == 2:
        random.Random(_state["order"]).shuffle(places)
    return iter(places)
