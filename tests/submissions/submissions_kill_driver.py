"""Kills processes with SIGKILL at every step of taking and judging submissions: ``python submissions_kill_driver.py``
FOLDER. Prints what became of each as JSON.

Each life is a fork of this process, so that nothing is imported twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "campaign"))

from campaign_fakes import REFERENCE, FakeReferee  # noqa: E402

from kernelwright.campaign import device_class_of, language_of  # noqa: E402
from kernelwright.config import Settings  # noqa: E402
from kernelwright.datasets import find_problem  # noqa: E402
from kernelwright.evaluator import BASELINES  # noqa: E402
from kernelwright.records import Candidate, Status  # noqa: E402
from kernelwright.store import Store  # noqa: E402
from kernelwright.submissions import Spool, judge_submissions  # noqa: E402

SOURCES = ("v0\n", "wrong\n")
CALLS = ("fsync", "replace", "unlink")


class Steps:
    """Counts steps, and dies at one of them."""

    def __init__(self, die_at: int) -> None:
        self.die_at = die_at
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        if len(self.names) == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)

    def watch(self) -> None:
        """Make every call that changes the disk a step, before and after it."""
        for name in CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        Store.record_evaluation = self._watched("record", Store.record_evaluation)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self(f"before {name}")
            result = real(*arguments, **named)
            self(f"after {name}")
            return result

        return call


def in_a_child(work: Callable[[], None]) -> bool:
    """Whether a fork that does this was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a life ended with an error"
    return os.WIFSIGNALED(status)


def settings_in(folder: Path) -> Settings:
    problem = folder / "things" / "level1" / "plus_one.py"
    if not problem.exists():
        problem.parent.mkdir(parents=True)
        problem.write_text(REFERENCE)
    flags = {"store": folder / "store.db", "cache_dir": folder / "cache", "suite_dirs": (folder / "things",)}
    return Settings.load(flags={**flags, "device": "none"}, env={})


def judge(folder: Path, point: Callable[[str], None] = lambda name: None) -> None:
    settings = settings_in(folder)
    fake = FakeReferee({"v0": 2.0}, {"wrong": Status.INCORRECT_NUMERICAL}, point=point)
    with Store.open(settings.store) as store:
        judge_submissions(settings, store, Spool(folder / "spool"), once=True, open_referee=lambda _: fake)


def put(folder: Path) -> None:
    spool = Spool(folder / "spool")
    for source in SOURCES:
        spool.put(problem_id="things/level1/plus_one", source=source, author="ada")


def judged_life(folder: Path, die_at: int) -> dict[str, Any]:
    """Judge, die there, judge again; what there is afterwards."""
    folder.mkdir()
    shutil.copy(folder.parent / "store.db", folder)
    in_a_child(lambda: put(folder))

    def work() -> None:
        steps = Steps(die_at)
        steps.watch()
        judge(folder, steps)
        (folder / "steps.json").write_text(json.dumps(steps.names))

    killed = in_a_child(work)
    if killed:
        in_a_child(lambda: judge(folder))
    return {"killed": killed, **outcome(folder)}


def outcome(folder: Path) -> dict[str, Any]:
    spool = Spool(folder / "spool")
    found: dict[str, Any] = {}
    with Store.open(folder / "store.db") as store:
        for state in spool.latest():
            submission = spool.submission(state.id)
            assert submission is not None
            recorded = store.evaluations(candidate=None, problem=submission.problem_id)
            mine = [stored for stored in recorded if stored.action["submission"] == state.id]
            found[submission.source] = {
                "state": state.state,
                "status": state.status,
                "sessions": [stored.action["session"] for stored in mine],
                "evaluations": list(state.evaluations) == [stored.id for stored in mine],
            }
        sound = store.check().ok
    left = sorted(str(path.relative_to(folder / "spool")) for path in (folder / "spool").rglob("*") if path.is_file())
    return {"submissions": found, "sound": sound, "left": [name for name in left if not name.startswith("done/")]}


def put_life(folder: Path, die_at: int) -> dict[str, Any]:
    """Submit, die there; what there is afterwards, and whether submitting goes on."""
    folder.mkdir()

    def work() -> None:
        steps = Steps(die_at)
        steps.watch()
        put(folder)
        (folder / "steps.json").write_text(json.dumps(steps.names))

    killed = in_a_child(work)
    spool = Spool(folder / "spool")
    sources = [(spool.submission(state.id) or state).model_dump().get("source") for state in spool.latest()]
    strays = [stray.name for stray in spool.strays()]
    in_a_child(lambda: put(folder))
    after = len(spool.latest())
    return {"killed": killed, "sources": sources[::-1], "strays": strays, "more": after - len(sources)}


def every_life(base: Path, live: Callable[[Path, int], dict[str, Any]]) -> dict[str, Any]:
    whole = live(base / "whole", -1)
    steps = json.loads((base / "whole" / "steps.json").read_text())
    lives = [{"at": f"{number} {name}", **live(base / str(number), number)} for number, name in enumerate(steps)]
    return {"whole": whole, "steps": steps, "lives": lives}


def load_everything(base: Path) -> None:
    """What is imported on first use, so that not each life imports it."""
    settings = settings_in(base)
    problem = find_problem("things/level1/plus_one", settings.suite_dirs)
    candidate = Candidate(problem_id=problem.id, source="v0\n", backend="cpp")
    assert (language_of(candidate), device_class_of("cpp", settings)) == ("cpp", "cpu")
    assert "eager" in BASELINES


def main() -> None:
    base = Path(sys.argv[1])
    for name in ("put", "judged"):
        (base / name).mkdir()
    with Store.open(base / "judged" / "store.db"):
        pass
    load_everything(base)
    found = {"put": every_life(base / "put", put_life), "judged": every_life(base / "judged", judged_life)}
    print(json.dumps(found))


main()
