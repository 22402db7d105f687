"""Runs a training from its plan to its result: begins or resumes it, and measures before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernelwright.agents import CARD
from kernelwright.campaign import Mean
from kernelwright.errors import UsageError
from kernelwright.files import write_whole
from kernelwright.records import KnobValue, Record
from kernelwright.rl._held_out import HeldOut, best_single, held_out
from kernelwright.rl._plan import PLAN, TrainPlan
from kernelwright.rl._progress import Progress, read_lines
from kernelwright.rl._schedule_problems import ScheduleScorer, Twins, captured_all, mean
from kernelwright.rl._tiny import require_training
from kernelwright.rl._trl import Course, quiet_environment

if TYPE_CHECKING:
    from kernelwright.rl._scoring import Scorer

_Open = Callable[[], AbstractContextManager["Scorer"]]
RESULT: Final = "result.json"
CURVE: Final = "curve.svg"
SINGLE: Final = "single.json"


class TrainResult(Record):
    """The result of a training.

    Attributes:
        folder: folder of all files of the training.
        model: folder of the trained policy or model.
        finished: whether the training came to its end; otherwise it can be resumed.
        seconds: time of training, without the measurements before and after it.
        steps: number of batches that it learned from.
        verdicts: number of verdicts of the referee, each kernel once.
        first, last: mean reward (loss for imitation) at the beginning and at the end; of a schedule policy, the mean
            over all problems.
        single: best single schedule for the training problems; empty if that is the default.
        over: for a schedule policy, how many times as fast its kernels for held-out problems are as those of others.
        held_out_before, held_out_after: for a writer of kernels, mean reward or loss on held-out problems.
    """

    method: str
    task: str
    folder: str
    model: str
    finished: bool
    seconds: float
    steps: int
    verdicts: int = 0
    first: float | None = None
    last: float | None = None
    single: Mapping[str, KnobValue] = {}
    over: Mapping[str, Mean] = {}
    held_out_before: float | None = None
    held_out_after: float | None = None


def begin(plan: TrainPlan, folder: Path) -> None:
    """Create the folder of a training.

    Raises:
        UsageError: the folder holds a training already.
    """
    if (folder / PLAN).exists():
        raise UsageError(
            f"{folder} holds a training already",
            hint=f"resume it: kernelwright rl train --resume {folder}; or choose another --output",
        )
    plan.save(folder)


def run_training(
    folder: Path,
    open_scorer: Callable[[], AbstractContextManager[Scorer]] | None,
    open_measurer: Callable[[], AbstractContextManager[Scorer]] | None = None,
    *,
    tell: Callable[[str], None] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> TrainResult:
    """Run the training in a folder, from where it stopped.

    Args:
        open_scorer: opens the scorer of kernels; a schedule policy needs one with a local referee. None for imitation.
        open_measurer: opens the scorer that measures a policy on held-out problems, with settings of its own; by
            default the same.
        stop: called after each step; whether to end. The progress is kept.

    Raises:
        MissingToolError: packages that training needs are missing.
        UsageError: the plan cannot be carried out.
    """
    require_training()
    quiet_environment()
    plan = TrainPlan.load(folder)
    course = Course(plan, folder, Progress(folder), tell, stop, clock)
    try:
        if plan.method == "sft":
            result = _imitation(course)
        elif plan.task == "schedule":
            assert open_scorer is not None
            result = _policy(course, open_scorer, open_measurer or open_scorer)
        else:
            assert open_scorer is not None
            with open_scorer() as scorer:
                result = _writing(course, scorer)
    finally:
        course.progress.close()
    write_whole(folder / RESULT, result.model_dump_json(indent=1) + "\n")
    return result


def _policy(course: Course, open_scorer: _Open, open_measurer: _Open) -> TrainResult:
    from kernelwright.rl._policy_training import POLICY, verdicts_of

    plan, folder = course.plan, course.folder
    if not (folder / POLICY / CARD).exists():
        with open_scorer() as scorer:
            _learn(course, scorer)  # type: ignore[arg-type]
    interrupted = course.stop()
    found, single = None, dict[str, KnobValue]()
    if plan.held_out and not interrupted:
        with open_measurer() as measurer:
            found, single = _measured(course, measurer)  # type: ignore[arg-type]
    draw_curve(course)
    return _policy_result(course, found, single, verdicts_of(course), finished=not interrupted)


def _learn(course: Course, scorer: ScheduleScorer) -> None:
    from kernelwright.rl._policy_training import reinforce, start

    plan = course.plan
    course.tell(f"capturing {len(plan.problems)} problems to train on")
    problems = list(captured_all(plan.problems, scorer, plan.backend))
    start(course, problems)
    reinforce(course, problems, Twins(scorer, plan.backend))


def _measured(course: Course, measurer: ScheduleScorer) -> tuple[HeldOut, dict[str, KnobValue]]:
    from kernelwright.rl._policy_training import POLICY, ROLLOUTS, START, schedules_of

    plan, folder = course.plan, course.folder

    def find_single() -> dict[str, KnobValue]:
        problems = list(captured_all(plan.problems, measurer, plan.backend))
        return best_single(problems, read_lines(folder / ROLLOUTS), measurer, course.tell, course.stop)

    single = _kept(folder / SINGLE, find_single)
    course.tell(f"capturing {len(plan.held_out)} problems that were held out")
    held = list(captured_all(plan.held_out, measurer, plan.backend))
    others = {
        "default": {one.name: one.default for one in held},
        "best-single": {one.name: one.projected(single) for one in held},
        "untrained": schedules_of(folder / START, held),
    }
    found = held_out(held, schedules_of(folder / POLICY, held), others, measurer, course.tell)
    write_whole(folder / "held_out.json", found.model_dump_json(indent=1) + "\n")
    return found, single


def _policy_result(
    course: Course,
    found: HeldOut | None,
    single: Mapping[str, KnobValue],
    verdicts: int,
    *,
    finished: bool,
) -> TrainResult:
    curve = smoothed_rewards(course.progress.rows, course.plan.problems)
    return TrainResult(
        method=course.plan.method,
        task=course.plan.task,
        folder=str(course.folder),
        model=str(course.folder / "policy"),
        finished=finished,
        seconds=course.progress.seconds,
        steps=len(course.progress.rows),
        verdicts=verdicts,
        first=curve[0][1] if curve else None,
        last=curve[-1][1] if curve else None,
        single=single,
        over={} if found is None else found.over,
    )


def _writing(course: Course, scorer: Scorer) -> TrainResult:
    from kernelwright.rl._kernel_rl import reinforce_writer

    found = reinforce_writer(course, scorer)
    rows = course.progress.rows
    return TrainResult(
        method="grpo",
        task="kernel",
        folder=str(course.folder),
        model=str(course.folder / "model"),
        finished=not course.stop(),
        seconds=course.progress.seconds,
        steps=len(rows),
        verdicts=max((row.get("verdicts", 0) for row in rows), default=0),
        first=rows[0]["reward"] if rows else None,
        last=rows[-1]["reward"] if rows else None,
        held_out_before=found.before,
        held_out_after=found.after,
    )


def _imitation(course: Course) -> TrainResult:
    from kernelwright.rl._kernel_training import MODEL, imitate

    found = imitate(course)
    rows = course.progress.rows
    return TrainResult(
        method="sft",
        task=course.plan.task,
        folder=str(course.folder),
        model=str(course.folder / MODEL),
        finished=not course.stop(),
        seconds=course.progress.seconds,
        steps=len(rows),
        first=rows[0]["loss"] if rows else None,
        last=rows[-1]["loss"] if rows else None,
        held_out_before=found.loss_before,
        held_out_after=found.loss_after,
    )


def smoothed_rewards(rows: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> list[tuple[int, float]]:
    """The curve of a training: verdicts so far, and the mean over problems of the latest mean reward of each.

    It begins once every problem has been met, so that differences between problems do not look like progress.
    """
    latest: dict[str, float] = {}
    curve = []
    for row in rows:
        latest |= row["problems"]
        if len(latest) == len(problems):
            curve.append((int(row["verdicts"]), round(mean(latest.values()), 5)))
    return curve


def draw_curve(course: Course) -> None:
    """Plot a policy's mean reward over the number of verdicts."""
    from kernelwright.plots import curves_svg

    curve = smoothed_rewards(course.progress.rows, course.plan.problems)
    if len(curve) > 1:
        lines = {f"seed {course.plan.seed}": curve}
        write_whole(course.folder / CURVE, curves_svg(lines, across="verdicts", up="mean reward") + "\n")


def _kept(path: Path, work: Callable[[], dict[str, KnobValue]]) -> dict[str, KnobValue]:
    """The result of some work, kept in a file so that the work is done once."""
    if not path.exists():
        write_whole(path, json.dumps(work(), indent=1) + "\n")
    found: dict[str, KnobValue] = json.loads(path.read_text(encoding="utf-8"))
    return found
