"""What goes on beside a session's checks: its baselines are compiled, and a build may share the machine with that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event, Lock

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.host.host import Host, pinned
from kernelwright.evaluator.verdict.clocks import Clock


class Beside:
    """A thread of a session, and the referee's lane, which one of both has.

    Attributes:
        thread: compiles what is looked at later, while others check.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.thread = ThreadPoolExecutor(1, "beside")
        self._begun: Future[None] | None = None  # compiles baselines
        self._compiling = Event()  # while that has the lane
        self._building = Lock()  # held by a build that shares the lane with it

    def close(self) -> None:
        """Wait for what was begun."""
        if self._begun is not None and not self._begun.cancel():
            wait([self._begun])
        self.thread.shutdown(cancel_futures=True)

    def compile(self, clock: Clock, names: Sequence[str], prepare: Callable[[], CheckSet]) -> None:
        """Begin to compile baselines while ``prepare`` makes the check set; what goes wrong comes to light later.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        if self._begun is not None:
            return
        prepared = Future[CheckSet]()

        def compile_all() -> None:
            with self._host.lane():
                self._compiling.set()
                try:
                    clock.workers.import_compiler()
                    for name in names:
                        clock.clockwork.compile_ahead(name, prepared.result())
                finally:
                    self._compiling.clear()
                    with self._building:
                        pass  # a build that began meanwhile ends before another process may time something

        self._begun = self.thread.submit(compile_all)
        try:
            prepared.set_result(prepare())
        except BaseException as error:
            prepared.set_exception(error)
            raise

    @contextlib.contextmanager
    def lane(self, *, pin: bool = True) -> Iterator[None]:
        """The referee's lane, once what was begun needs it no more; ``pin`` keeps this thread on the referee's core."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()
        with self._host.lane(), pinned(self._host.own_cpu if pin else None):
            yield

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Room for a build: nothing is timed meanwhile, though baselines may be compiled."""
        with pinned(self._host.own_cpu):
            with self._building:
                if self._compiling.is_set():
                    yield
                    return
            with self.lane():
                yield
