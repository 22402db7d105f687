"""Ghost replay: does the candidate still answer right when its own kernels do nothing?

A second worker, the ghost, holds the candidate with kernels that do nothing. It starts up while the first worker waits
for the compiler and is checked, and then stays frozen until it is asked. None of its work is timed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, NamedTuple

from kernelwright.evaluator.builds.builder import BuildOutcome, BuildService
from kernelwright.evaluator.host.client import Builder
from kernelwright.evaluator.host.seat import WorkerSeat
from kernelwright.evaluator.own.ghost import GhostProduct, declared_returns, stub_functions
from kernelwright.evaluator.wire.claims import WorkerFailed


class Ghost(NamedTuple):
    """``needed``: without its own kernels the candidate answers wrong or not at all; ``idle``: it answers right without
    them; ``unknown``: the replay was not possible, and ``reason`` says why."""

    found: Literal["needed", "idle", "unknown"]
    reason: str = ""


class Replay:
    """The ghost of one candidate, as a context manager that ends it. It starts up in a thread of its own.

    For the first worker this is a build service that passes every request on. The first request starts the ghost.
    """

    def __init__(
        self, builds: BuildService, start: Callable[[Builder], WorkerSeat], load: Callable[[WorkerSeat], None]
    ) -> None:
        """``start`` makes a worker that asks a build service; ``load`` hands it the candidate."""
        self._service = builds
        self._builds = GhostBuilds(builds)
        self._start = start
        self._load = load
        self._side: WorkerSeat | None = None
        self._given_up = threading.Event()
        self._thread = ThreadPoolExecutor(1, "replay")
        self._ready: Future[WorkerSeat] | None = None

    def __enter__(self) -> Replay:
        return self

    def build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        """Build for the first worker; the ghost starts up meanwhile."""
        self.begin()
        return self._service.build(message, source)

    def begin(self) -> None:
        """Start the ghost, unless it was started before."""
        if self._ready is None:
            self._ready = self._thread.submit(self._prepare)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the ghost, whatever it is doing."""
        self._given_up.set()
        self._builds.give_up()
        if (side := self._side) is not None:
            side.client.worker.kill()
        self._thread.shutdown()
        if self._side is not None:
            self._side.end()

    def result(self, *, built: bool, is_right: Callable[[WorkerSeat], bool]) -> Ghost:
        """Whether the candidate needs its own kernels.

        Args:
            built: whether the ghost is made by stubbing build products, rather than by launches that do nothing.
            is_right: asks the ghost, set up and thawed, for some answers.
        """
        self.begin()
        self._builds.release()
        assert self._ready is not None
        try:
            side = self._ready.result()
            stubs = self._builds.stubs
            side.thaw()
            right = is_right(side)  # which may build as well
            if built and not stubs:
                return Ghost("idle")  # it built nothing, so other code makes its answers
            if built and all(stub.product is None for stub in stubs):
                return Ghost("unknown", stubs[0].reason)
            return Ghost("idle" if right else "needed")
        except WorkerFailed as failed:
            exit_ = failed.failure.exit
            if exit_ is not None and exit_.reason == "signal" and exit_.signal == signal.SIGKILL:
                return Ghost("unknown", "its worker was killed")
            return Ghost("needed")

    def _prepare(self) -> WorkerSeat:
        self._side = side = self._start(self._builds)
        if self._given_up.is_set():
            side.client.worker.kill()
        self._load(side)
        side.freeze()
        return side


class GhostBuilds:
    """A build service that replaces products by stubs that do nothing, where it can. ``stubs`` lists the results.

    It compiles nothing before :meth:`release`: by then it finds the products of the first worker's requests.
    """

    def __init__(self, builds: BuildService) -> None:
        self._builds = builds
        self._released = threading.Event()
        self._given_up = False
        self.stubs: list[GhostProduct] = []

    def release(self) -> None:
        """Answer waiting and later requests."""
        self._released.set()

    def give_up(self) -> None:
        """Refuse waiting and later requests."""
        self._given_up = True
        self._released.set()

    def build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        """Build as always, then stub the product. A product that cannot be stubbed stays as it is.

        GPU kernels need no stubs: in the ghost their launches do nothing.
        """
        if "cuda" in str(message.get("language")):
            self._released.wait()
            return self._builds.build(message, source)
        defines = _defines(message.get("flags"))
        declared_returns(source, defines)  # takes a while, and is remembered
        self._released.wait()
        if self._given_up:
            return BuildOutcome("", None, "nobody waits for it any more", 0.0, False)
        outcome = self._builds.build(message, source)
        if outcome.product is None:
            return outcome
        ghost = stub_functions(outcome.product, source, defines=defines)
        self.stubs.append(ghost)
        return outcome if ghost.product is None else outcome._replace(product=ghost.product)


def _defines(flags: Any) -> dict[str, str]:
    named = [str(flag)[2:].partition("=") for flag in flags or () if str(flag).startswith("-D")]
    return {name: value or "1" for name, _, value in named}
