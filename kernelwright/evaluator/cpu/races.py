"""Data races of C++ kernels: a second worker runs the candidate with products whose memory accesses are watched.

A race is reported in whatever order threads happen to run, so few calls suffice: one for each team size and shape. The
reports are claims of the candidate's process, so they can only refuse. A candidate that suppresses them gains nothing:
every other check is made on the worker with the plain products.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from kernelwright import inline
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.builds.builder import BuildOutcome, BuildService
from kernelwright.evaluator.builds.openmp import asks_for_threads, lacking, unwatched
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.side import Side
from kernelwright.evaluator.host.client import Builder
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.own.ghost import undefined_symbols
from kernelwright.evaluator.profile.text import plain, plural
from kernelwright.evaluator.timing.clockwork import Clockwork
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Candidate
from kernelwright.sandbox import Limits

__all__ = ["RaceStage", "WatchedBuilds"]

FOUND, UNKNOWN = "data-races", "data-races-unknown"  # rules of findings that inform
_TEAMS = ((7, True), (4, False))  # threads, and whether the last one runs first; few sizes are multiples of both
_BUDGET_S = 10.0  # for all calls of one candidate
_GRACE_S = 2.0  # for the rest of a call
_SHADOW_SHARE = 4  # one in this many bytes of a worker's memory may remember accesses
_LINES_S = 20.0
_LINE = re.compile(r":(\d{1,9})(?: |$)")
_REMEMBERED = 256
_EVIDENCE_CHARS = 400
# By the runtime's bits; see openmp_runtime/shadow.h.
_NOTES = {
    1: f"its calls did not end within {_BUDGET_S:g} s",
    2: "its accesses take more memory than there is for them",
    4: "it holds more locks than are followed",
    8: "regions inside of other regions were run by one thread each",
    16: "it has tasks of a kind that is not followed",
    32: "its thread-local variables are too large",
}
_LESS = 1 | 2 | 4 | 32  # after which nothing more is watched


class Race(NamedTuple):
    """Two unordered accesses of one address, as a worker claims."""

    product: int
    places: tuple[int, int]  # of the code, in the product
    threads: tuple[int, int]
    writes: tuple[bool, bool]
    perhaps: bool  # locks or flags may order them
    what: str

    @classmethod
    def of_claim(cls, claim: Any) -> Race | None:
        """The race out of a claim, which may be anything; None if it makes no sense."""
        if not isinstance(claim, dict):
            return None
        numbers = [claim.get("product"), claim.get("element"), *_pair(claim, "places"), *_pair(claim, "threads")]
        if len(numbers) != 6 or not all(type(n) is int and 0 <= n < 1 << 47 for n in numbers):
            return None
        product, element, first, second, one, other = numbers
        name, dtype = plain(str(claim.get("argument", "")), 40), plain(str(claim.get("dtype", "")), 20)
        what = f"element {element} of {name!r} ({dtype})" if name else "memory of its own"
        writes = [bool(w) for w in _pair(claim, "writes")]
        if len(writes) != 2:
            return None
        perhaps = bool(claim.get("perhaps"))
        return cls(product, (first, second), (one, other), (writes[0], writes[1]), perhaps, what)

    def text(self, lines: Sequence[int]) -> str:
        """The race in words; ``lines`` are the source lines of the two accesses, 0 for an unknown one."""
        at = [f" at line {line}" if line else "" for line in lines]
        threads = [f"thread {number}" for number in self.threads]
        if self.threads[0] == self.threads[1]:
            threads = [f"a task of thread {self.threads[0]}", "another part of it"]
        if all(self.writes):
            return f"write/write: {threads[0]} writes {self.what}{at[0]}, and so does {threads[1]}{at[1]}"
        writer = 0 if self.writes[0] else 1
        wrote, read = (threads[i] + f" {verb} " for i, verb in ((writer, "writes"), (1 - writer, "reads")))
        return f"read/write: {wrote}{self.what}{at[writer]}, which {read.rstrip()}{at[1 - writer]}"


def _pair(claim: Mapping[str, Any], name: str) -> list[Any]:
    found = claim.get(name)
    return found if isinstance(found, list) and len(found) == 2 else []


class Found(NamedTuple):
    """The result of a search: the reason to refuse, or a statement of what is known, and what was not looked at."""

    reason: str = ""
    known: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[tuple[str, str], ...]:
        """Findings that inform, by rule."""
        notes = [(UNKNOWN, "; ".join(self.unknown)[:_EVIDENCE_CHARS])] if self.unknown else []
        return (*notes, (FOUND, self.known)) if self.known and not self.reason else tuple(notes)


class WatchedBuilds:
    """A build service whose C++ products with OpenMP are watched. ``unknown``: why some are not."""

    def __init__(self, builds: BuildService) -> None:
        self._builds = builds
        self.unknown: list[str] = []

    def build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        """Build as always. If the product asks for threads, build it again as a watched one."""
        plainly = self._builds.build(message, source)
        symbols = frozenset() if plainly.product is None else undefined_symbols(plainly.product)
        if plainly.product is None or not asks_for_threads(symbols):
            return plainly
        if reason := unwatched(symbols):
            self.unknown.append(reason)
            return plainly
        flags, name = tuple(message["flags"]), str(message.get("name", ""))
        made = self._builds.build_watched(inline.BuildRequest(message["language"], source, flags, name))
        if made.product is None:
            error = next((line for line in made.log.splitlines() if "error" in line), made.log[:200])
            self.unknown.append(f"it cannot be built for it: {plain(error)}")
        elif reason := lacking(undefined_symbols(made.product)):
            self.unknown.append(reason)
        else:
            return made
        return plainly


class _Seen:
    """The results of one search so far."""

    def __init__(self) -> None:
        self.notes = 0
        self.regions = 0
        self.shapes = 0
        self.perhaps: Race | None = None

    def add(self, reply: Mapping[str, Any]) -> Race | None:
        """Add the reply to one call. Return a race that refuses, or None."""
        notes, regions, claims = reply.get("notes"), reply.get("regions"), reply.get("races")
        self.notes |= notes if type(notes) is int and 0 <= notes < 1 << 64 else 0
        self.regions += regions if type(regions) is int and 0 <= regions < 1 << 64 else 0
        claimed = (Race.of_claim(claim) for claim in (claims if isinstance(claims, list) else ()))
        races = [race for race in claimed if race is not None]
        self.perhaps = self.perhaps or next((race for race in races if race.perhaps), None)
        return next((race for race in races if not race.perhaps), None)

    def known(self, shapes: int) -> str:
        """The statement of a search that found no race."""
        teams = " and ".join(str(threads) for threads, _ in _TEAMS)
        where = f"on {self.shapes} of {plural(shapes, 'shape')}, with teams of {teams} threads"
        if not self.regions:
            return f"no region of it is run by more threads than one {where}"
        return f"none found {where}"


def _asking_for_threads(side: Seat) -> list[inline.BuildRequest]:
    """The build requests of a worker whose C++ products may run several threads."""
    products = (outcome.product for outcome in side.client.outcomes if outcome.product is not None)
    made = zip(side.client.built, products, strict=False)
    return [request for request, product in made if asks_for_threads(undefined_symbols(product))]


class RaceStage:
    """Searches candidates of one problem for data races.

    Attributes:
        most_threads: the number of threads that torch must report in the worker, since it may size scratch memory.
    """

    most_threads = max(threads for threads, _ in _TEAMS)

    def __init__(self, host: Host, clockwork: Clockwork, start: Callable[[Candidate, Builder], Seat]) -> None:
        """``start`` makes a worker that asks a build service and has loaded a candidate, or raises WorkerFailed."""
        self._host = host
        self._clockwork = clockwork
        self._start = start
        self._found: dict[str, Found] = {}
        self._building: list[futures.Future[BuildOutcome]] = []
        self._why_not = ""

    def build_beside(self, side: Seat, thread: ThreadPoolExecutor, *, confirm: bool) -> Callable[[], None]:
        """Begin to build what :meth:`run` needs, while ``side``, whose own builds are done, is checked.

        Args:
            confirm: the candidate is to be confirmed.

        Returns:
            A function that waits for these builds, since nothing may be built while anything is timed.
        """
        self._why_not = self._reason_not_to(side, confirm=confirm)
        wanted = [] if self._why_not else _asking_for_threads(side)
        self._building = building = [thread.submit(self._host.builds.build_watched, request) for request in wanted]

        def wait() -> None:
            futures.wait(building)

        return wait

    def run(self, candidate: Candidate, side: Seat, check_set: CheckSet) -> Found:
        """Look for races if a candidate's products ask for threads; ``side``, which built them, is frozen meanwhile."""
        if not _asking_for_threads(side):
            return Found()
        if self._why_not:
            return Found(unknown=(self._why_not,))
        always = self._host.settings.race_check == "always"
        found = None if always else self._found.get(candidate.sha256)
        if found is None:
            side.freeze()  # slots that it has mapped are filled anew
            try:
                found = self._search(candidate, check_set)
            finally:
                side.thaw()
            self._keep(candidate, found)
        return found

    def _reason_not_to(self, side: Seat, *, confirm: bool) -> str:
        """Why a candidate is not searched now; empty if it is.

        Building an extension to be watched takes as long as its whole evaluation, mostly for torch's headers.
        """
        settings = self._host.settings
        if settings.race_check == "never":
            return "not looked for, as race_check says"
        extension = any(request.language == "torch_extension" for request in _asking_for_threads(side))
        if extension and settings.race_check == "auto" and settings.threads == 1 and not confirm:
            return "of an extension they are looked for when it is confirmed, or always with race_check=always"
        return ""

    def _keep(self, candidate: Candidate, found: Found) -> None:
        if len(self._found) >= _REMEMBERED:
            self._found.pop(next(iter(self._found)))
        self._found[candidate.sha256] = found

    def _search(self, candidate: Candidate, check_set: CheckSet) -> Found:
        for built in self._building:
            built.result()
        builds, seen = WatchedBuilds(self._host.builds), _Seen()
        reason, failed_by = "", ""
        try:
            side = self._start(candidate, builds)
            assert isinstance(side, Side)
            try:
                reason = self._calls(side, check_set, seen)
            finally:
                side.end()
        except WorkerFailed as failed:
            timeout = failed.failure.kind == "timeout"
            failed_by = _NOTES[1] if timeout else f"its watched copy failed: {plain(failed.failure.message)}"
        notes = [text for bit, text in _NOTES.items() if seen.notes & bit]
        maybe = (
            []
            if seen.perhaps is None
            else [f"locks, flags or memory used again may explain {seen.perhaps.text((0, 0))}"]
        )
        unknown = dict.fromkeys([*builds.unknown, *notes, *([failed_by] if failed_by else []), *maybe])
        known = seen.known(len(check_set.variants)) if seen.shapes and not builds.unknown else ""
        return Found(reason, known, tuple(unknown))

    def _calls(self, side: Side, check_set: CheckSet, seen: _Seen) -> str:
        """Call the worker on all shapes, small ones first. Return the reason to refuse, or an empty string.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """
        until = time.monotonic() + _BUDGET_S
        for index in sorted(range(len(check_set.variants)), key=lambda i: check_set.variants[i].bytes_moved):
            self._ready(side, check_set, index)
            for threads, last_first in _TEAMS:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    seen.notes |= 1
                    return ""
                reply = side.client.request(
                    "races",
                    timeout_s=left_s + _GRACE_S,
                    threads=threads,
                    last_first=last_first,
                    shadow_bytes=self._host.settings.memory_bytes // _SHADOW_SHARE,
                    seconds=left_s,
                )
                if (race := seen.add(reply)) is not None:
                    return f"data race: {race.text(self._lines(side, race))}"
            seen.shapes += not seen.notes & _LESS
        return ""

    def _ready(self, side: Side, check_set: CheckSet, index: int) -> None:
        """Set a worker up for one shape, with fresh inputs in its first slot."""
        side.set_up(check_set.variants[index])
        pool = self._clockwork.pool(check_set, index)
        assert isinstance(pool, Pool)
        side.map(pool)
        side.freeze()
        pool.refill([0])
        side.copy_written(np.array([0]))
        side.thaw()

    def _lines(self, side: Seat, race: Race) -> tuple[int, int]:
        """The lines of the two accesses in the C++ source; 0 for an unknown one."""
        products = [outcome.product for outcome in side.client.outcomes if outcome.product is not None]
        if race.product >= len(products):
            return 0, 0
        places = " ".join(hex(max(place - 1, 0)) for place in race.places)  # places are return addresses
        command = ["/bin/sh", "-c", f"addr2line -e /in/kernel.so {places}"]
        limits = Limits(wall_s=_LINES_S, allow_exec=True)
        done = self._host.sandbox.run(command, files={"kernel.so": products[race.product]}, limits=limits)
        text = done.stdout.decode(errors="replace").splitlines() if done.returncode == 0 and not done.reason else []
        lines = [int(match[1]) if (match := _LINE.search(line)) else 0 for line in text]
        return (lines[0], lines[1]) if len(lines) == 2 else (0, 0)
