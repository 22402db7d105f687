"""The Coder with a trained policy: a small transformer writes schedules, the code generator makes kernels from them.

``kernelwright rl train`` trains a policy. This module only loads one from a folder and runs it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.agents.blueprint import Blueprint, Schedule, blueprint, write
from kernelwright.agents.policy_words import describe_problem, word_of
from kernelwright.agents.roles import CoderError, Proposal, StepContext, require_backend
from kernelwright.errors import UsageError
from kernelwright.records import Backend, Candidate, KnobValue, sha256_text

if TYPE_CHECKING:
    from kernelwright.agents.policy_model import PolicyModel

DRAWS = 64  # draws before a policy counts as exhausted


class PolicyCoder:
    """Writes the kernels that a trained policy expects to be fastest: the likeliest schedule first, then drawn ones.

    Draws depend on the problem and on the number of candidates so far, so a resumed run proposes the same kernels as
    the killed run. Advice is ignored.

    Args:
        folder: the policy's folder. Candidates record the name ``policy`` and the policy's digest, not this path.

    Raises:
        UsageError: the folder has no policy.
    """

    def __init__(self, folder: str) -> None:
        from kernelwright.agents.policy_model import PolicyModel

        if not folder:
            raise UsageError(
                "the policy coder needs a folder: policy:PATH",
                hint="'kernelwright rl train --method grpo --model tiny --output DIR' makes DIR/policy",
            )
        self._model: PolicyModel = PolicyModel.load(Path(folder))
        self.name = "policy"
        self.backends: frozenset[Backend] = frozenset({self._model.card.backend})

    def propose(self, context: StepContext) -> Proposal:
        """The policy's next kernel that was not judged yet on this problem.

        Raises:
            CoderError: the reference cannot be captured, or the policy has no words for it.
            UsageError: the policy was trained for another language.
        """
        require_backend(self, context.backend)
        context = context.in_language(context.backend)
        plan = blueprint(context)
        tried = context.tried
        for number, schedule in enumerate(self._schedules(context, plan)):
            generated = write(plan, schedule)
            if generated is None or not generated.has_kernel:
                continue
            said = "the likeliest schedule" if number == 0 else "a drawn schedule"
            why = f"{said} of policy {self._model.digest[:8]}"
            candidate = Candidate(
                problem_id=context.problem.id,
                source=generated.source,
                backend=context.backend,
                operator="new",
                author=self.name,
                note=why,
            )
            if candidate.sha256 not in tried:
                action = {
                    "origin": "policy",
                    "schedule": schedule,
                    "change": {},
                    "base": "",
                    "bytes_moved": generated.bytes_moved,
                    "flops": generated.flops,
                }
                return Proposal(candidate, why, action)
        return Proposal(None, "every schedule that the policy wrote has been tried")

    def _schedules(self, context: StepContext, plan: Blueprint) -> Iterator[Schedule]:
        words = describe_problem(plan.graph, plan.space)
        seed = f"{context.problem.id} {len(context.tried)} {context.assignment.seed} {context.assignment.sample}"
        rng = random.Random(sha256_text(seed))
        try:
            yield decode(self._model, words, plan.space)
            for _ in range(DRAWS):
                yield decode(self._model, words, plan.space, rng)
        except UsageError as error:
            raise CoderError(error.message, hint=error.hint, problem=context.problem.id) from error


def decode(
    model: PolicyModel,
    words: Sequence[str],
    space: Mapping[str, Sequence[KnobValue]],
    rng: random.Random | None = None,
) -> dict[str, KnobValue]:
    """A schedule from a policy: the likeliest value of each choice, or a drawn value if ``rng`` is given.

    Only values of the space are possible, whatever the policy's weights are. Choices without words in the policy, which
    its training problems did not have, keep their defaults.

    Raises:
        UsageError: the problem has more words than the policy has positions.
    """
    unknown = {
        choice for choice, values in space.items() if not any(model.knows(word_of(choice, value)) for value in values)
    }
    so_far = [word for word in words if word[1:] not in unknown or word[0] != "?"]
    schedule: dict[str, KnobValue] = {}
    for choice, values in space.items():
        if choice in unknown:
            schedule[choice] = values[0]
            continue
        names = [word_of(choice, value) for value in values]
        logs = model.log_probabilities(so_far, names)
        if rng is None:
            place = max(range(len(values)), key=lambda number: logs[number])
        else:
            place = rng.choices(range(len(values)), weights=[math.exp(log) for log in logs])[0]
        schedule[choice] = values[place]
        so_far.append(names[place])
    return schedule
