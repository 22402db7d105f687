"""Problems for a schedule policy: captured, described in words, with the kernels of their schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kernelwright.agents import StepContext, Workbench
from kernelwright.agents.blueprint import Blueprint, blueprint
from kernelwright.agents.policy_words import describe_problem
from kernelwright.errors import UsageError
from kernelwright.records import Backend, Candidate, KnobValue, Problem
from kernelwright.rl._scoring import Scorer, ScoreRequest

if TYPE_CHECKING:
    from kernelwright.evaluator import Session
Schedule = Mapping[str, KnobValue]


class ScheduleScorer(Scorer, Protocol):
    """A scorer with a local referee, so that kernels can be built without being scored."""

    def problem(self, name: str) -> Problem:
        """The problem that a name stands for."""
        ...

    def session(self, problem: Problem, backend: Backend) -> Session:
        """A session of the referee on a problem."""
        ...


class ScheduleProblem(NamedTuple):
    """A captured problem.

    Attributes:
        name: the name as it was requested, used for requests to a scorer.
        words: its description, the choices last.
    """

    name: str
    problem: Problem
    plan: Blueprint
    words: tuple[str, ...]

    @property
    def default(self) -> dict[str, KnobValue]:
        """The generator's own schedule."""
        return dict(self.plan.default)

    def projected(self, schedule: Schedule) -> dict[str, KnobValue]:
        """The schedule of another problem, with the default for choices and values that this problem does not have."""
        space = self.plan.space
        return {
            name: schedule[name] if schedule.get(name) in space[name] else value for name, value in self.default.items()
        }

    def source(self, schedule: Schedule) -> str | None:
        """The candidate file of a schedule; None if the generator has none, or it would only call libraries."""
        from kernelwright import codegen

        try:
            generated = codegen.generate(self.plan.graph, schedule, backend=self.plan.backend)
        except codegen.CodegenError:
            return None
        return generated.source if generated.has_kernel else None

    def candidate(self, schedule: Schedule, note: str = "") -> Candidate | None:
        """The candidate of a schedule; None if there is no source for it."""
        source = self.source(schedule)
        if source is None:
            return None
        return Candidate(
            problem_id=self.problem.id, source=source, backend=self.plan.backend, author="policy", note=note
        )

    def request(self, source: str, note: str = "") -> ScoreRequest:
        """The request to score a candidate file."""
        return ScoreRequest(problem=self.name, source=source, backend=self.plan.backend, note=note)


def captured(name: str, scorer: ScheduleScorer, backend: Backend = "cpp") -> ScheduleProblem:
    """Capture a problem in the sandbox.

    Raises:
        UsageError: there is no such problem.
        CoderError: its reference cannot be captured.
    """
    problem = scorer.problem(name)
    bench = Workbench(
        lambda entry, payload: scorer.session(problem, backend).call(entry, payload),
        lambda backend: scorer.session(problem, backend).small(backend),
    )
    plan = blueprint(StepContext(problem=problem, backend=backend, round=0, rounds=1, bench=bench))
    return ScheduleProblem(name, problem, plan, tuple(describe_problem(plan.graph, plan.space)))


def captured_all(names: Sequence[str], scorer: ScheduleScorer, backend: Backend = "cpp") -> Iterator[ScheduleProblem]:
    """Capture problems one after the other.

    Raises:
        UsageError: a problem is named twice, does not exist, or has only one schedule.
    """
    if len(set(names)) < len(names):
        raise UsageError("a problem is named twice", hint="name each once")
    for name in names:
        found = captured(name, scorer, backend)
        if all(len(values) < 2 for values in found.plan.space.values()):
            raise UsageError(f"{name} has nothing to choose", hint="leave it out")
        yield found


class Twins:
    """Scores kernels of schedules, each program once: kernels with the same machine code share a score.

    Attributes:
        verdicts: number of new verdicts of the referee.
    """

    def __init__(self, scorer: ScheduleScorer, backend: Backend = "cpp") -> None:
        self.verdicts = 0
        self._scorer = scorer
        self._backend = backend
        self._by_code: dict[tuple[str, str], str] = {}  # source of the first kernel with this machine code
        self._codes: dict[tuple[str, str], str] = {}

    def firsts(self, problem: ScheduleProblem, sources: Sequence[str]) -> list[str]:
        """For each source, the first source seen with the same machine code; mostly the source itself."""
        where = problem.problem.id
        unknown = [source for source in dict.fromkeys(sources) if (where, source) not in self._codes]
        if unknown:
            candidates = [Candidate(problem_id=where, source=source, backend=self._backend) for source in unknown]
            built = self._scorer.session(problem.problem, self._backend).build_all(candidates)
            for source, one in zip(unknown, built, strict=True):
                self._codes[where, source] = one.machine_code or source
        return [self._by_code.setdefault((where, self._codes[where, source]), source) for source in sources]

    def rewards(self, asked: Sequence[tuple[ScheduleProblem, str]]) -> list[float | None]:
        """The reward of each kernel; None where the machine failed."""
        by_name = {problem.name: problem for problem, _ in asked}
        own = {name: [source for problem, source in asked if problem.name == name] for name in by_name}
        found_firsts = {name: iter(self.firsts(by_name[name], sources)) for name, sources in own.items()}
        firsts = [(problem, next(found_firsts[problem.name])) for problem, _ in asked]
        wanted = list(dict.fromkeys((problem.name, source) for problem, source in firsts))
        scores = self._scorer.score([by_name[name].request(source) for name, source in wanted])
        self.verdicts += sum(not score.again and not score.fault for score in scores)
        found = dict(zip(wanted, (score.reward for score in scores), strict=True))
        return [found[problem.name, source] for problem, source in firsts]


def mean(values: Iterable[float]) -> float:
    """The mean of some values; 0 if there are none."""
    found = list(values)
    return sum(found) / len(found) if found else 0.0
