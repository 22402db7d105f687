"""How runs stand while they are driven.

A process that drives a run keeps a small file beside the store's locks, and holds a lock of its own meanwhile. Readers
take from the file what only that process knows, and all else from the store. A file that is not locked was left
by a process that was killed; it is ignored, and the next process that drives the run writes over it.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import PlainSerializer, ValidationError

from kernelwright.campaign._locks import folder_of_locks, is_held, is_locked
from kernelwright.campaign._results import CampaignEvent
from kernelwright.campaign.stopping import DeviceSeconds
from kernelwright.files import write_whole
from kernelwright.pool import ANSWER_SUFFIX, Pool, PoolState
from kernelwright.records import Record
from kernelwright.records.codec import dump_json

if TYPE_CHECKING:
    from kernelwright.store import RunCosts, Store

EVERY_S = 2.0  # least time between two writes of a record, and between two looks of a watcher
RATE_S = 600.0  # the time over which verdicts are counted
_MOST_PROCESSES = 64  # that drive one run at once, each with a record
_NAME = re.compile(r"([0-9A-Z]{26})\.live-\d+\.json")
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # of ULIDs: Crockford's base 32
PoolNow = Annotated[PoolState, PlainSerializer(lambda pool: pool._asdict())]


class AtWorkOn(Record):
    """A problem that is worked on, and since when (UTC)."""

    problem: str
    since: str


class LiveRecord(Record):
    """What a process says of the run that it drives.

    Attributes:
        process: its number. ``started_at``, ``written_at``: UTC.
        finished: number of problems that this process has finished.
        running: the problems that it works on.
        replies, verdicts: number of replies and of verdicts that are awaited.
        pool: the pool that judges; None for the process's own referee.
        judged: number of verdicts of the run so far; ``device_seconds``: what they took; ``cost_usd``: what its models
            cost, None if unknown. These three count all processes.
    """

    run: str
    process: int
    started_at: str
    written_at: str
    finished: int = 0
    running: tuple[AtWorkOn, ...] = ()
    replies: int = 0
    verdicts: int = 0
    pool: PoolNow | None = None
    judged: int = 0
    device_seconds: float = 0.0
    cost_usd: float | None = None


class Standing(Record):
    """How a run stands now.

    Attributes:
        driven: whether a live process drives it. ``processes``: their numbers, of those that keep a record.
        written_at: when one of them wrote its record last (UTC).
        seconds: wall-clock seconds of all processes that drove the run, one after another.
        problems: their number; ``done``: of those that ended, with a kernel or without; ``running``, ``left``: of the
            others.
        winners: number of problems with a right kernel.
        verdicts_per_minute: over the last ten minutes, or since the run began.
        device_seconds: the referee's time; ``device_seconds_per_winner``, ``cost_usd_per_winner``: the total divided by
            the number of winners, None without one. ``cost_usd``: None if unknown.
        pool: the pools of all processes together; None without a pool.
        busy_share: share of the time in which seats worked, of the time in which they could have worked; None if
            unknown.
        replies_awaited, verdicts_awaited: their numbers.
        eta_s: expected seconds until the last problem ends, from the rate at which the live processes finished
            problems; None before the first one.
        working_on: the problems that are worked on, the one begun first before the others.
    """

    run: str
    recipe: str
    status: str
    driven: bool
    processes: tuple[int, ...] = ()
    written_at: str | None = None
    seconds: float
    problems: int
    done: int
    running: int
    left: int
    winners: int
    verdicts: int
    verdicts_per_minute: float
    device_seconds: float
    device_seconds_per_winner: float | None
    cost_usd: float | None
    cost_usd_per_winner: float | None
    pool: PoolNow | None = None
    busy_share: float | None = None
    replies_awaited: int = 0
    verdicts_awaited: int = 0
    eta_s: float | None = None
    working_on: tuple[AtWorkOn, ...] = ()


# ------------------------------------------------------------------------------------------------- writing


class LiveKeeper:
    """Keeps the record of a run while this process drives it. No fault of its own ends the run.

    Args:
        pool: the pool that judges, if there is one.
        clock: seconds since 1970.
    """

    def __init__(
        self, store: Store, run_id: str, *, pool: Pool | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._pool = pool
        self._clock = clock
        self._awaited: Callable[[], Sequence[str]] = tuple
        self._device_seconds = DeviceSeconds(store, run_id)
        self._running: dict[str, str] = {}
        self._finished = 0
        self._turn = threading.Lock()  # one thread writes
        self._started = self._written = clock()
        self._place: Path | None = None
        self._fd = -1

    def __enter__(self) -> Self:
        with suppress(OSError):  # without a lock there is no record
            self._take_place()
            self._write()
        return self

    def _take_place(self) -> None:
        folder = folder_of_locks(self._store.path)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(_MOST_PROCESSES):
            place = folder / f"{self._run_id}.live-{number}"
            fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process has it
                os.close(fd)
                continue
            self._fd, self._place = fd, place.with_name(f"{place.name}.json")
            return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._turn:
            if self._place is not None:
                with suppress(OSError):
                    self._place.unlink(missing_ok=True)
                self._place = None
                os.close(self._fd)

    def awaits(self, places: Callable[[], Sequence[str]]) -> None:
        """Say what gives the places at which replies and verdicts are awaited."""
        self._awaited = places

    def heed(self, event: CampaignEvent) -> None:
        """Take note of a step of progress. Any thread may call this."""
        if event.kind == "problem-started":
            self._running.setdefault(event.problem, _utc(self._clock()))
        elif event.kind == "problem-finished":
            self._running.pop(event.problem, None)
            self._finished += 1
        self.tick()

    def tick(self) -> None:
        """Write the record if the last one is old. Any thread may call this at any time."""
        if self._clock() - self._written >= EVERY_S:
            self._write()

    def _write(self) -> None:
        if self._place is None or not self._turn.acquire(blocking=False):
            return
        try:
            if self._place is not None:
                with suppress(Exception):  # such as a full disk; the next turn may do better
                    write_whole(self._place, dump_json(self._record()))
        finally:
            self._written = self._clock()
            self._turn.release()

    def _record(self) -> LiveRecord:
        pool = None if self._pool is None else self._pool.state
        places = self._awaited()
        answers = sum(place.endswith(ANSWER_SUFFIX) for place in places)
        costs = self._store.run_costs(self._run_id)
        return LiveRecord(
            run=self._run_id,
            process=os.getpid(),
            started_at=_utc(self._started),
            written_at=_utc(self._clock()),
            finished=self._finished,
            running=tuple(AtWorkOn(problem=name, since=since) for name, since in tuple(self._running.items())),
            replies=len(places) - answers,
            verdicts=answers or (0 if pool is None else pool.busy + pool.waiting),
            pool=pool,
            judged=costs.evaluations,
            device_seconds=self._device_seconds.so_far(),
            cost_usd=costs.cost_usd,
        )


# ------------------------------------------------------------------------------------------------- reading


def live_records(store_path: Path, run_id: str) -> tuple[LiveRecord, ...]:
    """The records of the live processes that drive a run."""
    return tuple(_records(folder_of_locks(store_path).glob(f"{run_id}.live-*.json")))


def driven_runs(store_path: Path) -> tuple[str, ...]:
    """The ids of the runs of a store that live processes drive with a record, the latest first."""
    return tuple(sorted({one.run for one in _records(folder_of_locks(store_path).glob("*.live-*.json"))}, reverse=True))


def _records(places: Iterable[Path]) -> Iterator[LiveRecord]:
    for place in sorted(places):
        named = _NAME.fullmatch(place.name)
        if named is None or not is_locked(place.with_suffix("")):
            continue
        with suppress(OSError, ValidationError):  # it has just ended; or another version wrote it
            found = LiveRecord.model_validate_json(place.read_bytes())
            if found.run == named[1]:
                yield found


class Watcher:
    """Says again and again how a run stands. Each look reads only what is new in the store.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, store: Store, run_id: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._run_id = run_id
        self._clock = clock
        self._device_seconds = DeviceSeconds(store, run_id)

    def look(self) -> Standing:
        """How the run stands now.

        Raises:
            UsageError: the store has no such run. StoreError: it cannot be read.
        """
        run, now = self._store.run(self._run_id), self._clock()
        records = live_records(self._store.path, run.id)
        costs = self._store.run_costs(run.id)
        device_s = max(one.device_seconds for one in records) if records else self._device_seconds.so_far()
        rows = self._store.query(_COUNTS, [run.id])
        working_on = sorted((one for record in records for one in record.running), key=lambda one: one.since)
        total, done = sum(row["problems"] for row in rows), sum(row["done"] for row in rows)
        winners = sum(row["winners"] for row in rows)
        running = min(len(working_on), total - done)
        pool = _together(tuple(record.pool for record in records if record.pool is not None))
        begun = min((_seconds(record.started_at) for record in records), default=now)
        return Standing(
            run=run.id,
            recipe=run.config.recipe,
            status=run.status,
            driven=bool(records) or (run.status == "running" and is_held(self._store.path, run.id)),
            processes=tuple(record.process for record in records),
            written_at=max((record.written_at for record in records), default=None),
            seconds=run.seconds + max(0.0, now - begun),
            problems=total,
            done=done,
            running=running,
            left=total - done - running,
            winners=winners,
            verdicts=costs.evaluations,
            verdicts_per_minute=self._rate(now, _seconds(run.created_at)),
            device_seconds=device_s,
            device_seconds_per_winner=device_s / winners if winners else None,
            cost_usd=costs.cost_usd,
            cost_usd_per_winner=_per(costs, winners),
            pool=pool,
            busy_share=None if pool is None or pool.ready_s <= 0 else min(1.0, pool.busy_s / pool.ready_s),
            replies_awaited=sum(record.replies for record in records),
            verdicts_awaited=sum(record.verdicts for record in records),
            eta_s=_eta(records, total - done, now),
            working_on=tuple(working_on),
        )

    def _rate(self, now: float, created: float) -> float:
        """Verdicts a minute of late."""
        since = max(now - RATE_S, created)
        (row,) = self._store.query(_LATELY, {"after": _first_id(since), "run_id": self._run_id})
        return 60.0 * float(row["verdicts"]) / max(now - since, 1.0)


_COUNTS = (
    "SELECT count(*) AS problems, state IN ('done', 'failed') AS ended, "
    "total(state IN ('done', 'failed')) AS done, "
    "total(state = 'done' AND json_extract(nullif(detail, ''), '$.candidate') IS NOT NULL) AS winners "
    "FROM run_problems WHERE run_id = ? GROUP BY ended"
)
_LATELY = "SELECT count(*) AS verdicts FROM evaluations WHERE id >= :after AND +run_id = :run_id"


def _per(costs: RunCosts, winners: int) -> float | None:
    return costs.cost_usd / winners if winners and costs.cost_usd is not None else None


def _eta(records: Sequence[LiveRecord], left: int, now: float) -> float | None:
    """The expected seconds until ``left`` more problems are finished."""
    if not left:
        return 0.0 if records else None
    rate = sum(record.finished / max(now - _seconds(record.started_at), 1.0) for record in records)
    return left / rate if rate > 0 else None


def _together(pools: Sequence[PoolState]) -> PoolState | None:
    """The pools of several processes as one."""
    if not pools:
        return None
    numbers = [name for name in PoolState._fields if name != "kind"]
    return pools[0]._replace(**{name: sum(getattr(pool, name) for pool in pools) for name in numbers})


def _first_id(seconds: float) -> str:
    """The least id of a row that was stored at a time or later. Ids are ULIDs."""
    milliseconds = max(0, int(seconds * 1000))
    return "".join(_DIGITS[milliseconds >> shift & 31] for shift in range(45, -1, -5))


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
