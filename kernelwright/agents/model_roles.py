"""Coder and Judge as language models: prompts are made from measurements, and replies are checked before any build."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import BaseModel

from kernelwright.agents.llm import FILE_WORDS, ModelClient, Parameters, Place
from kernelwright.agents.memory import Memory, NoMemory
from kernelwright.agents.replies import (
    EditReply,
    KernelReply,
    Notes,
    OptimiseAdvice,
    Prediction,
    ProposedGenerators,
    RepairAdvice,
    apply_edits,
    ask,
    insights_of,
    schema_of,
    unfenced,
)
from kernelwright.agents.roles import Attempt, CoderError, Proposal, StepContext
from kernelwright.inline import apply_knobs
from kernelwright.prompts import DeviceFacts, ExemplarChoice, KernelView, Move, Task, exemplar_for, render
from kernelwright.records import Advice, Backend, Candidate, Evaluation

_ASKED_AS: Mapping[str, str] = {"tune": "improve"}  # a model changes constants like anything else
CONTRASTED = 2  # least number of kernels for a comparison of speeds
_SHOWS_MOVES = frozenset({"new", "improve", "edit"})
REPLIES: Mapping[str, type[BaseModel]] = {
    "coder-new": KernelReply,
    "coder-repair": KernelReply,
    "coder-improve": KernelReply,
    "coder-edit": EditReply,
    "coder-cross": KernelReply,
    "coder-simplify": KernelReply,
    "coder-transfer": KernelReply,
    "judge-repair": RepairAdvice,
    "judge-optimise": OptimiseAdvice,
    "scratchpad": Notes,
    "tester": ProposedGenerators,
    "verifier": Prediction,
}
ALL_BACKENDS: frozenset[Backend] = frozenset({"cpp", "triton", "cuda"})


@dataclass(frozen=True)
class ModelTools:
    """The tools of a model's role for one problem of one run.

    ``task`` and ``device`` depend on the backend. ``device`` is called for the first prompt, since it takes a moment. A
    prompt shows at most ``history`` moves. ``memory`` holds the knowledge of other problems and earlier runs.
    ``exemplar`` chooses the exemplar that a Coder is shown.
    """

    client: ModelClient
    task: Callable[[Backend], Task]
    device: Callable[[Backend], DeviceFacts]
    parameters: Parameters
    max_output_tokens: int
    history: int = 16
    exemplar: ExemplarChoice = "category"
    on_text: Callable[[str, int], None] = lambda role, characters: None
    memory: Memory = field(default_factory=NoMemory)


class ModelRole:
    """A role that a language model plays. Without tools it has only a name."""

    role = ""

    def __init__(self, spec: str, tools: ModelTools | None = None) -> None:
        self.spec = spec
        word = spec.partition(":")[0]
        self.name = word if word in FILE_WORDS else spec  # a name must not contain a path of this machine
        self._tools = tools

    def with_tools(self, tools: ModelTools) -> Self:
        """The same role with tools."""
        return type(self)(self.spec, tools)

    @property
    def tools(self) -> ModelTools:
        """The role's tools."""
        if self._tools is None:
            raise AssertionError(f"{self.spec} has no tools yet")
        return self._tools

    def _ask(
        self,
        context: StepContext,
        prompt: str,
        data: Mapping[str, Any],
        *,
        sample: int = 0,
        also: tuple[type[BaseModel], ...] = (),
        check: Callable[[Any], str] = lambda value: "",
        draw: int = 0,
    ) -> Any:
        tools = self.tools
        reply = REPLIES[prompt]
        if "history" in data and "history_limit" not in data:
            data = {**data, "history": data["history"] if tools.history else (), "history_limit": tools.history}
        task = tools.task(context.backend)
        known = {**task.baselines, **baselines_of(context)}
        made = render(
            prompt,
            task=task.model_copy(update={"baselines": known}),
            device=tools.device(context.backend),
            schema_text=json.dumps(schema_of(reply), indent=1),
            **data,
        )
        return ask(
            tools.client,
            Place(context.problem.id, context.round, self.role, sample),
            system=made.system,
            user=made.user,
            reply=reply,
            also=also,
            max_output_tokens=tools.max_output_tokens,
            parameters=tools.parameters,
            check=check,
            on_text=lambda characters: tools.on_text(self.role, characters),
            draw=draw,
        )


class ModelCoder(ModelRole):
    """Writes kernels for an assignment: from nothing, repaired, improved, edited, or from two parents."""

    role = "coder"
    backends = ALL_BACKENDS

    def propose(self, context: StepContext) -> Proposal:
        """The candidate that the model writes.

        Raises:
            RoleFailed: no usable reply, or a kernel that was judged already.
            CoderError: a recording that ends before this round.
        """
        assignment = context.assignment
        parents = parents_of(context)
        advice = _advice_about(context, parents)
        edits = assignment.mode == "edit"
        tried = {attempt.candidate.sha256 for attempt in context.attempts}

        def written(value: Any) -> tuple[str, str]:
            if isinstance(value, EditReply):
                if not parents:
                    return "", "edits need a parent; write the whole file"
                return apply_edits(_view(parents[0]).source, value.edits)
            return unfenced(value.source), ""

        def problem(value: Any) -> str:
            source, fault = written(value)
            return fault or why_no_candidate(source) or ("that kernel was judged already" * (made(source) in tried))

        def candidate_of(source: str, plan: str, prompt: str | None) -> Candidate:
            return Candidate(
                problem_id=context.problem.id,
                source=source,
                backend=context.backend,
                parents=tuple(parent.candidate.sha256 for parent in parents),
                operator=assignment.mode,
                author=self.name,
                prompt_sha256=prompt,
                note=plan,
            )

        def made(source: str) -> str:
            return candidate_of(source, "", None).sha256

        anew = assignment.mode == "new"
        views = [_view(parent) for parent in parents]
        asked = self._ask(
            context,
            f"coder-{_ASKED_AS.get(assignment.mode, assignment.mode)}",
            {
                **_shown(views),
                "advice": advice,
                "exemplar": exemplar_for(context.problem, context.backend, self.tools.exemplar),
                "history": history_of(context),
                # without a history, a kernel from nothing is an independent sample
                "failures": () if anew and not self.tools.history else context.failures,
                "inspirations": self._inspirations(context),
                "contrast": assignment.contrast,
                **self._remembered(context),
            },
            sample=assignment.sample,
            also=(KernelReply,) if edits else (EditReply,) if parents else (),
            check=problem,
            draw=context.round if anew else 0,
        )
        source, _ = written(asked.value)
        action = {
            "mode": assignment.mode,
            "parents": list(assignment.parents),
            "advised": "" if advice is None else f"{advice.method}: {advice.plan}",
            "call": asked.call_id,
        }
        written_by = candidate_of(source, asked.value.plan, asked.prompt_sha256)
        return Proposal(written_by, asked.value.plan, action, asked.cost_usd)

    def _inspirations(self, context: StepContext) -> Sequence[KernelView]:
        """The kernels to show besides the parents. A contrast uses earlier runs' kernels if this run has too few."""
        shown = inspirations_of(context)
        if not context.assignment.contrast or len(shown) >= CONTRASTED:
            return shown
        earlier = self.tools.memory.contrasts(context, CONTRASTED)
        return earlier if len(earlier) >= CONTRASTED else shown

    def _remembered(self, context: StepContext) -> dict[str, Any]:
        """The knowledge to show from other problems and earlier runs, and the notes on this problem."""
        memory, asked = self.tools.memory, context.assignment
        shown: dict[str, Any] = {"insights": memory.insights(context), "scratchpad": context.scratchpad}
        if _ASKED_AS.get(asked.mode, asked.mode) in _SHOWS_MOVES:
            shown["paid"] = memory.paid(context)
        if asked.mode == "transfer":
            shown |= {"moves": (str(asked.move.get("told") or ""),), "diff": str(asked.move.get("diff") or "")}
        return shown


class SeveralCoders(ModelCoder):
    """Several models that write kernels. The model that an assignment names writes, or else the first one."""

    def __init__(self, coders: Sequence[ModelCoder]) -> None:
        super().__init__(coders[0].spec)
        self._coders = {coder.spec: coder for coder in coders}

    def propose(self, context: StepContext) -> Proposal:
        """The candidate that the assignment's model writes; see :meth:`ModelCoder.propose`."""
        return self._coders[context.assignment.model or self.spec].propose(context)


class ModelJudge(ModelRole):
    """Advises what to fix in a kernel that failed and what to change in one that passed. It sees only that kernel."""

    role = "judge"

    def advise(self, context: StepContext, evaluation: Evaluation) -> Advice:
        """One piece of advice about an evaluated candidate.

        Raises:
            RoleFailed: no usable reply.
        """
        view = KernelView.of(evaluation.candidate, evaluation.verdict, evaluation.artifacts)
        shown = {"kernel": view, "history": history_of(context)}
        if evaluation.verdict.passed:
            found = self._ask(context, "judge-optimise", shown).value
            return Advice(
                mode="optimise",
                bottleneck=found.bottleneck,
                method=found.method,
                plan=found.plan,
                expected=found.expected_effect,
                insights=insights_of(found.insights),
            )
        found = self._ask(context, "judge-repair", shown).value
        return Advice(
            mode="repair",
            bottleneck=found.critical_issue,
            method=found.why,
            plan=found.minimal_fix,
            insights=insights_of(found.insights),
        )


def reply_schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema that each prompt asks for, by the prompt's name."""
    return {name: schema_of(reply) for name, reply in REPLIES.items()}


def _view(attempt: Attempt) -> KernelView:
    """A kernel as a Coder's starting point. Its knobs are written into its text, since a new file has its own knobs."""
    view = KernelView.of(attempt.candidate, attempt.verdict, attempt.artifacts)
    if not view.knobs:
        return view
    try:
        return view.model_copy(update={"source": apply_knobs(view.source, view.knobs), "knobs": {}})
    except (ValueError, SyntaxError):  # its verdict reports the same fault
        return view


def _shown(views: Sequence[KernelView]) -> dict[str, Any]:
    """The parents, under the names that the Coder's prompts use."""
    if len(views) > 1:
        return {"parents": list(views)}
    return {"kernel": views[0]} if views else {}


def parents_of(context: StepContext) -> list[Attempt]:
    """The attempts of an assignment's parents, in its order.

    Raises:
        CoderError: a parent was never judged in this run.
    """
    by_hash = {attempt.candidate.sha256: attempt for attempt in reversed(context.attempts)}
    unknown = [parent for parent in context.assignment.parents if parent not in by_hash]
    if unknown:
        raise CoderError(f"no attempt has the kernel {unknown[0][:12]}", problem=context.problem.id)
    return [by_hash[parent] for parent in context.assignment.parents]


def inspirations_of(context: StepContext) -> tuple[KernelView, ...]:
    """The kernels that an assignment shows besides its parents, with their first verdicts.

    Kernels that were timed on another device than the assignment's come without their times.
    """
    first = {attempt.candidate.sha256: attempt for attempt in reversed(context.attempts)}
    wanted = (first[sha256] for sha256 in context.assignment.inspirations if sha256 in first)
    return tuple(
        KernelView.of(attempt.candidate, attempt.verdict).model_copy(
            update={} if attempt.competes(context.backend) else {"speedup": {}, "latency_ms": None}
        )
        for attempt in wanted
    )


def baselines_of(context: StepContext) -> dict[str, float]:
    """Latencies of the baselines in ms, from the latest timed attempt that competes; empty without one."""
    timings = [attempt.verdict.timing for attempt in context.competing if attempt.verdict.timing is not None]
    if not timings:
        return {}
    latency_ms = timings[-1].latency_ms.median
    return {name: latency_ms * speedup.median for name, speedup in timings[-1].speedup.items()}


def history_of(context: StepContext) -> tuple[Move, ...]:
    """Every attempt in the context's language as a measured move, in order. If the assignment asks for ``own_line``,
    only the attempts of its own line."""
    verdicts = {attempt.candidate.sha256: attempt.verdict for attempt in context.attempts}
    shown = _own_line(context) if context.assignment.own_line else set(verdicts)
    return tuple(
        Move.of(
            attempt.candidate,
            attempt.verdict,
            parent=verdicts.get(attempt.candidate.parents[0]) if attempt.candidate.parents else None,
            plan=str(attempt.action.get("advised") or "") or attempt.candidate.note,
            baseline=context.baseline,
        )
        for attempt in context.attempts
        if attempt.purpose == "search"
        and attempt.candidate.backend == context.backend
        and attempt.candidate.sha256 in shown
    )


def _own_line(context: StepContext) -> set[str]:
    """Hashes of the parents of an assignment and of all their ancestors."""
    parents = {attempt.candidate.sha256: attempt.candidate.parents for attempt in context.attempts}
    line: set[str] = set()
    waiting = list(context.assignment.parents)
    while waiting:
        if (sha256 := waiting.pop()) not in line:
            line.add(sha256)
            waiting += parents.get(sha256, ())
    return line


def _advice_about(context: StepContext, parents: Sequence[Attempt]) -> Advice | None:
    """The latest advice if it is about the first parent, else None."""
    last = context.attempts[-1] if context.attempts else None
    if last is None or not parents or last.focus != parents[0].candidate.sha256:
        return None
    return last.advice


def why_no_candidate(source: str) -> str:
    """The reason why a text cannot be a candidate file, or an empty string."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"the source is no Python: {error}"
    if not any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        return "the source has no class ModelNew at its top level"
    return ""


def at_work(role: Any, tools: Callable[[str], ModelTools]) -> Any:
    """A model's role with the tools that ``tools`` makes for its spec; any other role unchanged."""
    return role.with_tools(tools(role.spec)) if isinstance(role, ModelRole) else role
