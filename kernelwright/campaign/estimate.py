"""An estimate of a run's use of models and of the referee, before it starts. Nothing is opened and nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kernelwright.agents import reply_schemas
from kernelwright.agents.llm import PriceTable, Usage, is_metered, is_model, vendors_own
from kernelwright.campaign.recipe import load_recipe
from kernelwright.config import Settings
from kernelwright.prompts import DeviceFacts, Task, render
from kernelwright.records import Problem, Record

# Tokens of English and code have three to four characters. Lengths of kernels and advice are from recorded runs.
CHARACTERS_A_TOKEN = 3.5
KERNEL_TOKENS = 2500
ADVICE_TOKENS = 250
FORECAST_TOKENS = 100
NOTES_TOKENS = 500
EVIDENCE_TOKENS = 1200  # evidence about one kernel in a prompt
SECONDS_AN_EVALUATION = 12.0  # if the store has no evaluations yet
CONFIRMATIONS = 2  # of a problem's best candidates, each about three evaluations long


class RoleEstimate(Record):
    """The prompts, tokens and cost of one role. Costs are None if the price is unknown.

    ``worst_usd`` is the most that a budget would reserve for all prompts: the longest replies, nothing cached.
    """

    role: str
    spec: str
    prompts: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    worst_usd: float | None
    price_as_of: str


class Estimate(Record):
    """The expected use of a run: of each role that is a model, and of the referee."""

    roles: tuple[RoleEstimate, ...]
    evaluations: int
    device_minutes: float

    @property
    def cost_usd(self) -> float | None:
        """The cost of all roles; None if the cost of any role is unknown."""
        costs = [role.cost_usd for role in self.roles]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None


def estimate(problems: Sequence[Problem], settings: Settings, seconds_an_evaluation: float | None = None) -> Estimate:
    """The prompts, tokens and cost of a run over all of its rounds, and the referee's time.

    Args:
        seconds_an_evaluation: the referee's seconds, from earlier runs; None for a rule of thumb.
    """
    model = is_model(settings.coder.model)
    samples = settings.recipe.samples if model else 1
    evaluations = len(problems) * settings.rounds * samples
    prices = PriceTable.load(settings.prices, listed=vendors_own(settings))
    first = sum(_prompt_tokens(problem, settings) for problem in problems)
    each = first / max(len(problems), 1) + KERNEL_TOKENS + EVIDENCE_TOKENS
    later = len(problems) * (settings.rounds - 1)
    roles = []
    if model:
        writers = (settings.coder.model, *settings.models)  # each is assumed to write the same number of kernels
        tokens = int(samples * (first + later * each)) // len(writers)
        prompts = max(evaluations // len(writers), 1)
        roles += [_role("coder", spec, prompts, tokens, KERNEL_TOKENS, settings, prices) for spec in writers]
    if is_model(settings.judge.model):
        prompts = len(problems) * settings.rounds
        roles.append(
            _role("judge", settings.judge.model, prompts, int(prompts * each), ADVICE_TOKENS, settings, prices)
        )
    if is_model(settings.verifier.model):
        tokens = int(evaluations * each)
        roles.append(_role("verifier", settings.verifier.model, evaluations, tokens, FORECAST_TOKENS, settings, prices))
    notes = _scratchpads(problems, settings)
    keeper = next((name for name in ("judge", "coder") if is_model(settings.value(name))), None)
    if notes and keeper is not None:
        spec = settings.value(keeper)
        roles.append(_role("scratchpad", spec, notes, int(notes * each), NOTES_TOKENS, settings, prices))
    seconds = seconds_an_evaluation or SECONDS_AN_EVALUATION
    judged = evaluations + 3 * CONFIRMATIONS * len(problems)
    return Estimate(roles=tuple(roles), evaluations=evaluations, device_minutes=judged * seconds / 60)


def _scratchpads(problems: Sequence[Problem], settings: Settings) -> int:
    """The number of scratchpad summaries: one after every ``scratchpad_every`` rounds, except after the last round."""
    every = settings.recipe.scratchpad_every
    return len(problems) * ((settings.rounds - 1) // every) if every else 0


def _prompt_tokens(problem: Problem, settings: Settings) -> int:
    """The tokens of the first prompt about a problem, as a mean over the languages of a search's islands."""
    search = load_recipe(settings.recipe.name).search
    languages = (settings.backend,) if search is None else search.backends(settings.backend)
    prompts = [
        render(
            "coder-new",
            task=Task.of(problem, backend, threads=settings.threads),
            device=DeviceFacts(name="this machine", device_class="cpu"),
            schema_text=json.dumps(reply_schemas()["coder-new"], indent=1),
        )
        for backend in languages
    ]
    return int(sum(len(made.system) + len(made.user) for made in prompts) / len(prompts) / CHARACTERS_A_TOKEN)


def _role(
    role: str, spec: str, prompts: int, input_tokens: int, reply_tokens: int, settings: Settings, prices: PriceTable
) -> RoleEstimate:
    usage = Usage(input_tokens, prompts * reply_tokens)
    each = input_tokens // max(prompts, 1)
    price = prices.find(spec, each) if is_metered(spec) else None
    worst = prices.worst_usd(spec, each, settings.max_output_tokens) if is_metered(spec) else None
    return RoleEstimate(
        role=role,
        spec=spec,
        prompts=prompts,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=price.cost_usd(usage) if price is not None else None if is_metered(spec) else 0.0,
        worst_usd=None if worst is None else worst * prompts,
        price_as_of="" if price is None else str(price.as_of),
    )
