"""GRPO for a language model that writes kernels, judged here or by a server, in one turn or in several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kernelwright.rl._env import first_messages
from kernelwright.rl._kernel_training import adapters, save_writer, writer_of
from kernelwright.rl._schedule_problems import mean
from kernelwright.rl._scoring import Scored, Scorer, ScoreRequest
from kernelwright.rl._trl import Course, Watch, common_arguments, ending, train
from kernelwright.rl.adapters.trl import episode_return, reward_function, rollout_function


class Written(NamedTuple):
    """The mean reward on held-out problems before and after training; None if no problem is held out."""

    before: float | None
    after: float | None


class _Counting:
    """A scorer that counts new verdicts."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.verdicts = 0
        self.rewards: list[float] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored]:
        """Score as the wrapped scorer does."""
        found = self._scorer.score(requests)
        self.verdicts += sum(not one.again and not one.fault for one in found)
        self.rewards += [one.reward for one in found if one.reward is not None]
        return found


def reinforce_writer(course: Course, scorer: Scorer) -> Written:
    """Train by GRPO and save the model. Measure it on the held-out problems before and after."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    plan, counting = course.plan, _Counting(scorer)
    writer = writer_of(course)
    watch = Watch(course)
    before_verdicts = max((row["verdicts"] for row in course.progress.rows), default=0)

    def log(step: int, logs: Mapping[str, float]) -> None:
        if "reward" not in logs:
            return
        verdicts = before_verdicts + counting.verdicts
        reward = round(float(logs["reward"]), 5)
        course.progress.add({"step": step, "seconds": round(watch.seconds, 3), "verdicts": verdicts, "reward": reward})
        course.tell(f"step {step}: mean reward {reward:.3f}, {verdicts} verdicts, {watch.seconds:.0f} s")

    arguments = {
        **common_arguments(course),
        "per_device_train_batch_size": plan.group * plan.prompts,
        "num_generations": plan.group,
        "num_iterations": plan.passes,
        "max_completion_length": plan.completion_tokens,
        "temperature": plan.temperature,
        "beta": plan.kl,
        "loss_type": "dr_grpo",
        "scale_rewards": "group",
    }
    rows = [_row(name, course) for name in plan.problems]
    earned: Any = reward_function(counting)
    more: dict[str, Any] = {}
    if plan.turns > 1:
        more["rollout_func"] = rollout_function(counting, rows, turns=plan.turns, backend=plan.backend)
        earned = episode_return
    trainer = GRPOTrainer(
        model=writer.model,
        processing_class=writer.tokenizer,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=[earned],
        args=GRPOConfig(**arguments),
        peft_config=adapters(course),
        callbacks=[ending(course, watch, log)],
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    before = measured(course, trainer.model, writer.tokenizer, counting)
    train(course, trainer)
    after = None if course.stop() else measured(course, trainer.model, writer.tokenizer, counting)
    save_writer(course, trainer, writer.tokenizer)
    return Written(before, after)


def measured(course: Course, model: Any, tokenizer: Any, scorer: Scorer) -> float | None:
    """The mean reward of one greedy completion for each held-out problem; None if no problem is held out."""
    from kernelwright.rl._completions import kernel_of

    plan = course.plan
    if not plan.held_out:
        return None
    rewards = []
    for name in plan.held_out:
        found = kernel_of(_completed(model, tokenizer, name, course))
        if found.fault:
            rewards.append(0.0)
            continue
        (score,) = scorer.score([ScoreRequest(problem=name, source=found.source, backend=plan.backend)])
        if score.reward is not None:
            rewards.append(score.reward)
    return mean(rewards)


def _completed(model: Any, tokenizer: Any, problem: str, course: Course) -> str:
    import torch

    messages = [message.model_dump() for message in first_messages(problem, course.plan.backend)]
    asked = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    with torch.no_grad():
        made = model.generate(
            **asked,
            max_new_tokens=course.plan.completion_tokens,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
    return str(tokenizer.decode(made[0, asked["input_ids"].shape[1] :], skip_special_tokens=True))


def _row(name: str, course: Course) -> dict[str, Any]:
    backend = course.plan.backend
    prompt = [message.model_dump() for message in first_messages(name, backend)]
    return {"prompt": prompt, "problem": name, "backend": backend}
