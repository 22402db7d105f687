"""How busy the engine keeps devices, and what a job costs it: real runs, with a referee that only waits.

    python benchmarks/campaign.py [--jobs 2000] [--seats 1 8 64] [--pool local|ray] [--output FILE.json]

A run works on jobs/10 problems in 9 rounds and a confirmation, scripted in nothing but the kernels' texts and the
verdicts: the step, its saved states, the store, the schedule and the dispatcher are those of every run. A judgement
takes a time drawn from a log-normal distribution (median 5 s, sigma 0.6, seeded), divided by ``--scale``: the scaled
clock. The benchmark prints two figures. The busy share is the seats' time of judging, divided by the time in which
work was ready for them. The processor time a job is the driver's, without the stand-in referee's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "campaign"))

from campaign_fakes import FakeReferee, FakeSession, Seats, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.pool import Dispatcher, OwnSeat, closing_pool
from kernelwright.records import Evaluation, Problem
from kernelwright.store import Store

MEDIAN_S, SIGMA = 5.0, 0.6
ROUNDS = 9  # and a confirmation


class TimedSession(FakeSession):
    """Adds up the processor time of its judgements in this process."""

    spent: ClassVar[list[float]] = []

    def judge(self, *given: Any, **options: Any) -> Evaluation:
        began = time.thread_time()
        try:
            return super().judge(*given, **options)
        finally:
            self.spent.append(time.thread_time() - began)


class WaitingReferee(FakeReferee):
    """Judges by a table after a time of waiting."""

    def __init__(self, scale: float) -> None:
        super().__init__({f"v{n}": 1.0 + 0.1 * n for n in range(ROUNDS)}, point=self._wait)
        self._scale, self._problem = scale, ""

    @contextmanager
    def open(self, problem: Problem, **options: Any) -> Iterator[FakeSession]:
        with super().open(problem, **options) as session:
            yield TimedSession(session.referee, session.problem, session.on_stage)

    def _wait(self, name: str) -> None:
        if name.startswith("open "):
            self._problem = name
        if name.startswith("judging"):
            drawn = random.Random(f"{self._problem} {name}").gauss(math.log(MEDIAN_S), SIGMA)
            time.sleep(math.exp(drawn) / self._scale)


def measure(jobs: int, seats: int, kind: str, scale: float) -> dict:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            store=Path(folder) / "store.db",
            cache_dir=Path(folder) / "cache",
            coder="scripted",
            judge="scripted",
            rounds=ROUNDS,
            parallel_problems=min(2 * seats + 2, jobs // (ROUNDS + 1)),
        )
        state = None

        @contextmanager
        def open_pool(settings, languages, **more):
            nonlocal state
            with closing_pool(Dispatcher(roster(seats, settings, kind, scale), **more)) as pool:
                pool.environment_for("cpp")
                yield pool
                state = pool.state

        problems = [make_problem(f"p{n:04}") for n in range(max(1, jobs // (ROUNDS + 1)))]
        with Store.open(settings.store) as store:
            campaign = Campaign(settings, store, open_referee=lambda _: FakeReferee(), open_pool=open_pool)
            TimedSession.spent.clear()
            began, cpu = time.monotonic(), time.process_time()
            result = campaign.run(problems)
            wall, cpu = time.monotonic() - began, time.process_time() - cpu - sum(TimedSession.spent)
            evaluations = store.query("SELECT count(*) AS n FROM evaluations", [])[0]["n"]
    assert result.status == "finished"
    return {
        "pool": kind,
        "seats": seats,
        "jobs": evaluations,
        "scale": scale,
        "wall_s": round(wall, 2),
        "busy_share": round(state.busy_s / state.ready_s, 4),
        "busy_share_of_all_time": round(state.busy_s / (wall * seats), 4),
        "driver_cpu_ms_a_job": round(1e3 * cpu / evaluations, 2),
    }


def roster(seats: int, settings: Settings, kind: str, scale: float) -> object:
    if kind == "local":
        return Seats(*(OwnSeat(settings, lambda _: WaitingReferee(scale), name=str(n)) for n in range(seats)))
    import ray

    from kernelwright.pool._ray import RayRoster

    ray.shutdown()  # the cluster of the run before
    ray.init(num_cpus=1, resources={"kernelwright": seats}, include_dashboard=False, log_to_driver=False)
    return RayRoster(open_referee=lambda _: WaitingReferee(scale))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seats", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--pool", choices=["local", "ray"], default="local")
    parser.add_argument("--scale", type=float, help="default: so that a job ends about every 25 ms")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    register_scripted_roles()
    if given.pool == "ray":
        here = str(Path(__file__).parents[1] / "tests" / "campaign")
        os.environ["PYTHONPATH"] = os.pathsep.join([here, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    rows = []
    for seats in given.seats:
        rows.append(measure(given.jobs, seats, given.pool, given.scale or MEDIAN_S / 0.025 / seats))
        print(json.dumps(rows[-1]), flush=True)
    if given.output is not None:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        given.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
