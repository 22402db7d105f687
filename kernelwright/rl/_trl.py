"""The common parts of all trainings with TRL: time limit, checkpoints and resuming."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.rl._plan import TrainPlan
from kernelwright.rl._progress import CHECKPOINTS, Progress, last_checkpoint, mark_complete


class Course(NamedTuple):
    """A training under way.

    Attributes:
        folder: folder of all files of the training.
        progress: rows of the training so far.
        tell: called with a line on each step.
        stop: whether the training was asked to stop.
        clock: monotonic seconds.
    """

    plan: TrainPlan
    folder: Path
    progress: Progress
    tell: Callable[[str], None]
    stop: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic


class Watch:
    """Tells how long a training has taken, earlier processes included, and whether it must end."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._before = course.progress.seconds
        self._began = course.clock()

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + self._course.clock() - self._began

    def over(self) -> bool:
        """Whether the time limit is reached, or the training was asked to stop."""
        minutes = self._course.plan.minutes
        return self._course.stop() or (minutes is not None and self.seconds >= 60.0 * minutes)


def quiet_environment() -> None:
    """Make libraries fetch nothing and draw nothing on the terminal, and tokenizers start no threads."""
    # TRL 1.16 sets ``gradient_checkpointing`` by itself, which transformers 5.23 and later warn about
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def common_arguments(course: Course) -> dict[str, Any]:
    """The arguments that all trainers share. Nothing is reported to external services."""
    import torch

    plan = course.plan
    on_cpu = not torch.cuda.is_available()
    return {
        "output_dir": str(course.folder / CHECKPOINTS),
        "seed": plan.seed,
        "max_steps": plan.steps,
        "learning_rate": plan.learning_rate,
        "save_steps": plan.save_every,
        "save_total_limit": 2,
        "save_strategy": "steps",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": on_cpu,
        "bf16": not on_cpu,
        "logging_steps": 1,
        "dataloader_pin_memory": not on_cpu,
        "gradient_checkpointing": False,
    }


def ending(course: Course, watch: Watch, on_log: Callable[[int, dict[str, float]], None] | None = None) -> Any:
    """A callback that ends a training when it is over, and marks its checkpoints."""
    from transformers import TrainerCallback

    class Ending(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
            if watch.over():
                control.should_training_stop = True
                control.should_save = True
            return control

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> Any:
            if on_log is not None and logs:
                on_log(state.global_step, dict(logs))
            return control

        def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            return control

    return Ending()


def train(course: Course, trainer: Any) -> None:
    """Train to the end, from the last complete checkpoint if there is one. The last step has one too."""
    found = last_checkpoint(course.folder)
    if found is None:
        course.progress.cut(-1)
        trainer.train()
    else:
        path, step = found
        course.progress.cut(step)
        course.tell(f"going on from step {step}")
        trainer.train(resume_from_checkpoint=str(path))
