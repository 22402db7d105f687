"""The logic of the reward server: its requests, its answers, and the work of the judging thread.

The web part never judges. It parses, checks, queues and waits. Only the thread that has the scorer calls
:meth:`Service.work_once`.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pydantic import BaseModel

from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.records import Backend, Problem
from kernelwright.rl._env import KernelEnv
from kernelwright.rl._jobs import Answer, Job, JobQueue
from kernelwright.rl._local import LocalScorer
from kernelwright.rl._wire import Begun, EpisodeJob, Refusal, Results, ScoreJob, StepJob, Stepped

if TYPE_CHECKING:
    from kernelwright.config import Settings
    from kernelwright.prompts import DeviceFacts

MOST_EPISODES: Final = 1_024  # in memory; others are restored from the run
_BEGUN: Final = "episode"  # kinds of the run's events
_TURN: Final = "turn"
_log = logging.getLogger(__name__)


@dataclass
class _Episode:
    """A running episode; ``last`` and ``completion`` belong to its latest turn."""

    client: str
    problem: Problem
    env: KernelEnv
    last: Stepped | None = None
    completion: str = ""

    def take(self, job: str, completion: str) -> Stepped:
        """Take a turn. If the same job has already taken it, return its result again."""
        if self.last is None or (self.last.job, self.completion) != (job, completion):
            outcome = self.env.step(completion)
            self.last, self.completion = Stepped(job=job, outcome=outcome, score=self.env.score()), completion
        return self.last


class Service:
    """The state of a server. Methods that judge belong to one thread; any thread may call the others.

    Args:
        problems: problems that clients may ask for, as ids or file names; empty for all of the suites.
        capacity: most waiting jobs.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        problems: Sequence[str] = (),
        capacity: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from kernelwright.datasets import find_problem

        self._settings = settings
        self._clock = clock
        self._named = {name: find_problem(name, settings.suite_dirs).id for name in problems}
        self.jobs = JobQueue(capacity)
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()  # for the judging thread only

    # ------------------------------------------------------------------------------------------- for the web

    def check(self, problem: str) -> None:
        """Raise UsageError if clients may not ask for a problem. They cannot name files of this machine."""
        from kernelwright.datasets import find_problem

        if self._named:
            if problem not in self._named and problem not in self._named.values():
                raise UsageError("this server has no such problem", hint="GET /v1/problems lists those that it has")
        elif problem.partition("@")[0].endswith(".py") or "\\" in problem:
            raise UsageError("a problem is named by its id here, not by a file", hint="GET /v1/problems lists them")
        else:
            find_problem(problem, self._settings.suite_dirs)

    def problems(self) -> list[str]:
        """Ids of the problems that may be asked for."""
        from kernelwright.datasets import load_suite, suites

        if self._named:
            return sorted(set(self._named.values()))
        folders = self._settings.suite_dirs
        return [one.id for name in suites(folders) for one in load_suite(name, suite_dirs=folders)]

    def scoring(self, client: str, asked: ScoreJob) -> Job:
        """A job that scores kernels."""
        about = f"{len(asked.requests)} of {asked.requests[0].problem}"
        requests = asked.requests
        return self._job(
            client,
            asked,
            about,
            lambda scorer: Results(job=asked.job, results=tuple(scorer.score(requests))),
            "score",
        )

    def beginning(self, client: str, asked: EpisodeJob) -> Job:
        """A job that begins an episode."""
        about = f"an episode of {asked.problem}"
        return self._job(client, asked, about, lambda scorer: self._begin(client, asked, scorer), "begin")

    def stepping(self, client: str, episode: str, asked: StepJob) -> Job:
        """A job that takes a turn of an episode."""
        return self._job(
            client, asked, "a turn", lambda scorer: self._step(client, episode, asked, scorer), f"step {episode}"
        )

    def _job(
        self,
        client: str,
        asked: ScoreJob | EpisodeJob | StepJob,
        about: str,
        work: Callable[[LocalScorer], BaseModel],
        kind: str,
    ) -> Job:
        content = asked.model_dump_json(exclude={"wait_s"})
        digest = hashlib.sha256(f"{kind}\n{content}".encode()).hexdigest()

        def answer(scorer: LocalScorer) -> Answer:
            return Answer(200, work(scorer).model_dump_json().encode())

        return Job(client, asked.job, digest, answer, about)

    # ---------------------------------------------------------------------------------- for the judging thread

    def work_once(self, scorer: LocalScorer, timeout_s: float) -> bool:
        """Do the next job; False if none came in time."""
        job = self.jobs.take(timeout_s)
        if job is None:
            return False
        began = self._clock()
        self.jobs.finish(job, _answer(job, scorer), self._clock() - began)
        return True

    def _begin(self, client: str, asked: EpisodeJob, scorer: LocalScorer) -> Begun:
        name = uuid4().hex
        made = self._keep(name, client, scorer, asked.problem, asked.backend, asked.turns)
        told = {"client": client, "problem": asked.problem, "backend": asked.backend, "turns": asked.turns}
        scorer.remember(name, _BEGUN, told, made.problem)
        return Begun(job=asked.job, episode=name, observation=made.env.reset())

    def _keep(
        self, name: str, client: str, scorer: LocalScorer, problem: str, backend: Backend, turns: int
    ) -> _Episode:
        found = scorer.problem(problem)
        device = _device(scorer, backend, self._settings)
        env = KernelEnv(scorer, found, backend=backend, turns=turns, device=device, name=problem)
        made = self._episodes[name] = _Episode(client, found, env)
        while len(self._episodes) > MOST_EPISODES:
            self._episodes.popitem(last=False)
        return made

    def _step(self, client: str, name: str, asked: StepJob, scorer: LocalScorer) -> Stepped:
        found = self._episodes.get(name) or self._resumed(name, scorer)
        if found is None or found.client != client:
            raise UsageError("there is no such episode", hint="begin one: POST /v1/episodes")
        self._episodes.move_to_end(name)
        before = found.last
        after = found.take(asked.job, asked.completion)
        if after is not before:
            scorer.remember(name, _TURN, {"job": asked.job, "completion": asked.completion}, found.problem)
        return after

    def _resumed(self, name: str, scorer: LocalScorer) -> _Episode | None:
        """An episode restored from the run, without judging its kernels again; None if the run does not know it."""
        told = scorer.remembered(name)
        if not told or told[0][0] != _BEGUN:
            return None
        begun = told[0][1]
        made = self._keep(name, begun["client"], scorer, begun["problem"], begun["backend"], begun["turns"])
        for _, turn in told[1:]:
            made.take(turn["job"], turn["completion"])
        return made


def refusal(status: int, detail: str, hint: str = "") -> Answer:
    """An answer that refuses a request."""
    return Answer(status, Refusal(detail=detail[:2_000], hint=hint[:2_000]).model_dump_json().encode())


def _answer(job: Job, scorer: LocalScorer) -> Answer:
    try:
        return job.work(scorer)
    except UsageError as error:
        return refusal(422, error.message, error.hint)
    except KernelwrightError as error:
        _log.error("a job of %s could not be done: %s", job.client, error)
        return refusal(500, error.message, error.hint)
    except Exception:  # noqa: BLE001 - the process boundary: a bug of ours, logged with its traceback
        _log.exception("a job of %s broke", job.client)
        return refusal(500, "something broke; the server's log has the details")


def _device(scorer: LocalScorer, backend: Backend, settings: Settings) -> DeviceFacts:
    from kernelwright.evaluator import device_facts

    return device_facts(scorer.environment(backend), backend, cache_dir=settings.cache_dir)
