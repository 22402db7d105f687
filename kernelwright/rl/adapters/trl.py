"""Extensions for TRL 1.16: a reward function, and rollouts of several turns with the referee's feedback.

TRL is not imported here. It passes lists and its trainer, and takes lists and dicts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from kernelwright.errors import UsageError
from kernelwright.records import Backend
from kernelwright.rl._completions import kernel_of
from kernelwright.rl._env import HISTORY_CHARACTERS, ChatMessage, KernelEnv, first_messages, step_all
from kernelwright.rl._scoring import Scored, Scorer, ScoreRequest
from kernelwright.rl.adapters._text import without_marks
from kernelwright.rl.rewards import DISCOUNT

EPISODE_RETURN: Final = "episode_return"
_ANSWER: Final = "kernelwright-answer"  # placeholder for an answer in a rendered chat template

Prompt = str | Sequence[Mapping[str, Any]]


class TrlTrainer(Protocol):
    """The part of TRL's ``GRPOTrainer`` that is used. TRL's own rollouts call the same two underscored methods."""

    processing_class: Any
    max_completion_length: int

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], Any, Any]: ...

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: Any, num_generations: int
    ) -> tuple[list[list[int]], list[list[float]] | None]: ...


@dataclass(frozen=True)
class RewardFunction:
    """The reward of a completion's kernel, for TRL's ``reward_funcs``; see :func:`reward_function`."""

    scorer: Scorer
    backend: Backend = "cpp"
    problem: str = ""
    author: str = "policy"

    def __post_init__(self) -> None:
        object.__setattr__(self, "__name__", "kernelwright")  # its name in TRL's logs

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """One reward for each completion: 0 for one without a kernel, None for a kernel without a score.

        Raises:
            UsageError: no column names the problem. Errors of the scorer, such as RewardServerError, are raised too.
        """
        count = len(completions)
        problems = self._column(columns, "problem", self.problem, count)
        backends = self._column(columns, "backend", self.backend, count)
        if not all(problems):
            raise UsageError(
                "the data set does not say which problem a prompt is about", hint="give it a column 'problem'"
            )
        found = [kernel_of(text_of(completion)) for completion in completions]
        asked = {
            number: ScoreRequest(
                problem=problems[number],
                source=one.source,
                backend=cast(Backend, backends[number]),
                author=self.author,
                note=one.plan,
            )
            for number, one in enumerate(found)
            if not one.fault
        }
        scored = dict(zip(asked, self.scorer.score(list(asked.values())), strict=True)) if asked else {}
        self._log(columns, found, scored)
        return [scored[number].reward if number in scored else 0.0 for number in range(count)]

    @staticmethod
    def _column(columns: Mapping[str, Any], name: str, default: str, count: int) -> list[str]:
        return [str(value) for value in columns[name]] if columns.get(name) is not None else [default] * count

    @staticmethod
    def _log(columns: Mapping[str, Any], found: Sequence[Any], scored: Mapping[int, Scored]) -> None:
        """Log to TRL the shares of kernels found and right, and their mean speedup."""
        log = columns.get("log_metric")
        if log is None or not found:
            return
        log("kernels/found", len(scored) / len(found))
        log("kernels/right", sum(one.passed for one in scored.values()) / len(found))
        speeds = [one.speedup for one in scored.values() if one.passed and one.speedup is not None and one.speedup > 0]
        if speeds:
            log("kernels/speedup", math.exp(sum(map(math.log, speeds)) / len(speeds)))


def reward_function(
    scorer: Scorer, *, backend: Backend = "cpp", problem: str = "", author: str = "policy"
) -> RewardFunction:
    """A function for TRL's ``reward_funcs``. It reads the columns ``problem`` and ``backend`` of the data set.

    Args:
        backend, problem: used if there is no such column.
    """
    return RewardFunction(scorer, backend, problem, author)


def episode_return(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """The returns of the episodes of :func:`rollout_function`, for TRL's ``reward_funcs``."""
    found = columns.get(EPISODE_RETURN)
    if found is None:
        raise UsageError("no episode was played", hint="give the trainer rollout_func=rollout_function(...)")
    return list(found)


def rows(problems: Sequence[str], backend: Backend = "cpp") -> list[dict[str, Any]]:
    """Rows of a data set for TRL: ``prompt`` (a conversation), ``problem`` and ``backend``.

    Raises:
        UsageError: there is no such problem.
    """
    return [
        {
            "prompt": [message.model_dump() for message in first_messages(problem, backend)],
            "problem": problem,
            "backend": backend,
        }
        for problem in problems
    ]


@dataclass
class _Play:
    """A running episode, in tokens."""

    env: KernelEnv
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    ended: bool = False

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None, *, own: bool) -> None:
        """Add tokens that the policy wrote (``own``), or that it was told."""
        self.completion_ids += ids
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.mask += [int(own)] * len(ids)


class RolloutFunction:
    """Episodes for TRL's ``rollout_func``; see :func:`rollout_function`."""

    def __init__(
        self,
        scorer: Scorer,
        data: Sequence[Mapping[str, Any]],
        *,
        turns: int,
        backend: Backend,
        discount: float,
        max_tokens: int | None,
        author: str,
    ) -> None:
        self._scorer = scorer
        self._turns = turns
        self._discount = discount
        self._max_tokens = max_tokens
        self._author = author
        self._about: dict[str, tuple[str, Backend]] = {}
        for row in data:
            about = str(row["problem"]), cast(Backend, row.get("backend") or backend)
            if self._about.setdefault(_key(row["prompt"]), about) != about:
                raise UsageError("two problems have the same prompt", hint="give each row its own prompt")

    def __call__(self, prompts: list[Any], trainer: TrlTrainer) -> dict[str, Any]:
        """One episode for each prompt.

        Returns:
            ``prompt_ids``, ``completion_ids`` and ``logprobs`` (None where the trainer computes them itself),
            ``env_mask`` (1 for tokens that the policy wrote, 0 for those that it was told), ``episode_return`` (the
            return of the first turn) and ``turn_scores``.

        Raises:
            UsageError: a prompt is not in the data. Errors of the scorer, such as RewardServerError, are raised too.
        """
        ids, _, _ = trainer._tokenize_prompts(prompts)
        plays = [_Play(self._env(prompt), list(own)) for prompt, own in zip(prompts, ids, strict=True)]
        limit = self._max_tokens or self._turns * trainer.max_completion_length
        has_logprobs = False
        while at_it := [play for play in plays if not play.ended]:
            has_logprobs = self._turn(at_it, trainer, limit)
        scores = [play.env.score() for play in plays]
        return {
            "prompt_ids": [play.prompt_ids for play in plays],
            "completion_ids": [play.completion_ids for play in plays],
            "logprobs": [play.logprobs for play in plays] if has_logprobs else None,
            "env_mask": [play.mask for play in plays],
            EPISODE_RETURN: [score.returns[0] for score in scores],
            "turn_scores": [list(score.scores) for score in scores],
        }

    def _turn(self, plays: Sequence[_Play], trainer: TrlTrainer, limit: int) -> bool:
        """Take one turn of each episode; return whether the trainer gave log-probabilities of its samples."""
        tokenizer = trainer.processing_class
        asked = [play.prompt_ids + play.completion_ids for play in plays]
        written, logprobs = trainer._generate_single_turn(asked, None, {}, 1)
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        outcomes = step_all([play.env for play in plays], texts)
        for number, (play, outcome) in enumerate(zip(plays, outcomes, strict=True)):
            play.add(written[number], None if logprobs is None else logprobs[number], own=True)
            if outcome.done:
                play.ended = True
                continue
            told = feedback_ids(tokenizer, outcome.feedback, written[number])
            if len(play.completion_ids) + len(told) + trainer.max_completion_length > limit:
                play.ended = True  # there is no room for an answer to this feedback
            else:
                play.add(told, None, own=False)
        return logprobs is not None

    def _env(self, prompt: Prompt) -> KernelEnv:
        try:
            problem, backend = self._about[_key(prompt)]
        except KeyError:
            raise UsageError(
                "a prompt is not in the data that the rollouts were made with",
                hint="give rollout_function(...) the data set that the trainer has",
            ) from None
        first = (ChatMessage(role="user", content="(see the prompt)"),)
        return KernelEnv(
            self._scorer,
            problem,
            backend=backend,
            turns=self._turns,
            discount=self._discount,
            history_characters=HISTORY_CHARACTERS,
            author=self._author,
            first=first,
        )


def rollout_function(
    scorer: Scorer,
    data: Sequence[Mapping[str, Any]],
    *,
    turns: int = 4,
    backend: Backend = "cpp",
    discount: float = DISCOUNT,
    max_tokens: int | None = None,
    author: str = "policy",
) -> RolloutFunction:
    """Episodes of several turns for TRL's ``rollout_func``, with :func:`episode_return` as their reward.

    TRL passes prompts alone, so ``data`` names the problem of each prompt. The feedback between kernels is masked: it
    gives no gradient.

    Args:
        data: rows with ``prompt`` and ``problem``, and ``backend`` if it differs from the one given; see :func:`rows`.
        max_tokens: most tokens that an episode adds to its prompt; by default ``turns`` times the trainer's
            ``max_completion_length``. A turn that might not fit is not begun.

    Raises:
        UsageError: two problems have the same prompt.
    """
    return RolloutFunction(
        scorer, data, turns=turns, backend=backend, discount=discount, max_tokens=max_tokens, author=author
    )


def text_of(completion: Any) -> str:
    """The text of a completion; for a conversation, that of the assistant's last message."""
    if isinstance(completion, str):
        return completion
    said = [message for message in completion if message.get("role", "assistant") == "assistant"]
    content = said[-1].get("content") if said else ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))


def feedback_ids(tokenizer: Any, feedback: str, written: Sequence[int]) -> list[int]:
    """The tokens after an answer: its end if the answer lacks it, the user's message, and the next turn's start.

    The tokenizer's special tokens in the message are broken up.
    """
    safe = without_marks(tokenizer, feedback)
    if getattr(tokenizer, "chat_template", None) is None:
        text = f"\n\n{safe}\n\n"
    else:
        talk = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": safe},
        ]
        whole = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        text = whole.partition(_ANSWER)[2]
    ids: list[int] = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return ids[1:] if ids and written and ids[0] == written[-1] else ids


def _key(prompt: Prompt) -> str:
    """A prompt as a key: its text, or its messages' roles and contents."""
    if isinstance(prompt, str):
        return prompt
    return json.dumps([[message["role"], message["content"]] for message in prompt], ensure_ascii=False)
