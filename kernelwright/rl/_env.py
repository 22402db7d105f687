"""Episodes of several turns: the policy writes a kernel, the referee judges it, and the result opens the next turn.

As in Kevin (C. Baronio et al., 2025, https://arxiv.org/abs/2507.11948), every turn has its own score, and its return
is the discounted sum of the scores from that turn on. Each turn shows the earlier kernels with the evidence on them.
Earlier kernels that no longer fit are summed up in a line each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from kernelwright.errors import UsageError
from kernelwright.records import Backend, Problem, Record
from kernelwright.rl._completions import Found, kernel_of
from kernelwright.rl._scoring import Scored, Scorer, ScoreRequest
from kernelwright.rl.rewards import DISCOUNT, discounted

if TYPE_CHECKING:
    from kernelwright.prompts import DeviceFacts

TURNS: Final = 4
HISTORY_CHARACTERS: Final = 60_000
_SUMMARY_CHARACTERS: Final = 200
# Tokenizers read these as markers of turns. A kernel that is quoted in a message could use them to fake a turn.
_MARKS: Final = ("<|", "|>", "<｜", "｜>", "<start_of_turn>", "<end_of_turn>", "</s>", "[INST]", "[/INST]")


class ChatMessage(Record):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Observation(Record):
    """The conversation that the policy is shown.

    Attributes:
        messages: the conversation; the policy answers its last one.
        turn: number of turns taken. ``turns``: number of turns in all.
    """

    messages: tuple[ChatMessage, ...]
    turn: int = 0
    turns: int = Field(default=TURNS, ge=1)

    def chat(self) -> list[dict[str, str]]:
        """The messages as chat templates take them."""
        return [message.model_dump() for message in self.messages]


class StepOutcome(Record):
    """The outcome of a turn.

    Attributes:
        reward: the turn's reward. 0 for a completion without a kernel, or with one that the episode already had. None
            if the kernel has no score (see :class:`Scored`).
        scored: the score; None if nothing was judged.
        fault: why the completion holds no kernel; empty if it holds one.
        feedback: the message to the policy.
        done: whether that was the last turn.
        observation: the whole conversation, this turn included.
    """

    reward: float | None
    scored: Scored | None = None
    fault: str = ""
    feedback: str
    done: bool
    observation: Observation


class EpisodeScore(Record):
    """Scores and returns of an episode, by turn. A turn without a score has no return and adds nothing to others."""

    scores: tuple[float | None, ...] = ()
    returns: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class _Turn:
    """A turn that was taken."""

    found: Found
    scored: Scored | None
    reward: float | None
    feedback: str

    @property
    def answer(self) -> str:
        """The policy's answer in the requested form, without its thoughts."""
        if not self.found.source:
            return "(no kernel)"
        return _bare(json.dumps({"plan": self.found.plan, "source": self.found.source}, ensure_ascii=False))

    @property
    def summary(self) -> str:
        """The plan and the outcome of the turn in one line."""
        plan = _bare(self.found.plan)[:_SUMMARY_CHARACTERS] or "no plan given"
        if self.scored is None or self.scored.status is None:
            return f"{plan}: not judged"
        speed = "" if self.scored.speedup is None else f", {self.scored.speedup:.2f}x over eager"
        return f"{plan}: {self.scored.status.value}{speed}"


class KernelEnv:
    """An episode about one problem.

    Args:
        problem: a problem, or its id in one of the built-in suites.
        turns: how many kernels may be written.
        device: facts about the judging device for the prompt; by default only the kind of device.
        discount: factor for each turn that a later score lies ahead, in a turn's return.
        history_characters: most characters of earlier turns to show; the latest turn is always shown.
        author: name of the writer in the store.
        name: the problem's name for the scorer if that is not its id, such as a file name.
        first: first messages to use instead of those of :func:`first_messages`.
    """

    def __init__(
        self,
        scorer: Scorer,
        problem: Problem | str,
        *,
        backend: Backend = "cpp",
        turns: int = TURNS,
        device: DeviceFacts | None = None,
        discount: float = DISCOUNT,
        history_characters: int = HISTORY_CHARACTERS,
        author: str = "policy",
        name: str = "",
        first: Sequence[ChatMessage] | None = None,
    ) -> None:
        if turns < 1:
            raise UsageError("an episode has at least one turn")
        self.scorer = scorer
        self._problem_id = name or (problem if isinstance(problem, str) else problem.id)
        self._backend: Backend = backend
        self._turns = turns
        self._discount = discount
        self._most = history_characters
        self._author = author
        self._first = tuple(first_messages(problem, backend, device=device) if first is None else first)
        self._taken: list[_Turn] = []

    def reset(self) -> Observation:
        """Start over, and return the task as a Coder is told it."""
        self._taken = []
        return self._observation()

    def step(self, completion: str) -> StepOutcome:
        """Take a turn.

        Raises:
            UsageError: the episode is over.
            RewardServerError, UsageError: raised by the scorer.
        """
        (outcome,) = step_all([self], [completion])
        return outcome

    def score(self) -> EpisodeScore:
        """The score of each turn taken, and Kevin's return of it."""
        scores = tuple(turn.reward for turn in self._taken)
        sums = discounted([score or 0.0 for score in scores], self._discount)
        returns = tuple(None if score is None else value for score, value in zip(scores, sums, strict=True))
        return EpisodeScore(scores=scores, returns=returns)

    @property
    def done(self) -> bool:
        """Whether all turns were taken."""
        return len(self._taken) >= self._turns

    def asks(self, found: Found) -> ScoreRequest | None:
        """The request to score a kernel; None if there is no kernel, or the episode has scored it already."""
        if found.fault or any(turn.found.source == found.source for turn in self._taken if turn.scored is not None):
            return None
        return ScoreRequest(
            problem=self._problem_id,
            source=found.source,
            backend=self._backend,
            author=self._author,
            note=found.plan,
        )

    def conclude(self, found: Found, scored: Scored | None) -> StepOutcome:
        """End a turn with the score of its request."""
        if self.done:
            raise UsageError("the episode is over", hint="call reset()")
        reward = 0.0 if scored is None else scored.reward
        kept = scored if scored is None or scored.status is not None else None
        feedback = _feedback(found, scored)
        self._taken.append(_Turn(found, kept, reward, feedback))
        return StepOutcome(
            reward=reward,
            scored=scored,
            fault=found.fault,
            feedback=feedback,
            done=self.done,
            observation=self._observation(),
        )

    def _observation(self) -> Observation:
        shown = self._shown()
        left_out = self._taken[: len(self._taken) - len(shown)]
        messages = list(self._first)
        if left_out:
            lines = [f"- turn {number}: {turn.summary}" for number, turn in enumerate(left_out, 1)]
            told = "\n".join(["", "Your earlier kernels, which are no longer shown:", *lines, ""])
            messages[-1] = messages[-1].model_copy(update={"content": messages[-1].content + told})
        for turn in shown:
            messages += [
                ChatMessage(role="assistant", content=turn.answer),
                ChatMessage(role="user", content=turn.feedback),
            ]
        return Observation(messages=tuple(messages), turn=len(self._taken), turns=self._turns)

    def _shown(self) -> list[_Turn]:
        """The latest turns that fit, and always the last one."""
        shown: list[_Turn] = []
        left = self._most
        for turn in reversed(self._taken):
            left -= len(turn.answer) + len(turn.feedback)
            if left < 0 and shown:
                break
            shown.append(turn)
        return shown[::-1]


def step_all(envs: Sequence[KernelEnv], completions: Sequence[str]) -> list[StepOutcome]:
    """Take one turn of each episode, with a single request to each scorer.

    Raises:
        UsageError: an episode is over; then nothing is scored.
        RewardServerError, UsageError: raised by a scorer.
    """
    if any(env.done for env in envs):
        raise UsageError("the episode is over", hint="call reset()")
    found = [kernel_of(completion) for completion in completions]
    asked = {n: request for n, env in enumerate(envs) if (request := env.asks(found[n])) is not None}
    scores: dict[int, Scored] = {}
    for scorer in {id(envs[n].scorer): envs[n].scorer for n in asked}.values():
        theirs = [n for n in asked if envs[n].scorer is scorer]
        scores |= zip(theirs, scorer.score([asked[n] for n in theirs]), strict=True)
    return [env.conclude(found[n], scores.get(n)) for n, env in enumerate(envs)]


def first_messages(
    problem: Problem | str, backend: Backend, *, device: DeviceFacts | None = None, threads: int = 1
) -> tuple[ChatMessage, ChatMessage]:
    """The task as a Coder is told it: the rules and the form of the answer, then device, exemplar and reference.

    Raises:
        UsageError: there is no such problem.
    """
    from kernelwright.agents import reply_schemas
    from kernelwright.datasets import find_problem
    from kernelwright.prompts import DeviceFacts, Task, exemplar_for, render

    found = find_problem(problem) if isinstance(problem, str) else problem
    where = device
    if where is None:
        name = "CPU" if backend == "cpp" else "NVIDIA GPU"
        where = DeviceFacts(name=name, device_class="cpu" if backend == "cpp" else "gpu")
    made = render(
        "coder-new",
        task=Task.of(found, backend, device_class=where.device_class, threads=threads),
        device=where,
        exemplar=exemplar_for(found, backend),
        schema_text=json.dumps(reply_schemas()["coder-new"], indent=1),
    )
    return ChatMessage(role="system", content=made.system), ChatMessage(role="user", content=made.user)


def _feedback(found: Found, scored: Scored | None) -> str:
    """The message to the policy about its turn."""
    from kernelwright.prompts import assignment

    if found.fault:
        told = f"Your answer held no kernel: {found.fault}. It earned nothing, and nothing was judged."
        return f"{_bare(told)}\n\n{assignment('coder-new')}"
    if scored is None:
        return f"You wrote this kernel before. It earned nothing again.\n\n{assignment('coder-improve')}"
    if scored.status is None:
        return "The machine failed: nothing is known of this kernel. Write it, or another one, again.\n"
    asked = assignment("coder-improve" if scored.passed else "coder-repair")
    return f"{_bare(scored.feedback)}\n{asked}"


def _bare(text: str) -> str:
    """The text with markers of turns broken up, so that no tokenizer reads them as markers."""
    for mark in _MARKS:
        text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text
