"""A referee of a made-up machine: what a kernel's time is depends on its schedule, by a rule that a test chooses."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from campaign_fakes import ENVIRONMENT, make_evaluation

from kernelwright import codegen
from kernelwright.codegen._capture import capture_entry
from kernelwright.evaluator import Confirm
from kernelwright.records import Candidate, Problem, Status, sha256_text
from kernelwright.records.verdicts import BuiltCode

Worth = Callable[[str, Mapping[str, Any]], float]  # problem's name, schedule -> log of the speedup over eager


@functools.cache
def captured(source: str, variants: str) -> dict[str, Any]:
    import json

    several = json.loads(variants)
    return capture_entry({"source": source, "variant": several[0], "variants": several, "mode": "eval"})


@functools.cache
def schedules_by_source(source: str, variants: str) -> dict[str, dict[str, Any]]:
    """Of every kernel of a problem's space, the first schedule that leads to it."""
    graph = codegen.Graph.from_json(captured(source, variants))
    space = codegen.schedule_space(graph)
    found: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*space.values()):
        schedule = dict(zip(space, values, strict=True))
        found.setdefault(codegen.generate(graph, schedule).source, schedule)
    return found


def key_of(problem: Problem) -> tuple[str, str]:
    import json

    return problem.source, json.dumps(list(problem.meta.variants_for("cpu")))


class LandscapeSession:
    def __init__(self, referee: LandscapeReferee, problem: Problem) -> None:
        self.referee, self.problem = referee, problem

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        assert entry == codegen.CAPTURE_ENTRY
        return captured(*key_of(self.problem))

    def small(self, backend: str) -> None:
        return None

    def machine_code(self, candidate: Candidate) -> str:
        return sha256_text("code" + candidate.source)

    def build_all(self, candidates: Sequence[Candidate]) -> tuple[BuiltCode, ...]:
        return tuple(BuiltCode(machine_code=self.machine_code(candidate)) for candidate in candidates)

    def builds_ahead(self, backend: str) -> bool:
        return False

    def speedup(self, candidate: Candidate) -> float:
        schedule = schedules_by_source(*key_of(self.problem))[candidate.source]
        return math.exp(self.referee.worth(self.problem.name, schedule))

    def judge(self, candidate: Candidate, depth: Any = None, **more: Any) -> Any:
        confirm, rivals = isinstance(depth, Confirm), getattr(depth, "rivals", ())
        self.referee.judged.append((self.problem.id, candidate.source, confirm))
        self.referee.point(len(self.referee.judged))
        own = self.speedup(candidate)
        if own < self.referee.least:
            return make_evaluation(candidate, status=Status.INCORRECT_NUMERICAL)
        ratios = {rival.sha256: own / self.speedup(rival) for rival in rivals}
        return make_evaluation(
            candidate, speedup=own, compiled=None, confirmed=confirm, rivals=ratios, latency_ms=1 / own
        )


class LandscapeReferee:
    """Judges the generator's kernels by ``worth``; what is slower than ``least`` is refused."""

    def __init__(self, worth: Worth, point: Callable[[int], None] = lambda number: None, least: float = 0.0) -> None:
        self.worth, self.point, self.least = worth, point, least
        self.judged: list[tuple[str, str, bool]] = []

    def __enter__(self) -> LandscapeReferee:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    @contextmanager
    def open(self, problem: Problem, **more: Any) -> Any:
        yield LandscapeSession(self, problem)

    def environment_for(self, backend: str) -> Any:
        return ENVIRONMENT
