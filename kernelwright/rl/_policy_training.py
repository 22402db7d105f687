"""Training a schedule policy by GRPO, from the referee's verdicts.

For each problem, the policy draws a group of schedules, the generator makes kernels of them, and the referee judges
each new kernel. A schedule that earns more than its group's mean becomes more likely (Z. Shao et al.,
arXiv:2402.03300).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernelwright.agents import CARD, END, PolicyCard, word_of
from kernelwright.agents.policy_coder import decode
from kernelwright.agents.policy_model import PolicyModel
from kernelwright.agents.policy_words import read_schedule
from kernelwright.records import KnobValue
from kernelwright.rl._progress import read_lines, write_lines
from kernelwright.rl._schedule_problems import Schedule, ScheduleProblem, Twins, mean
from kernelwright.rl._tiny import choices_of, legal_model, save_policy, schedule_model, vocabulary_of
from kernelwright.rl._trl import Course, Watch, common_arguments, ending, train

START, POLICY, ROLLOUTS = "start", "policy", "rollouts.jsonl"
LEAN: Final = 0.5  # added to the logits of defaults: of two values, the default is then drawn in 62% of cases
# Weight of the entropy bonus. Advantages are plain differences of rewards, that is of logs of speedups. So a schedule
# that is 5% faster becomes e times as likely in the end, and one that is 50% faster is practically always chosen.
# Advantages are not divided by a group's deviation: noise would then weigh as much as real differences, and a policy
# trained that way settled on one schedule for all problems before it told them apart.
ENTROPY: Final = 0.05
SCALE: Final = "none"
# Extra reward for each choice left at its default, so that entropy alone moves none. Otherwise choices without effect
# on the training problems drift, and can affect other problems.
KEEP: Final = 0.04


def start(course: Course, problems: Sequence[ScheduleProblem]) -> None:
    """Save an untrained policy. It writes only legal schedules, and leans to the default."""
    import torch

    folder = course.folder / START
    if (folder / CARD).exists():
        return
    torch.manual_seed(course.plan.seed)
    choices = choices_of(problem.plan.space for problem in problems)
    vocabulary = vocabulary_of((problem.words for problem in problems), choices)
    model, _ = schedule_model(vocabulary)
    defaults = tuple(word_of(choice, values[0]) for choice, values in choices.items())
    save_policy(folder, model, _card(course, vocabulary, defaults, verdicts=0))


class ScheduleReward:
    """A reward function for TRL: scores the kernels of written schedules. Only legal schedules cost device time."""

    __name__ = "referee"

    def __init__(self, course: Course, problems: Sequence[ScheduleProblem], twins: Twins, watch: Watch) -> None:
        self._course = course
        self._problems = {problem.name: problem for problem in problems}
        self._twins = twins
        self._watch = watch
        self._verdicts_before = max((row["verdicts"] for row in course.progress.rows), default=0)
        self.step = 0

    def __call__(self, prompts: Any, completions: Sequence[str], problem: Sequence[str], **rest: Any) -> list[float]:
        """The reward of each completion, including the bonus for defaults.

        If the machine failed, the mean of the other completions for the same problem counts.
        """
        asked = [self._problems[name] for name in problem]
        schedules = [self._read(text, one) for text, one in zip(completions, asked, strict=True)]
        sources = [None if s is None else one.source(s) for s, one in zip(schedules, asked, strict=True)]
        known = [(one, source) for one, source in zip(asked, sources, strict=True) if source is not None]
        earned = iter(self._twins.rewards(known))
        found = [0.0 if source is None else next(earned) for source in sources]
        rewards = [_or_mean(reward, name, problem, found) for reward, name in zip(found, problem, strict=True)]
        self._keep(problem, schedules, rewards, found)
        kept = [defaults_in(schedule, one) for schedule, one in zip(schedules, asked, strict=True)]
        return [reward + KEEP * count for reward, count in zip(rewards, kept, strict=True)]

    @staticmethod
    def _read(text: str, problem: ScheduleProblem) -> dict[str, KnobValue] | None:
        words = text.split()
        return read_schedule(words if words[-1:] == [END] else [*words, END], problem.plan.space)

    def _keep(
        self,
        names: Sequence[str],
        schedules: Sequence[Mapping[str, KnobValue] | None],
        rewards: Sequence[float],
        found: Sequence[float | None],
    ) -> None:
        course = self._course
        with (course.folder / ROLLOUTS).open("a", encoding="utf-8") as stream:
            for name, schedule, reward in zip(names, schedules, found, strict=True):
                row = {"step": self.step, "problem": name, "schedule": schedule, "reward": reward}
                stream.write(json.dumps(row) + "\n")
        by_problem = {
            name: round(mean(r for r, n in zip(rewards, names, strict=True) if n == name), 5)
            for name in dict.fromkeys(names)
        }
        verdicts = self._verdicts_before + self._twins.verdicts
        unreadable = mean(float(schedule is None) for schedule in schedules)
        course.progress.add(
            {
                "step": self.step,
                "seconds": round(self._watch.seconds, 3),
                "verdicts": verdicts,
                "completions": len(rewards) * (1 + len(course.progress.rows)),
                "reward": round(mean(rewards), 5),
                "unreadable": round(unreadable, 4),
                "problems": by_problem,
            }
        )
        course.tell(
            f"step {self.step}: mean reward {mean(rewards):.3f}, {verdicts} verdicts, {self._watch.seconds:.0f} s"
        )


def defaults_in(schedule: Schedule | None, problem: ScheduleProblem) -> int:
    """The number of choices that a schedule leaves at the generator's default; 0 without a schedule."""
    if schedule is None:
        return 0
    return sum(schedule[choice] == value for choice, value in problem.default.items())


def _or_mean(reward: float | None, name: str, names: Sequence[str], found: Sequence[float | None]) -> float:
    if reward is not None:
        return reward
    return mean(other for other, of in zip(found, names, strict=True) if of == name and other is not None)


def reinforce(course: Course, problems: Sequence[ScheduleProblem], twins: Twins) -> None:
    """Train a policy by GRPO and save it, unless the training was stopped early."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    plan = course.plan
    watch = Watch(course)
    card = PolicyModel.load(course.folder / START).card
    reward = ScheduleReward(course, problems, twins, watch)
    _, tokenizer = schedule_model(card.vocabulary)
    rows = [{"prompt": " ".join(problem.words), "problem": problem.name} for problem in problems]
    arguments = {
        **common_arguments(course),
        "bf16": False,
        "per_device_train_batch_size": plan.group * plan.prompts,
        "num_generations": plan.group,
        "num_iterations": plan.passes,
        "max_completion_length": 1 + max(len(problem.plan.space) for problem in problems),
        "temperature": plan.temperature,
        "beta": plan.kl,
        "scale_rewards": SCALE,
        "entropy_coef": ENTROPY,
        "loss_type": "dr_grpo",
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 3,
        "max_grad_norm": 1.0,
    }
    trainer = GRPOTrainer(
        model=legal_model(course.folder / START),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=[reward],
        args=GRPOConfig(**arguments),
        callbacks=[ending(course, watch, lambda step, logs: None)],
    )
    trainer.add_callback(_step_counter(reward))
    trainer.remove_callback(PrinterCallback)
    forget_rollouts(course)
    train(course, trainer)
    if course.stop():  # stopped early: the checkpoint has its state
        return
    save_policy(
        course.folder / POLICY, trainer.model, _card(course, card.vocabulary, card.defaults, verdicts_of(course))
    )


def _step_counter(reward: ScheduleReward) -> Any:
    from transformers import TrainerCallback

    class Counter(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
            reward.step = state.global_step + 1
            return control

    return Counter()


def forget_rollouts(course: Course) -> None:
    """Drop the rollouts after the checkpoint from which training resumes."""
    from kernelwright.rl._progress import last_checkpoint

    path, found = course.folder / ROLLOUTS, last_checkpoint(course.folder)
    step = -1 if found is None else found[1]
    rows = read_lines(path)
    kept = [row for row in rows if row["step"] <= step]
    if len(kept) < len(rows):
        write_lines(path, kept)


def verdicts_of(course: Course) -> int:
    """The number of verdicts that the training has used."""
    return max((row["verdicts"] for row in course.progress.rows), default=0)


def schedules_of(folder: Path, problems: Sequence[ScheduleProblem]) -> dict[str, dict[str, KnobValue]]:
    """The likeliest schedule of a policy for each problem, by its name."""
    model = PolicyModel.load(folder)
    return {problem.name: decode(model, problem.words, problem.plan.space) for problem in problems}


def _card(course: Course, vocabulary: Sequence[str], defaults: tuple[str, ...], verdicts: int) -> PolicyCard:
    plan = course.plan
    return PolicyCard(
        backend=plan.backend,
        vocabulary=tuple(vocabulary),
        reward=plan.reward,
        problems=plan.problems,
        held_out=plan.held_out,
        verdicts=verdicts,
        seed=plan.seed,
        defaults=defaults,
        lean=LEAN,
    )
