"""The face of a pool of referees: where candidates are judged is known only here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.pool._jobs import Answer, Job
from kernelwright.records import Backend, Environment, Evaluation, Problem

if TYPE_CHECKING:
    from kernelwright.evaluator import RefereeLike, Session
    from kernelwright.pool._dispatch import PoolState

LOCAL: Final = "local"
_SPECS: Final = "local, ray, ray:ADDRESS, ray:ADDRESS#RESOURCE, or spool:DIR"


class Pool(Protocol):
    """Answers jobs of a run. Its methods may be called in any thread."""

    @property
    def side_by_side(self) -> int:
        """The number of problems to work on at once."""
        ...

    @property
    def state(self) -> PoolState:
        """What the pool does now."""
        ...

    def ready(self, backend: Backend) -> bool:
        """Whether it is known in which environment candidates of a backend will be judged.

        Raises:
            MachineError, MissingToolError, UsageError: it will not be known, since no seat can be opened.
        """
        ...

    def missing(self) -> str:
        """What a run waits for while the pool is not ready, for people."""
        ...

    def environment_for(self, backend: Backend) -> Environment:
        """The only environment in which candidates of a backend are judged in this run."""
        ...

    def answer(self, job: Job, on_stage: Callable[[str], None] = ...) -> Answer:
        """The answer to a job.

        Raises:
            NotYet: it will come later; ask again with an equal job.
            MachineError: the pool was closed, or no seat is left.
        """
        ...

    def post(self, job: Job) -> None:
        """Have a job done whose answer will be asked for later; returns at once."""
        ...

    def look(self) -> None:
        """Do what is to be done from time to time, such as giving back the jobs of dead workers."""
        ...

    def close(self) -> None:
        """End the pool after the work in flight."""
        ...

    def abort(self) -> None:
        """End the pool now."""
        ...


class PooledReferee:
    """A run's referee where a pool judges. Its own sessions only run tools on problems, and build."""

    def __init__(self, home: RefereeLike, pool: Pool) -> None:
        self._home = home
        self.pool = pool

    def environment_for(self, backend: Backend) -> Environment:
        """The environment in which the pool judges a backend."""
        return self.pool.environment_for(backend)

    def open(self, problem: Problem, **options: Any) -> AbstractContextManager[Session]:
        """A session for tools. The reference is not run before one of them needs that."""
        return self._home.open(problem, **options, ready=False)

    def evaluate(self, *given: Any, **options: Any) -> Evaluation:
        """Judge one candidate here, not in the pool."""
        return self._home.evaluate(*given, **options)

    def close(self) -> None:
        """End what this referee does now."""
        close = getattr(self._home, "close", None)
        if close is not None:
            close()


def checked_pool(spec: str) -> str:
    """The spec of a pool, with an absolute path if it has a path.

    Raises:
        UsageError: the spec is unknown or incomplete.
    """
    kind, colon, rest = spec.partition(":")
    if kind == "spool" and rest:
        return f"spool:{Path(rest).expanduser().absolute()}"
    if spec == LOCAL or (kind == "ray" and bool(colon) == bool(rest)):
        return spec
    raise UsageError(f"unknown pool {spec!r}", hint=f"use {_SPECS}")


class OpenPool(Protocol):
    """Opens the pool of a run; see :func:`open_pool`."""

    def __call__(
        self,
        settings: Settings,
        languages: Sequence[Backend],
        *,
        expected: Mapping[Backend, str] | None = ...,
        tell: Callable[[str], None] = ...,
    ) -> AbstractContextManager[Pool | None]:
        """The pool, or None for the run's own referee."""
        ...


@contextmanager
def open_pool(
    settings: Settings,
    languages: Sequence[Backend],
    *,
    expected: Mapping[Backend, str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Pool | None]:
    """The pool that the settings name; None for this process's own referee.

    Args:
        languages: the languages of the candidates to judge.
        expected: ids of the environments in which the run was judged before.
        tell: called with a line about each loss of a seat.

    Raises:
        UsageError: an unknown pool, or no such cluster.
        MissingToolError: Ray is not installed.
        StoreError: the spool cannot be used.
    """
    if checked_pool(settings.pool) == LOCAL:
        yield None
        return
    with closing_pool(_opened(settings, languages, expected or {}, tell)) as pool:
        yield pool


@contextmanager
def closing_pool(pool: Pool) -> Iterator[Pool]:
    """Close a pool at the end, or end it at once after an error."""
    try:
        yield pool
    except BaseException:
        pool.abort()
        raise
    pool.close()


def _opened(
    settings: Settings, languages: Sequence[Backend], expected: Mapping[Backend, str], tell: Callable[[str], None]
) -> Pool:
    kind, _, rest = settings.pool.partition(":")
    if kind == "spool":
        from kernelwright.pool._spool import SpoolFolder
        from kernelwright.pool._spool_pool import SpoolPool

        return SpoolPool(
            SpoolFolder(Path(rest).expanduser(), create=True), threads=settings.threads, expected=expected, tell=tell
        )
    from kernelwright.pool._dispatch import Dispatcher
    from kernelwright.pool._ray import RayRoster

    address, _, resource = rest.partition("#")
    gpus = settings.device != "none" and any(language != "cpp" for language in languages)
    roster = RayRoster(address, resource, gpus=gpus, threads=settings.threads)
    return Dispatcher(roster, threads=settings.threads, expected=expected, tell=tell)
