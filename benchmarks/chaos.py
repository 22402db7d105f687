"""Kills drivers, workers and nodes of real runs at random, fills their disk, moves their clocks; then counts verdicts.

    python benchmarks/chaos.py [--pool spool|ray|local] [--problems 60] [--kills 100] [--seed 1] [--output FILE.json]

The run is a real one, with its step, store and pool. Only the referee is not: it waits some tenths of a second and
then judges by a table. Each life of a driver and of a worker is a process of its own. After every few verdicts, within
a second, one of them gets SIGKILL and is started again. With ``spool``, one worker's wall clock is a day ahead and
another one's a day behind, if libfaketime is installed; and the spool's disk, a small tmpfs of its own (root only), is
full for a second now and then. With ``ray``, actors and whole nodes of a cluster on this machine are killed besides
the driver.

It fails unless the run ends, each problem has the verdicts that a run in peace has (a candidate that has cost two
workers may be quarantined instead), each of them once, and the store is sound.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "campaign"))

from campaign_fakes import FakeReferee, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.errors import KernelwrightError
from kernelwright.pool import Dispatcher, OwnSeat, SpoolFolder, SpoolPool, Worker, closing_pool
from kernelwright.store import Store

ROOT = Path(__file__).parents[1]
ROUNDS = 4
SPEEDUPS = {"v0": 1.1, "v1": 2.0, "v2": 1.6, "v3": 1.8}
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "campaign", ROOT / "benchmarks")))
LEASE_S, BEAT_S = 3.0, 0.5
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
FULL_S = 1.0


def rest(seconds: float) -> None:
    """Wait. ``time.sleep`` does not work under libfaketime."""
    select.select([], [], [], seconds)


class SlowReferee(FakeReferee):
    """Judges by a table, after a while."""

    def __init__(self, settings: object = None) -> None:
        super().__init__(SPEEDUPS, point=self._wait)

    @staticmethod
    def _wait(name: str) -> None:
        if name.startswith("judging"):
            rest(random.uniform(0.1, 0.6))


def settings_in(folder: Path) -> Settings:
    roles = {"coder": "scripted", "judge": "scripted", "rounds": ROUNDS}
    return Settings(store=folder / "store.db", cache_dir=folder / "cache", parallel_problems=8, **roles)


def drive(folder: Path, kind: str, address: str, count: int) -> None:
    """One life of the driver: begin the run, or resume it."""
    register_scripted_roles()
    settings = settings_in(folder)

    @contextmanager
    def open_pool(settings, languages, **more):
        if kind in ("local", "peace"):
            yield None
        elif kind == "spool":
            yield SpoolPool(SpoolFolder(folder / "spool", create=True, lease_s=LEASE_S), **more)
        else:
            from kernelwright.pool._ray import RayRoster

            with closing_pool(Dispatcher(RayRoster(address, open_referee=SlowReferee), look_s=0.5, **more)) as pool:
                yield pool

    home = SlowReferee() if kind == "local" else FakeReferee(SPEEDUPS)
    with Store.open(settings.store) as store:
        tell = lambda event: event.kind == "note" and print(event.data["text"], file=sys.stderr, flush=True)  # noqa: E731
        campaign = Campaign(settings, store, open_referee=lambda _: home, open_pool=open_pool, tell=tell)
        runs = store.runs()
        if runs and runs[0].status == "finished":
            return
        if runs:
            campaign.resume(runs[0].id)
        else:
            campaign.run([make_problem(f"p{n:03}") for n in range(count)])


def work(folder: Path) -> None:
    """One life of a worker."""
    spool = SpoolFolder(folder / "spool", create=True, lease_s=LEASE_S)
    Worker(spool, OwnSeat(settings_in(folder), SlowReferee), beat_s=BEAT_S, wait=lambda s: rest(0.1)).run()


class Lives:
    """The processes of a run, each started again when it dies."""

    def __init__(self, folder: Path, kind: str, problems: int, rng: random.Random) -> None:
        self.folder, self.kind, self.problems, self.rng = folder, kind, problems, rng
        self.address, self.cluster, self.nodes = "", None, []
        self.running: dict[str, subprocess.Popen] = {}
        self.count: Counter[str] = Counter()
        self.log = (folder / "log.txt").open("a")
        if kind == "ray":
            os.environ["PYTHONPATH"] = PATHS
            from ray.cluster_utils import Cluster

            self.cluster = Cluster(
                initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"kernelwright": 0.0}}
            )
            self.address = self.cluster.address
            self._add_nodes()

    def _add_nodes(self) -> None:
        while self.cluster is not None and len(self.nodes) < 2:
            self.nodes.append(self.cluster.add_node(num_cpus=1, resources={"kernelwright": 1}))

    def wanted(self) -> dict[str, tuple[list[str], dict[str, str]]]:
        driver = ["drive", str(self.folder), self.kind, self.address, str(self.problems)]
        found = {"driver": (driver, {})}
        if self.kind == "spool":
            for name, skew in (("worker 1", "+1d"), ("worker 2", "-1d")):
                moved = {"LD_PRELOAD": FAKETIME, "FAKETIME": skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
                found[name] = ["work", str(self.folder)], moved if Path(FAKETIME).exists() else {}
        return found

    def revive(self) -> bool:
        """Start what is dead. Returns whether the driver has ended on its own."""
        for name, (words, extra) in self.wanted().items():
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                continue
            if process is not None and name == "driver" and process.returncode == 0:
                return True
            env = {**os.environ, **extra, "PYTHONPATH": PATHS, "RAY_USAGE_STATS_ENABLED": "0"}
            command = [sys.executable, str(Path(__file__).absolute()), *words]
            self.running[name] = subprocess.Popen(
                command, env=env, stdout=self.log, stderr=self.log, start_new_session=True
            )
        return False

    def verdicts(self) -> int:
        """The number of verdicts so far."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(self.folder / "store.db", timeout=5)) as database:
            return int(database.execute("SELECT count(*) FROM evaluations").fetchone()[0])
        return 0

    def kill(self) -> None:
        """Kill something."""
        victims = [*self.running, *(["actor", "node"] if self.kind == "ray" else [])]
        name = self.rng.choice(victims)
        self.count[name] += 1
        if name == "node":
            self.cluster.remove_node(self.nodes.pop(self.rng.randrange(len(self.nodes))), allow_graceful=False)
            self._add_nodes()
        elif name == "actor":
            found = subprocess.run(["pgrep", "-f", "ray::Actor"], capture_output=True, text=True, check=False)
            for pid in found.stdout.split()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        else:
            with suppress(ProcessLookupError):
                os.killpg(self.running[name].pid, signal.SIGKILL)

    def fill(self) -> None:
        """Fill the spool's disk for a while."""
        self.count["disk full"] += 1
        filler = self.folder / "spool" / "temporary" / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"\0" * 2**16)
                file.flush()
        time.sleep(FULL_S)
        filler.unlink(missing_ok=True)

    def close(self) -> None:
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self.cluster is not None:
            self.cluster.shutdown()


@contextmanager
def small_disk(folder: Path, wanted: bool):
    """A tmpfs of 8 MB at the spool's place, if this user may mount one."""
    place = folder / "spool"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    mounted = wanted and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def peaceful(count: int) -> Counter:
    """The verdicts of a run in peace."""
    with tempfile.TemporaryDirectory() as folder:
        drive(Path(folder), "peace", "", count)
        return verdicts_in(Path(folder))[0]


def verdicts_in(folder: Path) -> tuple[Counter, Counter]:
    """The verdicts of the only run, by problem, kernel and kind; and those of quarantined candidates among them."""
    with Store.open(folder / "store.db") as store:
        (run,) = store.runs()
        assert run.status == "finished", run.status
        assert store.check().ok
        found, quarantined = Counter(), Counter()
        for one in store.evaluations(run_id=run.id):
            timing = one.verdict.timing
            confirms = one.verdict.failed_stage == "confirm" or (timing is not None and timing.confirmed)
            place = one.candidate.problem_id, one.candidate.source[:2], "confirm" if confirms else "search"
            found[place] += 1
            if one.verdict.status == "QUARANTINED":
                quarantined[place] += 1
        return found, quarantined


def main() -> int:
    if sys.argv[1:2] == ["drive"]:
        folder, kind, address, count = sys.argv[2:]
        drive(Path(folder), kind, address, int(count))
        return 0
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", choices=["spool", "ray", "local"], default="spool")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=15.0, help="give up after this time")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    began = time.monotonic()
    with small_disk(folder, given.pool == "spool") as mounted:
        lives = Lives(folder, given.pool, given.problems, rng)
        try:
            between = max(1, given.problems * ROUNDS // given.kills // 2)  # verdicts from one blow to the next
            seen = 0
            while not lives.revive():
                time.sleep(0.05)
                if sum(lives.count.values()) < given.kills and lives.verdicts() >= seen + between:
                    time.sleep(rng.uniform(0.0, 1.0))
                    lives.fill() if mounted and rng.random() < 0.1 else lives.kill()
                    seen = lives.verdicts()
                if time.monotonic() - began > 60.0 * given.minutes:
                    print(f"the run has not ended in {given.minutes:g} minutes; see {folder}", file=sys.stderr)
                    return 1
        finally:
            lives.close()
        found, quarantined = verdicts_in(folder)
    wanted = peaceful(given.problems)
    doubled = {place: n for place, n in found.items() if n > 1}
    hurt = {problem for problem, _, _ in quarantined}
    lost = [place for place in wanted if place not in found and place[0] not in hurt]
    row = {
        "pool": given.pool,
        "problems": given.problems,
        "killed": dict(lives.count),
        "kills": sum(lives.count.values()),
        "clocks_moved": given.pool == "spool" and Path(FAKETIME).exists(),
        "disk_filled": mounted,
        "verdicts": sum(found.values()),
        "quarantined": sum(quarantined.values()),
        "doubled": len(doubled),
        "lost": len(lost),
        "wall_s": round(time.monotonic() - began, 1),
    }
    print(json.dumps(row))
    if given.output is not None:
        given.output.write_text(json.dumps(row, indent=1) + "\n")
    if doubled or lost:
        print(f"doubled: {doubled}\nlost: {lost}\nsee {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KernelwrightError as error:
        sys.exit(f"error: {error}")
