"""Gives jobs to seats: which seat does what next, and what happens when a seat dies or turns bad."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kernelwright.errors import KernelwrightError, MachineError, UsageError
from kernelwright.pool._jobs import Answer, Card, Job, quarantine, version
from kernelwright.pool._seat import Roster, SeatLost
from kernelwright.records import Backend, Environment

LOSSES_TO_QUARANTINE: Final = 2  # seats that one candidate may cost
_TRIES: Final = 2  # of a job on which the machine failed
_FAULTS_TO_DRAIN: Final = 3  # in a row, on one seat
_WAITED_LONG_S: Final = 120.0  # then a job goes before jobs whose problem is open on the seat
_LOOK_S: Final = 2.0  # between looks for new seats
_WAKE_LOOKS: Final = 10  # looks after which an idle seat looks for work itself, though each look wakes it
_FAILED_START_REST_S: Final = 10.0
MOST_SOON: Final = 4  # candidates that are built while another one is judged
_REST_S: Final = 300.0  # before a bad seat is tried again
_LEAST_SIDE_BY_SIDE: Final = 8


class PoolState(NamedTuple):
    """A pool at one moment.

    Attributes:
        kind: the kind of the pool.
        seats: number of open seats; ``busy``: of seats that work; ``waiting``: of jobs that no seat has yet.
        lost: number of seats that died; ``drained``: of seats that were put aside.
        answered: number of answers so far.
        busy_s: seconds that seats worked, summed over seats.
        ready_s: seconds that seats worked or could have worked on waiting jobs, summed over seats.
    """

    kind: str
    seats: int = 0
    busy: int = 0
    waiting: int = 0
    lost: int = 0
    drained: int = 0
    answered: int = 0
    busy_s: float = 0.0
    ready_s: float = 0.0


@dataclass(eq=False)
class _Asked:
    """A job that waits for its answer."""

    job: Job
    on_stage: Callable[[str], None]
    since: float
    future: Future[Answer] = field(default_factory=Future)
    losses: int = 0
    tries: int = 0
    failed_on: set[str] = field(default_factory=set)


@dataclass(eq=False)
class _Desk:
    """A seat of the roster. ``open_problems``: the problems with a session there, the latest last."""

    name: str
    card: Card | None = None
    judges_in: dict[Backend, str] = field(default_factory=dict)  # ids of environments
    doing: _Asked | None = None
    faults: int = 0
    open_problems: deque[str] = field(default_factory=lambda: deque(maxlen=2))
    ending: bool = False
    thread: threading.Thread | None = None
    wake: threading.Condition | None = None  # while the seat is idle


class Dispatcher:
    """A pool whose seats this process drives, each in a thread of its own.

    A lost job is asked again on another seat. A candidate that costs two seats is quarantined. A seat on which the
    machine fails several times in a row is put aside for some minutes. New seats of the roster are used as they come.

    Jobs of problems that are open on a seat go first there. Then come problems that no other seat works on, and among
    these the one whose verdicts take longest. A job that has waited two minutes goes before all of these.

    Args:
        roster: the seats.
        threads: number of threads of the run's candidates.
        expected: environments in which the run was judged before. Seats of other ones are not used.
        patience_s: how long jobs wait while there is no seat.
        tell: called with a line about each loss of a seat.
        clock: seconds from any starting point.
        look_s: seconds between looks for new seats.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        threads: int = 1,
        expected: Mapping[Backend, str] | None = None,
        patience_s: float = 600.0,
        tell: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = _LOOK_S,
    ) -> None:
        self._version = version()  # read once, before there are threads
        self._look_s = look_s
        self._roster = roster
        self._threads_of_candidates = threads
        self._expected = dict(expected or {})
        self._patience_s = patience_s
        self._tell = tell
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._in_work: Counter[str] = Counter()  # jobs in work by problem
        self._desks: dict[str, _Desk] = {}
        self._resting: dict[str, float] = {}  # until when seats are not used
        self._waiting: list[_Asked] = []
        self._posted: dict[str, _Asked] = {}  # whose answers were not asked for yet
        self._seconds: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))  # of a problem's jobs, and how many
        self._environments: dict[Backend, Environment] = {}
        self._threads: list[threading.Thread] = []
        self._state = PoolState(roster.kind)
        self._counted_at = clock()
        self._without_seats_since = clock()
        self._fault: KernelwrightError | None = None  # why the latest seat did not open
        self._last_loss = ""
        self._over = threading.Event()
        self._look()
        self._looker = threading.Thread(target=self._keep_looking, name="roster", daemon=True)
        self._looker.start()

    @property
    def state(self) -> PoolState:
        """The pool as it is now."""
        with self._changed:
            self._count()
            return self._state

    def environment_for(self, backend: Backend) -> Environment:
        """The environment that judges a backend; waits until a seat is open.

        Raises:
            MachineError, MissingToolError: no seat can be opened.
        """
        with self._changed:
            while backend not in self._environments:
                self._refuse_hopeless(backend)
                self._changed.wait(self._look_s)
            return self._environments[backend]

    @property
    def side_by_side(self) -> int:
        """The number of problems to work on at once: enough for seats that join later."""
        return max(_LEAST_SIDE_BY_SIDE, 2 * len(self._desks))

    def ready(self, backend: Backend) -> bool:
        """See :class:`~kernelwright.pool.Pool`."""
        with self._changed:
            if backend not in self._environments:
                self._refuse_hopeless(backend)
            return backend in self._environments

    def missing(self) -> str:
        """See :class:`~kernelwright.pool.Pool`."""
        return f"a seat of {self._roster.kind}"

    def look(self) -> None:
        """Do nothing: a thread of the pool's own looks after the seats."""

    def answer(self, job: Job, on_stage: Callable[[str], None] = lambda stage: None) -> Answer:
        """The answer to a job; waits for it.

        Raises:
            MachineError: the pool was closed, or has had no seat for a long time.
        """
        asked = self._asked(job, on_stage)
        with self._changed:
            self._posted.pop(job.id, None)
        return asked.future.result()

    def post(self, job: Job) -> None:
        """See :class:`~kernelwright.pool.Pool`."""
        asked = self._asked(job, lambda stage: None)
        with self._changed:
            self._posted[job.id] = asked

    def _asked(self, job: Job, on_stage: Callable[[str], None]) -> _Asked:
        """The job as it waits. It joins the queue, unless it was posted."""
        with self._changed:
            if (posted := self._posted.get(job.id)) is not None:
                return posted
            self._count()
            asked = _Asked(job, on_stage, self._clock())
            if self._over.is_set():
                raise MachineError("the pool was closed")
            self._offer(asked)
            return asked

    def close(self) -> None:
        """End all seats after the work in flight. Seats that are only opening are not waited for."""
        with self._changed:
            self._over.set()
            for asked in self._waiting:
                asked.future.set_exception(MachineError("the pool was closed"))
            self._waiting.clear()
            self._wake_all()
            opening = {desk.thread for desk in self._desks.values() if desk.card is None}
            threads = [thread for thread in self._threads if thread not in opening]
        for thread in (self._looker, *threads):
            thread.join()
        self._roster.close()

    def abort(self) -> None:
        """End all seats now. Jobs in flight get an error."""
        with self._changed:
            self._over.set()
            asked = [*self._waiting, *(desk.doing for desk in self._desks.values() if desk.doing is not None)]
            self._waiting.clear()
            for one in asked:
                if not one.future.done():
                    one.future.set_exception(MachineError("the pool was ended"))
            self._wake_all()
        self._roster.close()

    # --------------------------------------------------------------------------------------------- seats

    def _keep_looking(self) -> None:
        while not self._over.wait(self._look_s):
            self._look()

    def _look(self) -> None:
        """Use the seats of the roster that are not used yet; give up jobs that no seat will do."""
        try:
            names = self._roster.names()
        except SeatLost as lost:
            names = ()
            self._tell(f"the seats of {self._roster.kind} cannot be listed: {lost}")
        with self._changed:
            for name in names:
                if name not in self._desks and self._resting.get(name, 0.0) <= self._clock():
                    self._hire(name)
            for name, desk in self._desks.items():
                desk.ending = desk.ending or name not in names
            if any(desk.card is not None for desk in self._desks.values()):
                self._without_seats_since = self._clock()
            elif self._waiting:
                self._give_up_hopeless()
            self._wake_all()

    def _hire(self, name: str) -> None:
        desk = self._desks[name] = _Desk(name)
        desk.thread = thread = threading.Thread(target=self._work, args=(desk,), name=f"seat {name}", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _work(self, desk: _Desk) -> None:
        """Drive one seat, from its opening to its end."""
        rest, seat = 0.0, None
        try:
            seat = self._roster.seat(desk.name)
            self._opened(desk, seat.open())
            while (asked := self._take(desk)) is not None:
                self._settle(desk, asked, seat.answer(asked.job, asked.on_stage, self._soon(asked)))
                if desk.faults >= _FAULTS_TO_DRAIN and self._has_others(desk):
                    rest = _REST_S
                    self._tell(
                        f"{desk.name}: put aside for {_REST_S:.0f} s, since the machine failed {desk.faults} times"
                    )
                    break
        except SeatLost as lost:
            rest = _FAILED_START_REST_S if desk.card is None else 0.0
            self._lost(desk, lost)
        except KernelwrightError as error:  # it did not open
            self._fault, rest = error, _REST_S
            self._tell(f"{desk.name}: cannot judge: {error}")
        except Exception as error:  # noqa: BLE001 - a thread must not die without a word
            rest = _FAILED_START_REST_S
            self._lost(desk, SeatLost(f"{type(error).__name__}: {error}"))
        finally:
            self._left(desk, rest)
            with suppress(Exception):  # the seat is gone
                if seat is not None:
                    seat.close()

    def _opened(self, desk: _Desk, card: Card) -> None:
        if card.version != self._version:
            raise UsageError(f"it runs kernelwright {card.version}, and this is {self._version}")
        with self._changed:
            self._count()
            desk.card = card
            here = card.in_threads(self._threads_of_candidates)
            desk.judges_in = {backend: found.id for backend, found in here.items()}
            self._fault = None
            others = []
            for backend, found in here.items():
                if self._expected.get(backend) in (None, found.id):
                    self._environments.setdefault(backend, found)
                if self._environments.get(backend, found) != found:
                    others.append(backend)
            self._state = self._state._replace(seats=self._state.seats + 1)
            self._changed.notify_all()
        if others:
            self._tell(f"{desk.name} is another machine than the others: it judges no {', '.join(others)} in this run")

    def _left(self, desk: _Desk, rest: float) -> None:
        with self._changed:
            self._count()
            self._desks.pop(desk.name, None)
            self._resting[desk.name] = self._clock() + rest
            if desk.card is not None:
                self._state = self._state._replace(seats=self._state.seats - 1)
            if rest >= _REST_S:
                self._state = self._state._replace(drained=self._state.drained + 1)
            self._changed.notify_all()

    def _wake_all(self) -> None:
        self._changed.notify_all()
        for desk in self._desks.values():
            self._wake(desk)

    def _has_others(self, desk: _Desk) -> bool:
        with self._changed:
            return any(other.card is not None for other in self._desks.values() if other is not desk)

    # --------------------------------------------------------------------------------------------- jobs

    def _take(self, desk: _Desk) -> _Asked | None:
        """Wait for the next job of a seat; None if the seat must end."""
        wake = threading.Condition(self._lock)
        with self._lock:
            while not self._over.is_set() and not desk.ending:
                if (asked := self._next_for(desk)) is not None:
                    self._count()
                    self._waiting.remove(asked)
                    self._begin(desk, asked)
                    return asked
                desk.wake = wake
                wake.wait(_WAKE_LOOKS * self._look_s)
                desk.wake = None
                if desk.doing is not None:  # it was handed a job
                    return desk.doing
        return None

    def _soon(self, asked: _Asked) -> list[Job]:
        """Jobs that the seat will probably do next: they wait, and are on the same problem."""
        with self._lock:
            problem, settings = asked.job.problem, asked.job.settings
            same = (one.job for one in self._waiting if one.job.problem.id == problem.id)
            return [job for job in same if job.problem == problem and job.settings == settings][:MOST_SOON]

    def _offer(self, asked: _Asked) -> None:
        """Hand a job to an idle seat, best to one where its problem is open; without one it waits."""
        idle = [desk for desk in self._desks.values() if desk.wake is not None and desk.doing is None]
        suited = [desk for desk in idle if self._suits(desk, asked)]
        if not suited or self._waiting:
            self._waiting.append(asked)
            for desk in idle:
                self._wake(desk)
            return
        chosen = min(suited, key=lambda desk: asked.job.problem.id not in desk.open_problems)
        self._count()
        self._begin(chosen, asked)
        self._wake(chosen)

    def _begin(self, desk: _Desk, asked: _Asked) -> None:
        desk.doing = asked
        self._in_work[asked.job.problem.id] += 1
        self._state = self._state._replace(busy=self._state.busy + 1)

    @staticmethod
    def _wake(desk: _Desk) -> None:
        if desk.wake is not None:
            desk.wake.notify()

    def _suits(self, desk: _Desk, asked: _Asked) -> bool:
        found = desk.judges_in.get(asked.job.candidate.backend)
        if found is None or asked.job.environment not in ("", found):
            return False
        if desk.name not in asked.failed_on:
            return True
        return not any(other.card is not None for other in self._desks.values() if other.name not in asked.failed_on)

    def _next_for(self, desk: _Desk) -> _Asked | None:
        """The waiting job that a seat should do first."""
        now = self._clock()
        suited = (asked for asked in self._waiting if self._suits(desk, asked))
        return min(suited, key=lambda asked: self._rank(desk, asked, now), default=None)

    def _rank(self, desk: _Desk, asked: _Asked, now: float) -> tuple[bool, bool, int, float, float]:
        problem = asked.job.problem.id
        total, count = self._seconds.get(problem, (0.0, 0))
        expected = total / count if count else float("inf")  # unknown: it may be the longest
        waited_long, opened = now - asked.since > _WAITED_LONG_S, problem in desk.open_problems
        return not waited_long, not opened, self._in_work.get(problem, 0), -expected, asked.since

    def _settle(self, desk: _Desk, asked: _Asked, answer: Answer) -> None:
        """Pass on an answer, or ask again if the machine failed."""
        if refusal := answer.refusal(asked.job):
            raise SeatLost(f"its answer is of no use: {refusal}")
        with self._changed:
            self._count()
            self._freed(desk, asked)
            if answer.fault is not None and answer.fault.of_the_machine:
                desk.faults += 1
                asked.tries += 1
                asked.failed_on.add(desk.name)
                if asked.tries < _TRIES and not self._over.is_set():
                    self._again(asked)
                    return
            else:
                desk.faults = 0
            total, count = self._seconds[asked.job.problem.id]
            self._seconds[asked.job.problem.id] = total + answer.seconds, count + 1
            self._state = self._state._replace(answered=self._state.answered + 1)
        if not asked.future.done():
            asked.future.set_result(answer)

    def _lost(self, desk: _Desk, lost: SeatLost) -> None:
        """A seat died. Its job goes to another one, unless it has cost too many."""
        with self._changed:
            self._count()
            self._state = self._state._replace(lost=self._state.lost + 1)
            self._last_loss = f"({desk.name}: {lost})"
            asked = desk.doing
            if asked is None:
                self._tell(f"{desk.name}: lost: {lost}")
                return
            self._freed(desk, asked)
            asked.losses += 1
            ends = asked.losses >= LOSSES_TO_QUARANTINE
            if not ends and not self._over.is_set():
                self._again(asked)
        kernel = asked.job.candidate.sha256[:12]
        self._tell(
            f"{desk.name}: lost while it judged kernel {kernel}{'' if ends else '; the job is asked again'}: {lost}"
        )
        if ends and not asked.future.done():
            asked.future.set_result(
                quarantine(asked.job, self._environments[asked.job.candidate.backend], asked.losses)
            )

    def _freed(self, desk: _Desk, asked: _Asked) -> None:
        desk.doing = None
        problem = asked.job.problem.id
        self._in_work[problem] -= 1
        if not self._in_work[problem]:
            del self._in_work[problem]
        if problem in desk.open_problems:
            desk.open_problems.remove(problem)
        desk.open_problems.append(problem)
        self._state = self._state._replace(busy=self._state.busy - 1)

    def _again(self, asked: _Asked) -> None:
        if not asked.future.done():
            self._offer(asked)

    def _refuse_hopeless(self, backend: Backend | None = None) -> None:
        """Raise the reason why no seat will judge a backend."""
        if self._over.is_set():
            raise MachineError("the pool was closed")
        if not self._desks and self._fault is not None:
            raise self._fault
        if self._clock() - self._without_seats_since > self._patience_s:
            raise MachineError(
                f"no seat of {self._roster.kind} could be had for {self._patience_s:.0f} s {self._last_loss}".strip(),
                hint="start machines, then 'kernelwright resume RUN'",
            )
        if backend is not None and self._desks and all(desk.card is not None for desk in self._desks.values()):
            raise MachineError(
                f"no seat of {self._roster.kind} is the machine that judged {backend} in this run before "
                f"(environment {self._expected.get(backend, 'unknown')})",
                hint="resume it where that machine is, or begin a new run",
            )

    def _give_up_hopeless(self) -> None:
        try:
            self._refuse_hopeless()
        except KernelwrightError as error:
            for asked in self._waiting:
                asked.future.set_exception(error)
            self._waiting.clear()

    def _count(self) -> None:
        """Add the time since the last change to the seconds that seats worked, and could have worked."""
        past = self._clock() - self._counted_at
        self._counted_at += past
        state = self._state
        self._state = state._replace(
            waiting=len(self._waiting),
            busy_s=state.busy_s + past * state.busy,
            ready_s=state.ready_s + past * min(state.seats, state.busy + state.waiting),
        )
