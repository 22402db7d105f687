"""Background work of a session: its baselines are compiled. A build may share the machine with that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event, Lock

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.host.host import Host, pinned
from kernelwright.evaluator.timing.clock import Clock


class Beside:
    """The background thread of a session. It and the session's own thread take turns in holding the referee's lane.

    Attributes:
        thread: compiles in the background while candidates are checked.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.thread = ThreadPoolExecutor(1, "beside")
        self._begun: Future[None] | None = None  # the compilation of baselines
        self._compiling = Event()  # set while the compilation holds the lane
        self._building = Lock()  # held by a build that shares the lane with the compilation

    def close(self) -> None:
        """Wait for a compilation that has begun."""
        if self._begun is not None and not self._begun.cancel():
            wait([self._begun])
        self.thread.shutdown(cancel_futures=True)

    def compile(self, clock: Clock, names: Sequence[str], prepare: Callable[[], CheckSet]) -> None:
        """Begin to compile baselines while ``prepare`` makes the check set. A failure to compile shows up later.

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
        """Hold the referee's lane, after a running compilation; ``pin`` keeps this thread on the referee's core."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()
        with self._host.lane(), pinned(self._host.own_cpu if pin else None):
            yield

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Hold the machine for a build: nothing is timed meanwhile, but baselines may be compiled."""
        with pinned(self._host.own_cpu):
            with self._building:
                if self._compiling.is_set():
                    yield
                    return
            with self.lane():
                yield
