"""Whoever is killed, and whenever: no verdict is invented, none is lost, and nothing is left behind.

Processes are killed with SIGKILL at random moments while real candidates are judged: contestants, twins, builders, and
the referee itself. ``KERNELWRIGHT_KILLS`` says how often; the seed of a failure is in its message.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from referee_candidates import candidate
from referee_small_problems import SOFTMAX_PROBLEM, make_problem

from kernelwright.config import Settings
from kernelwright.errors import MachineError
from kernelwright.evaluator import Referee
from kernelwright.evaluator.host import client as _client
from kernelwright.records import Candidate, Evaluation, Status
from kernelwright.store import Store

pytestmark = pytest.mark.timeout(900)  # minutes, on a slow machine
KILLS = int(os.environ.get("KERNELWRIGHT_KILLS", "18"))
BUILDERS = frozenset({"sh", "g++", "cc1plus", "as", "ld", "bwrap"})
OWNER_KILLS = max(KILLS // 10, 3)
METHOD = {"looks": (4,), "window_ms": 0.2, "check_trials": 1}
QUICK = {"measurement": METHOD, "sandbox": "auto", "memory_bytes": 1 << 30}
BY_OTHERS = "killed"  # what a contestant that somebody else killed is said to have been


def source(number: int, *, right: bool) -> str:
    """A kernel that has to be built; ``number`` makes it another one."""
    made = candidate("" if right else "y.mul_(1.01)", top=f"NUMBER = {number}")
    return made.replace("#include <cmath>", f"// {number}\n#include <cmath>")


class Killer:
    """Kills one process of a kind, some milliseconds after it was armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workers: list[tuple[str, int]] = []
        made, real = self.workers, _client.Client.__init__

        def remember(client: _client.Client, *arguments: object, **options: object) -> None:
            real(client, *arguments, **options)
            made.append((client.name, client.worker.pid))

        monkeypatch.setattr(_client.Client, "__init__", remember)
        self.killed: list[str] = []

    @contextlib.contextmanager
    def armed(self, kind: str, after_s: float):
        """While active, kills once: as soon as there is one of the kind, but not before ``after_s``.

        A twin that is still there at the end is killed then: it lives on between verdicts.
        """
        self.killed, stop = [], threading.Event()
        self.workers[:] = [(name, pid) for name, pid in self.workers if alive(pid)]  # a number may be given out again
        thread = threading.Thread(target=self._work, args=(kind, after_s, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if kind == "twin" and not self.killed:
            self._kill(kind)

    def _work(self, kind: str, after_s: float, stop: threading.Event) -> None:
        stop.wait(after_s)
        while not stop.is_set() and not self._kill(kind):
            stop.wait(0.002)

    def _kill(self, kind: str) -> bool:
        for pid in self._pids(kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed.append(kind)
                return True
        return False

    def _pids(self, kind: str) -> list[int]:
        if kind == "builder":
            return [pid for pid in descendants(os.getpid()) if name_of(pid) in BUILDERS]
        wanted = {"contestant": "candidate", "twin": "eager"}[kind]
        return [pid for name, pid in reversed(self.workers) if name == wanted and alive(pid)]


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def descendants(owner: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry))
    found, queue = [], [owner]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def mounts() -> list[str]:
    """Mounts that look like ours; others may come and go."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if "kernelwright" in line]


def groups(owner: int) -> list[str]:
    """Control groups that a process made."""
    found = []
    for root in {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup" in line}:
        for directory, names, _ in os.walk(root):
            found += [f"{directory}/{name}" for name in names if name.startswith(f"kernelwright-{owner}-")]
    return found


def until(condition, timeout_s: float = 20.0) -> bool:
    """Whether a condition comes to hold."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        select.select([], [], [], 0.02)
    return bool(condition())


def allowed(evaluation: Evaluation, *, right: bool, killed: list[str]) -> bool:
    """Whether a verdict is one that an honest referee may give."""
    verdict = evaluation.verdict
    if not right:
        return verdict.status is Status.INCORRECT_NUMERICAL or _died_of_it(evaluation, killed)
    return verdict.status is Status.PASSED or _died_of_it(evaluation, killed)


def _died_of_it(evaluation: Evaluation, killed: list[str]) -> bool:
    verdict = evaluation.verdict
    return verdict.status is Status.RUNTIME_ERROR and BY_OTHERS in verdict.reason and "contestant" in killed


@pytest.fixture
def settings(tmp_path):
    return Settings.load(flags={**QUICK, "cache_dir": str(tmp_path / "cache")}, env={})


def test_killed_workers_and_builders_invent_no_verdict(settings, monkeypatch, tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    rng, killer = random.Random(seed), Killer(monkeypatch)
    problem = make_problem(SOFTMAX_PROBLEM, "softmax")
    standing, others = mounts(), set(groups(os.getpid()))  # of tests that share a referee
    struck = dict.fromkeys(("contestant", "twin", "builder"), 0)
    with Referee(settings) as referee, referee.open(problem, baselines=("eager",)) as session:
        for number in range(KILLS - OWNER_KILLS):
            kind = list(struck)[number % len(struck)]
            right = kind == "twin" or rng.random() < 0.7  # only who is right meets a twin
            made = Candidate(problem_id=problem.id, source=source(number, right=right), backend="cpp")
            try:
                with killer.armed(kind, rng.uniform(0.0, 0.02 if kind == "builder" else 0.6)):
                    evaluation = session.judge(made)
            except MachineError:
                assert killer.killed, f"a fault of the machine that nobody caused (seed {seed}, number {number})"
                struck[kind] += 1
                continue
            struck[kind] += len(killer.killed)
            said = (evaluation.verdict.status, evaluation.verdict.reason)
            assert allowed(evaluation, right=right, killed=killer.killed), (said, killer.killed, seed, number)
        assert all(struck.values()), struck
        after = session.judge(Candidate(problem_id=problem.id, source=source(-1, right=True), backend="cpp"))
        assert after.verdict.passed, after.verdict.reason
    assert until(lambda: set(groups(os.getpid())) <= others)
    assert until(lambda: not [pid for _, pid in killer.workers if alive(pid)])
    assert mounts() == standing
    assert not [path for path in (tmp_path / "cache").rglob(".*") if path.is_file()]


DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from referee_small_problems import SOFTMAX_PROBLEM, make_problem
from test_referee_kills import QUICK, source
from kernelwright.config import Settings
from kernelwright.evaluator import Referee
from kernelwright.records.verdicts import Candidate
from kernelwright.store import Store

folder, problem = Path(sys.argv[2]), make_problem(SOFTMAX_PROBLEM, "softmax")
settings = Settings.load(flags={**QUICK, "cache_dir": str(folder / "cache")}, env={})
with Store.open(folder / "store.db") as store, Referee(settings) as referee:
    with referee.open(problem, baselines=("eager",)) as session:
        store.record_problem(problem)
        print("ready", flush=True)
        for number in range(1000):
            right = number % 3 > 0
            made = Candidate(problem_id=problem.id, source=source(number, right=right), backend="cpp", note=str(right))
            stored = store.record_evaluation(session.judge(made))
            print(stored, right, flush=True)
"""


def test_a_killed_referee_loses_nothing_and_leaves_nothing(tmp_path, sample):
    seed = random.SystemRandom().randrange(1 << 30)
    rng, told = random.Random(seed), []
    for _ in range(sample.number(OWNER_KILLS, 2)):
        owner = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        lines, deadline = [], time.monotonic() + rng.uniform(0.0, 1.2)
        while (left := deadline - time.monotonic()) > 0:
            if select.select([owner.stdout], [], [], left)[0]:
                lines.append(owner.stdout.readline())
        family = descendants(owner.pid)
        owner.kill()
        told += lines + owner.stdout.readlines()
        owner.wait()
        owner.stdout.close()
        assert until(lambda family=family: not [pid for pid in family if alive(pid)]), (seed, "processes are left")
    with sqlite3.connect(tmp_path / "store.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with Store.open(tmp_path / "store.db") as store:
        for line in told:
            stored, right = line.split()
            verdict = store.evaluation(stored).evaluation.verdict
            assert verdict.passed == (right == "True"), (seed, verdict.status, verdict.reason)
        assert store.check().damage == ()
