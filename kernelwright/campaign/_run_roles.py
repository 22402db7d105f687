"""The roles of a run, made for each problem. A model's role gets the facts for its prompts, a budget and a log."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial

from kernelwright.agents import Coder, Judge, Scratchpad, Verifier, coder_from_spec, judge_from_spec, verifier_from_spec
from kernelwright.agents.llm import ModelClient, Parameters, is_model
from kernelwright.agents.memory import Memory, NoMemory
from kernelwright.agents.model_roles import ModelCoder, ModelTools, SeveralCoders, at_work
from kernelwright.agents.scratchpad import ModelScratchpad, OfflineScratchpad
from kernelwright.agents.tester import ModelTester
from kernelwright.campaign._results import CampaignEvent
from kernelwright.config import Settings
from kernelwright.evaluator import RefereeLike
from kernelwright.prompts import DeviceFacts, Task
from kernelwright.records import Backend, Problem, RunConfig


class RunRoles:
    """Makes the Coder, the Judge and the Verifier of each problem of a run."""

    def __init__(
        self,
        config: RunConfig,
        settings: Settings,
        clients: Mapping[str, ModelClient],
        referee: RefereeLike,
        tell: Callable[[CampaignEvent], None],
        memory: Callable[[Problem], Memory] = lambda problem: NoMemory(),
    ) -> None:
        self._memory = memory
        self._config = config
        self._settings = settings
        self._clients = clients
        self._referee = referee
        self._tell = tell
        self._device: Callable[[Backend], DeviceFacts] = functools.cache(self._facts)

    def coder(self, problem: Problem) -> Coder:
        """The Coder, which writes kernels for a problem."""
        made = [self._writer(problem, spec) for spec in (self._config.coder, *self._config.models)]
        return SeveralCoders([writer for writer in made if isinstance(writer, ModelCoder)]) if made[1:] else made[0]

    def _writer(self, problem: Problem, spec: str) -> Coder:
        coder = coder_from_spec(spec, self._config.backend)
        made: Coder = at_work(coder, lambda spec: self._tools(problem, spec, self._settings.coder.parameters))
        return made

    def judge(self, problem: Problem) -> Judge:
        """The Judge, which gives advice on a problem's kernels."""
        judge = judge_from_spec(self._config.judge)
        made: Judge = at_work(judge, lambda spec: self._tools(problem, spec, self._settings.judge.parameters))
        return made

    def verifier(self, problem: Problem) -> Verifier | None:
        """The Verifier, which predicts the verdicts on a problem's kernels; None if the run has none."""
        verifier = verifier_from_spec(self._config.verifier)
        made: Verifier | None = at_work(
            verifier, lambda spec: self._tools(problem, spec, self._settings.verifier.parameters)
        )
        return made

    def scratchpad(self, problem: Problem) -> Scratchpad | None:
        """The role that sums up lessons: the Judge's model, else the Coder's, else rules; None if switched off."""
        if not self._settings.recipe.scratchpad_every:
            return None
        settings = self._settings
        models = {self._config.coder: settings.coder.parameters, self._config.judge: settings.judge.parameters}
        for spec in filter(is_model, (self._config.judge, self._config.coder)):
            return ModelScratchpad(spec, self._tools(problem, spec, models[spec]))
        return OfflineScratchpad()

    def tester(self, tester: ModelTester, problem: Problem) -> ModelTester:
        """The Tester, which proposes inputs that expose wrong kernels."""
        return tester.with_tools(self._tools(problem, tester.spec, self._settings.tester.parameters))

    def _tools(self, problem: Problem, spec: str, parameters: Parameters) -> ModelTools:
        return ModelTools(
            client=self._clients[spec],
            task=partial(self._task, problem),
            device=self._device,
            parameters=parameters,
            max_output_tokens=self._settings.max_output_tokens,
            history=self._settings.recipe.history,
            memory=self._memory(problem),
            exemplar=self._settings.recipe.exemplar,
            on_text=lambda role, characters: self._tell(
                CampaignEvent("writing", problem.id, {"role": role, "characters": characters})
            ),
        )

    def _task(self, problem: Problem, backend: Backend) -> Task:
        return Task.of(
            problem,
            backend,
            device_class=self._referee.environment_for(backend).class_for(backend),
            threads=self._config.threads,
            baselines=dict.fromkeys(self._config.baselines),
            own_kernels=self._settings.own_kernels_for(problem),
            allow_precision=self._settings.allow_precision,
        )

    def _facts(self, backend: Backend) -> DeviceFacts:
        from kernelwright.evaluator import device_facts

        return device_facts(self._referee.environment_for(backend), backend, cache_dir=self._settings.cache_dir)
