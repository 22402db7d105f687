"""Extensions for verl 0.9: a reward function, and an agent loop of several turns with the referee's feedback.

Both ask a reward server (``kernelwright rl serve``), since verl runs them in workers on many machines. verl is imported
only by :func:`agent_loop_class`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

from kernelwright.errors import MissingToolError, UsageError
from kernelwright.records import Backend
from kernelwright.rl._completions import kernel_of
from kernelwright.rl._env import TURNS, ChatMessage, KernelEnv
from kernelwright.rl._remote import WAIT_S, RemoteScorer
from kernelwright.rl._scoring import ScoreRequest
from kernelwright.rl.adapters._text import without_marks
from kernelwright.rl.rewards import DISCOUNT

DATA_SOURCE: Final = "kernelwright"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str = "",
    token_file: str = "",
    backend: Backend = "cpp",
    wait_s: float = WAIT_S,
    unscored: float = 0.0,
    **others: Any,
) -> dict[str, float]:
    """The reward of a completion's kernel, for ``reward.custom_reward_function`` with ``name: compute_score``.

    ``ground_truth`` is the problem's id, or a mapping with ``problem`` and ``backend``; ``extra_info`` may have the
    same two. verl has no unknown rewards: for a kernel without a score, ``score`` is ``unscored`` and ``scored`` is 0.

    Args:
        url: address of the reward server; set in ``reward_kwargs``, like the others.
        token_file: a file that holds the token alone.
        wait_s: how long the server may be away.

    Raises:
        UsageError: ``url`` or the problem is missing, or the server does not know the problem.
        RewardServerError: the server is away for too long, or sends an invalid reply.
    """
    problem, language = _about(ground_truth, extra_info or {}, backend)
    found = kernel_of(solution_str)
    if found.fault:
        return {"score": 0.0, "scored": 1.0, "found": 0.0, "passed": 0.0, "speedup": 0.0}
    request = ScoreRequest(problem=problem, source=found.source, backend=language, note=found.plan)
    scorer = _opened(url, token_file, wait_s)
    try:
        (scored,) = scorer.score([request])
    finally:
        scorer.close()
    return {
        "score": unscored if scored.reward is None else scored.reward,
        "scored": float(scored.reward is not None),
        "found": 1.0,
        "passed": float(scored.passed),
        "speedup": scored.speedup or 0.0,
    }


async def compute_score_async(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, float]:
    """:func:`compute_score` in a thread: kernels wait for the server side by side, and block no event loop."""
    work = functools.partial(compute_score, data_source, solution_str, ground_truth, extra_info, **more)
    return await asyncio.to_thread(work)


def agent_loop(
    *,
    url: str,
    token_file: str = "",
    turns: int = TURNS,
    backend: Backend = "cpp",
    discount: float = DISCOUNT,
    wait_s: float = WAIT_S,
    unscored: float = 0.0,
    name: str = "kernelwright",
    **verls: Any,
) -> Any:
    """An agent loop for ``agent_loop_config_path``: ``_target_: kernelwright.rl.adapters.verl.agent_loop``.

    Args:
        url, token_file, wait_s, unscored: as for :func:`compute_score`.
        turns: kernels in an episode.
        verls: the arguments that verl passes to every agent loop.

    Raises:
        MissingToolError: verl is not installed.
    """
    kind = agent_loop_class()
    scorer = _opened(url, token_file, wait_s)
    return kind(scorer, turns=turns, backend=backend, discount=discount, unscored=unscored, **verls)


@functools.cache
def agent_loop_class() -> type:
    """The class of agent loops over :class:`kernelwright.rl.KernelEnv`, derived from verl's base class.

    Raises:
        MissingToolError: verl is not installed.
    """
    try:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
    except ImportError as error:
        raise MissingToolError(
            f"this needs verl ({error.name or error})", hint="pip install 'verl>=0.9,<0.10', in verl's own environment"
        ) from None

    class KernelAgentLoop(AgentLoopBase):  # type: ignore[misc, valid-type, unused-ignore]
        """Kernels in turns with the referee's feedback between them. The reward is Kevin's return of the first turn."""

        def __init__(
            self, scorer: Any, *, turns: int, backend: Backend, discount: float, unscored: float, **verls: Any
        ) -> None:
            super().__init__(**verls)
            self._scorer = scorer
            self._turns = turns
            self._backend: Backend = backend
            self._discount = discount
            self._unscored = unscored

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
            """Play one episode about a row of the data set."""
            truth = (row.get("reward_model") or {}).get("ground_truth")
            problem, language = _about(truth, row.get("extra_info") or {}, self._backend)
            messages = [dict(message) for message in row["raw_prompt"]]
            first = (ChatMessage(role="user", content="(see the prompt)"),)
            env = KernelEnv(
                self._scorer, problem, backend=language, turns=self._turns, discount=self._discount, first=first
            )
            try:
                played = await play(self, env, messages, sampling_params)
            finally:
                self._scorer.close()
            value = env.score().returns[0]
            return AgentLoopOutput(
                prompt_ids=played.prompt_ids,
                response_ids=played.response_ids,
                response_mask=played.mask,
                response_logprobs=played.logprobs,
                reward_score=self._unscored if value is None else value,
                num_turns=2 * len(env.score().scores),
                metrics={},
                extra_fields={
                    "turn_scores": [self._unscored if one is None else one for one in env.score().scores],
                    "tool_rewards": [],
                },
            )

    return KernelAgentLoop


class Played:
    """An episode in tokens: the prompt, then answers and feedback, with a mask that is 1 for answers."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_ids = list(prompt_ids)
        self.response_ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = None

    def take(self, ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Replace all tokens by those that verl has merged."""
        self.response_ids = list(ids[len(ids) - len(mask) :]) if mask else []
        self.prompt_ids = list(ids[: len(ids) - len(mask)])
        self.mask = list(mask)
        self.logprobs = list(logprobs) if logprobs else None

    @property
    def ids(self) -> list[int]:
        """All tokens."""
        return self.prompt_ids + self.response_ids

    def cut(self, most: int) -> None:
        """Cut the response to at most ``most`` tokens."""
        self.response_ids, self.mask = self.response_ids[:most], self.mask[:most]
        self.logprobs = self.logprobs[:most] if self.logprobs else None


async def play(loop: Any, env: KernelEnv, messages: list[dict[str, Any]], sampling_params: dict[str, Any]) -> Played:
    """Play an episode with verl's own merging of tokens (``ct_*`` of its agent loops)."""
    env.reset()
    most = int(loop.rollout_config.response_length)
    played = Played(await loop.ct_build_initial_tokens(messages))
    session = uuid4().hex
    while True:
        output = await loop.server_manager.generate(
            request_id=session, prompt_ids=played.ids, sampling_params=sampling_params
        )
        merged, mask, logprobs = await loop.ct_merge_assistant_token(
            played.ids,
            output.token_ids,
            played.mask,
            (played.logprobs or []) if output.log_probs or played.logprobs else None,
            assistant_logprobs=output.log_probs or None,
        )
        played.take(merged.token_ids, mask, logprobs)
        text = loop.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        outcome = await asyncio.to_thread(env.step, text)
        if outcome.done or len(played.mask) >= most:
            break
        before = [*messages, {"role": "assistant", "content": text}]
        messages = [*before, {"role": "user", "content": without_marks(loop.tokenizer, outcome.feedback)}]
        merged, mask, logprobs = await loop.ct_merge_context_msg(
            before, messages, played.ids, played.mask, played.logprobs
        )
        if len(mask) >= most:
            break  # the feedback would leave no room for an answer
        played.take(merged.token_ids, mask, logprobs)
    played.cut(most)
    return played


def _about(truth: Any, extra: Mapping[str, Any], backend: Backend) -> tuple[str, Backend]:
    """The problem and the backend that a row is about."""
    known: dict[str, Any] = {**extra, **(truth if isinstance(truth, Mapping) else {"problem": truth} if truth else {})}
    problem = known.get("problem")
    if not isinstance(problem, str) or not problem:
        raise UsageError(
            "a row does not say which problem it is about", hint="write its id into reward_model.ground_truth"
        )
    return problem, cast(Backend, known.get("backend") or backend)


def _opened(url: str, token_file: str, wait_s: float) -> RemoteScorer:
    if not url:
        raise UsageError(
            "no reward server is named", hint="+reward.custom_reward_function.reward_kwargs.url=http://HOST:8775"
        )
    token = None
    if token_file:
        try:
            token = Path(token_file).read_text(encoding="utf-8").strip().split()[-1]
        except (OSError, UnicodeDecodeError, IndexError):
            raise UsageError(f"the token file {token_file} cannot be read", hint="it holds the token alone") from None
    return RemoteScorer(url, token=token, wait_s=wait_s)
