"""The plan of a training. It is saved in the training's folder so that the training can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from kernelwright.errors import UsageError
from kernelwright.files import write_whole
from kernelwright.records import Backend, Record

PLAN: Final = "plan.json"
TINY: Final = "tiny"
Method = Literal["sft", "grpo"]
Task = Literal["schedule", "kernel"]


class TrainPlan(Record):
    """The settings of a training.

    Attributes:
        method: supervised fine-tuning, or group relative policy optimisation (Z. Shao et al., arXiv:2402.03300).
        model: ``tiny``, or the folder of a model that ``transformers`` can load.
        task: what the model learns to write: schedules of the code generator, or the text of kernels.
        problems: ids of the training problems.
        held_out: ids of the problems that only measure the model, before and after training.
        reward: name of the reward formula.
        steps: most optimizer steps.
        minutes: time limit of the training, without the measurements before and after it; None for no limit.
        group: completions for each prompt that are compared with each other.
        prompts: problems in each step.
        learning_rate: peak learning rate.
        temperature: sampling temperature of completions.
        kl: weight of the KL divergence from the initial model; for writers of kernels.
        passes: optimizer steps for each batch of completions.
        turns: turns in an episode; for writers of kernels.
        completion_tokens: most tokens of a completion; for writers of kernels.
        lora_rank: rank of the LoRA adapters; 0 trains the whole model. ``tiny`` has no adapters.
        seed: random seed of the model, the sampling and the order of the problems.
        save_every: steps between checkpoints.
        run_id: id of the run in the store that records the verdicts.
        data: file or exported folder for supervised fine-tuning.
        server: address of a remote reward server; empty for the referee on this machine.
    """

    method: Method
    model: str = TINY
    task: Task
    backend: Backend = "cpp"
    problems: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    reward: str = "kernelwright"
    steps: int = Field(default=400, ge=1)
    minutes: float | None = Field(default=None, gt=0)
    group: int = Field(default=8, ge=2, le=64)
    prompts: int = Field(default=4, ge=1, le=64)
    learning_rate: float = Field(default=1e-3, gt=0, lt=1)
    temperature: float = Field(default=1.0, gt=0, le=4)
    kl: float = Field(default=0.0, ge=0)
    passes: int = Field(default=1, ge=1, le=16)
    turns: int = Field(default=1, ge=1, le=16)
    completion_tokens: int = Field(default=2048, ge=8)
    lora_rank: int = Field(default=16, ge=0, le=256)
    seed: int = Field(default=0, ge=0)
    save_every: int = Field(default=10, ge=1)
    run_id: str | None = None
    data: str = ""
    server: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        both = set(self.problems) & set(self.held_out)
        if both:
            raise ValueError(f"{min(both)} is both trained on and held out")
        if self.method == "grpo" and len(self.problems) < self.prompts:
            raise ValueError(f"a step takes {self.prompts} problems, but only {len(self.problems)} are given")
        if self.task == "schedule" and self.model != TINY:
            raise ValueError("schedules are written by the tiny model; leave --model out")
        if self.task == "schedule" and self.kl:
            raise ValueError("a divergence weight does not apply to schedules; leave --kl out")
        return self

    def save(self, folder: Path) -> None:
        """Write the plan into a training's folder."""
        write_whole(folder / PLAN, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> TrainPlan:
        """Read the plan from a training's folder.

        Raises:
            UsageError: the folder holds no plan that can be read.
        """
        try:
            return cls.model_validate_json((folder / PLAN).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise UsageError(
                f"{folder} holds no training that can be resumed",
                hint="name the folder that 'kernelwright rl train --output' was given",
                folder=str(folder),
            ) from error
