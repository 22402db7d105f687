"""What a training is asked to do, kept beside what it makes, so that it can be gone on with."""

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
    """A training.

    Attributes:
        method: supervised fine-tuning, or group relative policy optimisation (Z. Shao et al., arXiv:2402.03300).
        model: ``tiny``, or the folder of a model that ``transformers`` can load.
        task: what it learns to write: schedules of the code generator, or the text of kernels.
        problems: ids of the problems that it is trained on.
        held_out: ids of those that it is measured on, before and after; it never sees them otherwise.
        reward: the formula.
        steps: of the optimizer, at most.
        minutes: after which the training ends, the measuring before and after it not counted; None for no limit.
        group: completions of a prompt that are compared with each other.
        prompts: problems of a step.
        learning_rate: at its highest.
        temperature: at which completions are drawn.
        kl: weight of the divergence from the model that the training began with; for writers of kernels.
        passes: optimizer steps that each batch of completions is used for.
        turns: of an episode, where kernels are written.
        completion_tokens: of a completion, at most, where kernels are written.
        lora_rank: of the adapters that are trained instead of the model; 0 for the whole model. ``tiny`` has none.
        seed: of the model, the draws and the order of the problems.
        save_every: steps from one checkpoint to the next.
        run_id: of the store, that its verdicts are recorded under.
        data: a file or an exported folder that supervised fine-tuning reads.
        server: the address of a referee that is served elsewhere; empty for the one on this machine.
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
            raise ValueError(f"{self.prompts} problems a step, and {len(self.problems)} in all")
        if self.task == "schedule" and self.model != TINY:
            raise ValueError("schedules are written by the tiny model; leave --model out")
        if self.task == "schedule" and self.kl:
            raise ValueError("schedules are learned without a divergence from the start; leave --kl out")
        if self.task == "schedule" and self.backend == "cuda":
            raise ValueError("the code generator writes no CUDA, so that there are no schedules of it")
        return self

    def save(self, folder: Path) -> None:
        """Write it into a training's folder."""
        write_whole(folder / PLAN, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> TrainPlan:
        """Read it out of a training's folder.

        Raises:
            UsageError: there is none.
        """
        try:
            return cls.model_validate_json((folder / PLAN).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise UsageError(
                f"{folder} holds no training that can be gone on with",
                hint="name the folder that 'kernelwright rl train --output' was given",
                folder=str(folder),
            ) from error
