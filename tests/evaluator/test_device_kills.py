"""Whichever process of a device's protocol is killed, and whenever: an error says so, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from device_rows import SLOW_SOFTMAX
from referee_small_problems import SOFTMAX_PROBLEM, make_problem
from stand_in.contestant import SLOTS, Contestant, judged

from kernelwright.errors import InvalidReferenceError, MachineError
from kernelwright.evaluator import Referee
from kernelwright.evaluator.device.keeper_client import Keeper, KeeperError
from kernelwright.evaluator.device.queue import QueueLibrary
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Candidate, Status

KILLS = int(os.environ.get("KERNELWRIGHT_KILLS", "12"))
TESTS = Path(__file__).parent.parent
KILLED = {"keeper": KeeperError, "worker": WorkerFailed}
REFEREE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stand_in import stand_in
from stand_in.contestant import Contestant
from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.device.queue import QueueLibrary

made = stand_in(Path(sys.argv[2]))
keeper = Keeper(made.library, images=made.images)
one = Contestant((made, QueueLibrary(Path(sys.argv[3]))), keeper, "synchronising", 4)
print(keeper.pid, one.process.pid, flush=True)
while True:
    one.window({0: 0}, timeout_s=60.0)
    one.calls = 4
"""


def lives(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pids: list[int], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while any(lives(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if lives(pid)]
        time.sleep(0.01)


def device_files() -> int:
    """Memory files that this process holds."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("memfd:" in link for link in links)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return QueueLibrary(tmp_path_factory.mktemp("queue"))


@pytest.mark.parametrize("victim", ["keeper", "worker"])
def test_a_kill_at_any_moment_is_told_and_leaves_nothing(rehearsed, library, victim):
    before, rng = device_files(), random.Random(victim)
    told = right = 0
    for _ in range(-(-KILLS // 2)):
        with contextlib.ExitStack() as ending:
            keeper = Keeper(rehearsed.library, images=rehearsed.images)
            ending.callback(keeper.close)
            one = Contestant((rehearsed, library), keeper, rng.choice(["honest", "synchronising"]), SLOTS)
            ending.callback(one.end)
            pid = keeper.pid if victim == "keeper" else one.process.pid
            timer = threading.Timer(rng.uniform(0.0, 0.4), os.kill, (pid, signal.SIGKILL))
            ending.callback(timer.join)
            timer.start()
            try:
                window = one.window({0: 0, 5: 1})
                assert judged(one, window) == {0: (True, 0), 5: (True, 0)}
                right += 1
            except KILLED[victim]:
                told += 1
            pids = [keeper.pid, one.process.pid]
        until_gone(pids)
    assert told + right == -(-KILLS // 2)
    assert told
    assert device_files() == before


def test_a_killed_referee_takes_keeper_and_worker_with_it(rehearsed, tmp_path_factory, tmp_path):
    shared = tmp_path_factory.getbasetemp().parent / "stand-in"
    for k in range(max(KILLS // 6, 2)):
        arguments = [str(TESTS), str(shared), str(tmp_path)]
        process = subprocess.Popen([sys.executable, "-c", REFEREE, *arguments], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout as stream:
            pids = [int(word) for word in stream.readline().split()]
        assert len(pids) == 2
        time.sleep(0.05 * k)
        process.kill()
        process.wait()
        until_gone(pids)


def on_the_device() -> list[int]:
    """Processes that have the stand-in mapped: keeper, workers, replayers."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and "libcuda.so.1" in (folder / "maps").read_text():
                found.append(int(folder.name))
    return found


JUDGED = (Status.PASSED, Status.RUNTIME_ERROR, Status.TIMEOUT, Status.QUARANTINED)


@pytest.mark.timeout(max(300, 10 * KILLS))
def test_whoever_is_killed_while_a_referee_judges_a_status_or_an_error_says_so(
    referee, stand_in_device, stand_in_builds
):
    """Kills hit keeper, twin, candidate, ghost, recorder and replayer, whichever there are."""
    rng, seen = random.Random(7), {"judged": 0, "error": 0}
    method = referee.settings.measurement.with_values(looks=(3,), check_trials=2)
    settings = referee.settings.with_values(measurement=method, call_timeout_s=2.0)
    with Referee(settings, device=stand_in_device) as made, contextlib.ExitStack() as ending:
        made.host.builds = stand_in_builds(made.host.builds)
        problem, session = make_problem(SOFTMAX_PROBLEM, "softmax"), None
        for number in range(KILLS):
            candidate = Candidate(problem_id="softmax", source=f"{SLOW_SOFTMAX}# {number}", backend="cuda")
            killer = threading.Timer(rng.uniform(0.05, 1.5), kill_one, (rng,))
            try:
                if session is None:
                    opened = made.open(problem, backend="cuda", baselines=("eager",))
                    session = ending.enter_context(opened)
                    session.screens = False
                killer.start()
                verdict = session.judge(candidate).verdict
                assert verdict.status in JUDGED, (verdict.status, verdict.reason)
                seen["judged"] += 1
            except (MachineError, InvalidReferenceError):
                seen["error"] += 1
                ending.close()
                session = None
            finally:
                killer.cancel()
                if killer.ident is not None:
                    killer.join()
        with made.open(problem, backend="cuda", baselines=("eager",)) as last:
            last.screens = False
            assert last.judge(candidate).verdict.status is Status.PASSED
    until_gone([pid for pid in on_the_device() if descends_from(pid, os.getpid())])
    assert seen["judged"]
    assert sum(seen.values()) == KILLS


def kill_one(rng: random.Random) -> None:
    ours = [pid for pid in on_the_device() if descends_from(pid, os.getpid())]
    if ours:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(ours), signal.SIGKILL)


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether a process descends from another one."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
