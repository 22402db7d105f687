"""The Tester: finds input generators that distinguish wrong kernels from the reference, for a problem's archive.

The idea is QiMeng-MuPa's. This Tester works without a model. It draws patterns from a grid and at random, and keeps
those on which the reference is well defined. It finds the patterns that catch seeded faults that the fixed
distributions miss, simplifies them while they still catch these faults, and keeps a few that together catch all that
any of them caught. Mirror images of a generator (other sign, other end of the row, one element more) come with it,
since real mistakes have mirror images too. One generator of every other kind fills the remaining places, since seeded
faults are only a sample.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from kernelwright.agents._mutations import MUTATIONS, Mutation, mutate
from kernelwright.agents.llm import Place as LLMPlace
from kernelwright.agents.model_roles import ModelRole
from kernelwright.agents.replies import ProposedGenerators, ask, schema_of
from kernelwright.evaluator import Check, Session
from kernelwright.prompts import KernelView, render
from kernelwright.records import Backend, Candidate, Evaluation, InputGenerator, InputPattern, Problem, Status
from kernelwright.records.problems import PatternKind

__all__ = ["MOST_GENERATORS", "Archive", "ModelTester", "OfflineTester", "Session", "seed_faults"]

MOST_GENERATORS = 20  # most generators that one search adds: enough for all kinds and some extra that catch faults
_RANDOM = 8  # random patterns in addition to the grid
_SHOWN = 3  # survivors in a prompt
_MOST_PROPOSED = 8  # generators of one reply

_GRID: tuple[tuple[PatternKind, Mapping[str, Any]], ...] = (
    ("scaled", {"magnitude": 1e-3}),
    ("scaled", {"magnitude": 1000.0}),
    ("offset", {"magnitude": 100.0}),
    ("offset", {"magnitude": -100.0}),
    ("one_sided", {"magnitude": 100.0}),
    ("one_sided", {"magnitude": -100.0}),
    ("constant", {"magnitude": 0.0}),
    ("constant", {"magnitude": 100.0}),
    ("bounds", {}),
    ("alternating", {"magnitude": 100.0}),
    ("ties", {"count": 2}),
    ("ties", {"count": 16}),
    ("equal_maxima", {}),
    ("equal_maxima", {"count": 3}),
    ("equal_maxima", {"place": "first"}),
    ("sorted", {"place": "last"}),
    ("sorted", {"place": "first"}),
    ("outliers", {"magnitude": 100.0, "place": "last"}),
    ("outliers", {"magnitude": 100.0, "place": "first"}),
    ("outliers", {"magnitude": -100.0}),
    ("sparse", {}),
    ("sparse", {"magnitude": 10.0, "place": "last"}),
    ("signed_zeros", {}),
    ("uneven_rows", {"magnitude": 1024.0, "count": 64}),
    ("uneven_rows", {"magnitude": 1024.0}),
)
_KINDS: tuple[PatternKind, ...] = tuple(dict.fromkeys(kind for kind, _ in _GRID))


class Archive(NamedTuple):
    """A Tester's result: generators, and by id the evidence for which each was admitted.

    ``survivors`` are the faults that the fixed distributions miss; ``caught`` are those that some generator catches.
    ``refused`` generators were not used, since the reference is not well defined on them anywhere.
    """

    generators: tuple[InputGenerator, ...]
    evidence: dict[str, dict[str, Any]]
    survivors: tuple[str, ...]
    caught: tuple[str, ...]
    proposed: int
    refused: int


class ModelTester(ModelRole):
    """A language model that proposes generators. Its proposals are only input to the search, which verifies them."""

    role = "tester"
    backend: Backend = "cpp"  # of the kernels that it is shown

    def propose(
        self, problem: Problem, known: Sequence[InputGenerator], survivors: Sequence[tuple[Candidate, Evaluation]]
    ) -> tuple[InputGenerator, ...]:
        """New generators for a problem, without those in ``known``.

        Args:
            known: the generators in the problem's archive.
            survivors: wrong kernels that passed the check, with their verdicts; the first three are shown.

        Raises:
            RoleFailed: no usable reply.
            AwaitingReply, BudgetReached, Stopped: as :meth:`ModelClient.ask`.
        """
        tools = self.tools
        made = render(
            "tester",
            task=tools.task(self.backend),
            known=tuple(generator.describe() for generator in known),
            survivors=tuple(KernelView.of(candidate, e.verdict, e.artifacts) for candidate, e in survivors[:_SHOWN]),
            schema_text=json.dumps(schema_of(ProposedGenerators), indent=1),
        )
        inputs = tuple(name for name, domain in problem.meta.inputs.items() if domain.fill != "structured")
        asked = ask(
            tools.client,
            LLMPlace(problem.id, 0, self.role, 0),
            system=made.system,
            user=made.user,
            reply=ProposedGenerators,
            max_output_tokens=tools.max_output_tokens,
            parameters=tools.parameters,
            check=lambda value: _generators_of(value, inputs)[1],
            on_text=lambda characters: tools.on_text(self.role, characters),
        )
        found, _ = _generators_of(asked.value, inputs)
        return tuple(generator for generator in dict.fromkeys(found) if generator not in known)


def _generators_of(value: ProposedGenerators, inputs: Collection[str]) -> tuple[list[InputGenerator], str]:
    """The generators of a reply, or what is wrong with it."""
    found: list[InputGenerator] = []
    for proposed in value.generators[:_MOST_PROPOSED]:
        names = [pattern.input for pattern in proposed.patterns]
        strange = sorted(set(names) - set(inputs))
        if strange or len(set(names)) != len(names):
            what = f"no input {strange[0]!r} may be drawn" if strange else "one input has two patterns"
            return [], f"{what}; the inputs are {', '.join(inputs) or 'none'}"
        try:
            patterns = {p.input: InputPattern(**p.model_dump(exclude={"input"})) for p in proposed.patterns}
            found.append(InputGenerator(inputs=patterns))
        except ValidationError as error:
            first = error.errors()[0]
            return [], f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return found, "" if found else "at least one generator is wanted"


def seed_faults(kernels: Iterable[Candidate], mutations: Sequence[Mutation] = MUTATIONS) -> dict[str, Candidate]:
    """Every kernel with every fault, by the name ``fault of kernel``; kernels that cannot have faults are left out."""
    made: dict[str, Candidate] = {}
    for kernel in kernels:
        for mutation in mutations:
            try:
                source = mutate(kernel.source, mutation)
            except ValueError:
                continue
            name = f"{mutation.name} of {kernel.sha256[:12]}"
            made[name] = Candidate(
                problem_id=kernel.problem_id, backend=kernel.backend, source=source, knobs=kernel.knobs
            )
    return made


Propose = Callable[[Sequence[tuple[Candidate, Evaluation]]], Sequence[InputGenerator]]


class OfflineTester:
    """Makes an archive for one problem by search.

    Args:
        session: judges candidates; its own archive stays unchanged.
        problem: the problem whose inputs are drawn.
        propose: is asked for generators when the survivors are known; they are tried before the grid.
        known: the generators in the problem's archive.
        tell: called with a message for each step.
        seed: random seed of the patterns.
    """

    def __init__(
        self,
        session: Session,
        problem: Problem,
        *,
        backend: Backend = "cpp",
        propose: Propose = lambda survivors: (),
        known: Sequence[InputGenerator] = (),
        tell: Callable[[str], None] = lambda text: None,
        seed: int = 0,
    ) -> None:
        self._session = session
        self._problem = problem
        self._backend: Backend = backend
        self._asked = propose
        self._known = tuple(known)
        self._tell = tell
        self._random = random.Random(seed)

    def make(self, faulty: Mapping[str, Candidate], *, most: int = MOST_GENERATORS) -> Archive:
        """At most ``most`` generators that catch those ``faulty`` kernels that the fixed distributions miss.

        Raises:
            InvalidReferenceError: the problem cannot be judged.
        """
        inputs = [name for name, domain in self._problem.meta.inputs.items() if domain.fill != "structured"]
        if not inputs or most < 1:
            return Archive((), {}, (), (), 0, 0)
        passed = dict(self._survivors(faulty))
        survivors = {name: faulty[name] for name in passed}
        self._tell(f"{len(survivors)} of {len(faulty)} faults pass the check")
        if not survivors:
            return Archive((), {}, tuple(survivors), (), 0, 0)
        wanted = list(dict.fromkeys((*self._asked(list(passed.values())), *self._propose(inputs))))
        catches, refused = self._tried(wanted, survivors)
        self._tell(f"{refused} of {len(wanted)} generators are not well defined; {len(catches)} catch something")
        catches |= self._simpler(catches, survivors)
        chosen = _cover(catches, wanted)
        chosen = chosen[:most]
        kept = [generator for generator, _ in chosen]
        there = [*self._known, *kept]
        mirrored = [image for generator in kept for image in _mirror_images(generator) if image not in there]
        images = self._admitted(list(dict.fromkeys(mirrored)))[: most - len(kept)]
        others = self._admitted(list(_of_other_kinds([*there, *images], inputs)) if kept else [])
        others = others[: most - len(kept) - len(images)]
        evidence: dict[str, dict[str, Any]] = {g.id: {"catches": sorted(names)} for g, names in chosen}
        evidence |= {image.id: {"mirrors": True} for image in images}
        evidence |= {other.id: {"variety": True} for other in others}
        caught = {name for _, names in chosen for name in names}
        return Archive(
            generators=(*kept, *images, *others),
            evidence=evidence,
            survivors=tuple(survivors),
            caught=tuple(sorted(caught)),
            proposed=len(wanted),
            refused=refused,
        )

    def _survivors(self, faulty: Mapping[str, Candidate]) -> Iterator[tuple[str, tuple[Candidate, Evaluation]]]:
        for name, candidate in faulty.items():
            evaluation = self._session.judge(candidate, Check(static=False))
            if evaluation.verdict.status is Status.PASSED:
                yield name, (candidate, evaluation)

    def _propose(self, inputs: Sequence[str]) -> Iterator[InputGenerator]:
        patterns = [InputPattern(kind=kind, **fields) for kind, fields in _GRID]
        patterns += [self._at_random() for _ in range(_RANDOM)]
        for pattern in patterns:
            yield InputGenerator(inputs=dict.fromkeys(inputs, pattern))
            if len(inputs) > 1:  # one input alone, since the same pattern in all inputs may hide a fault
                yield InputGenerator(inputs={self._random.choice(list(inputs)): pattern})

    def _at_random(self) -> InputPattern:
        return InputPattern(
            kind=self._random.choice(_KINDS),
            magnitude=self._random.choice((-1.0, 1.0)) * 10.0 ** self._random.randint(-3, 4),
            count=2 ** self._random.randint(0, 6),
            place=self._random.choice(("first", "last", "random")),
            axis=self._random.choice((-1, -1, -2)),
        )

    def _tried(
        self, wanted: Sequence[InputGenerator], survivors: Mapping[str, Candidate]
    ) -> tuple[dict[InputGenerator, frozenset[str]], int]:
        """The survivors that each generator catches (without generators that catch none), and the number refused."""
        trials = self._session.admit(wanted, self._backend)
        by_id = {admission.generator.id: admission.generator for admission in trials.admissions if admission.admitted}
        found: dict[str, set[str]] = {}
        for name, candidate in survivors.items():
            for generator_id in self._session.caught_by(candidate, trials):
                found.setdefault(generator_id, set()).add(name)
        return {g: frozenset(found[i]) for i, g in by_id.items() if i in found}, len(wanted) - len(by_id)

    def _simpler(
        self, catches: Mapping[InputGenerator, frozenset[str]], survivors: Mapping[str, Candidate]
    ) -> dict[InputGenerator, frozenset[str]]:
        """Simpler generators that catch at least as much as their origin, found one step at a time."""
        known = dict(catches)
        front = dict(_cover(catches, list(catches)))
        while front:
            steps = {generator: list(_shrunk(generator)) for generator in front}
            new = [s for s in dict.fromkeys(s for simpler in steps.values() for s in simpler) if s not in known]
            names = sorted({name for caught in front.values() for name in caught})
            tried = self._tried(new, {name: survivors[name] for name in names})[0] if new else {}
            known |= dict.fromkeys(new, frozenset()) | tried
            front = {
                min(enough, key=lambda g: (_complexity(g), g.id)): caught
                for generator, caught in front.items()
                if (enough := [s for s in steps[generator] if known[s] >= caught])
            }
        return {generator: caught for generator, caught in known.items() if caught and generator not in catches}

    def _admitted(self, wanted: Sequence[InputGenerator]) -> list[InputGenerator]:
        if not wanted:
            return []
        trials = self._session.admit(wanted, self._backend)
        return [admission.generator for admission in trials.admissions if admission.admitted]


def _shrunk(generator: InputGenerator) -> Iterator[InputGenerator]:
    """Generators that are one step simpler: one input less, a magnitude nearer to 1, a lower count, a default place."""
    for name, pattern in generator.inputs.items():
        if len(generator.inputs) > 1:
            yield InputGenerator(inputs={n: p for n, p in generator.inputs.items() if n != name})
        for fields in _simpler_fields(pattern):
            yield InputGenerator(inputs={**generator.inputs, name: pattern.model_copy(update=fields)})


def _simpler_fields(pattern: InputPattern) -> Iterator[dict[str, Any]]:
    size = abs(pattern.magnitude)
    if size > 1.0 and pattern.kind != "constant":
        yield {"magnitude": max(size / 10.0, 1.0) * (1.0 if pattern.magnitude > 0 else -1.0)}
    if pattern.magnitude < 0 and pattern.kind not in ("constant", "one_sided", "offset"):
        yield {"magnitude": size}
    if pattern.count > 1:
        yield {"count": pattern.count // 2}
    if pattern.place != "random" and pattern.kind != "sorted":
        yield {"place": "random"}
    if pattern.axis != -1:
        yield {"axis": -1}


def _complexity(generator: InputGenerator) -> tuple[float, ...]:
    """A key that is smaller for simpler generators: fewer fields to simplify, fewer inputs, numbers nearer to 1."""
    patterns = generator.inputs.values()
    left = sum(len(list(_simpler_fields(pattern))) for pattern in patterns)
    sizes = sum(abs(math.log10(abs(pattern.magnitude) or 1.0)) + math.log2(pattern.count) for pattern in patterns)
    return left, len(patterns), sizes


def _cover(
    catches: Mapping[InputGenerator, Collection[str]], order: Sequence[InputGenerator]
) -> list[tuple[InputGenerator, frozenset[str]]]:
    """A few generators that together catch all that any catches, chosen greedily: most catches, then simplest."""
    rank = {generator: at for at, generator in enumerate(order)}
    left = {name for names in catches.values() for name in names}
    chosen: list[tuple[InputGenerator, frozenset[str]]] = []
    while left:
        best = min(
            catches,
            key=lambda g: (-len(left.intersection(catches[g])), _complexity(g), rank.get(g, len(rank)), g.id),
        )
        chosen.append((best, frozenset(catches[best])))
        left.difference_update(catches[best])
    return chosen


def _mirror_images(generator: InputGenerator) -> Iterator[InputGenerator]:
    """The generator with the other sign, at the other end of the row, and with one element more."""
    other: dict[str, Any] = {"first": "last", "last": "first"}
    changes: list[Callable[[InputPattern], dict[str, Any]]] = [
        lambda p: {"magnitude": -p.magnitude} if p.kind not in ("equal_maxima", "bounds", "uneven_rows") else {},
        lambda p: {"place": other.get(p.place, "first")} if p.kind in _PLACED else {},
        lambda p: {"count": p.count + 1} if p.kind in _COUNTED else {},
    ]
    for change in changes:
        image = InputGenerator(inputs={n: p.model_copy(update=change(p)) for n, p in generator.inputs.items()})
        if image != generator:
            yield image


def _of_other_kinds(chosen: Sequence[InputGenerator], inputs: Sequence[str]) -> Iterator[InputGenerator]:
    """One generator for all inputs of each kind that ``chosen`` lacks; the grid's last pattern of that kind."""
    seen = {pattern.kind for generator in chosen for pattern in generator.inputs.values()}
    last = {kind: InputPattern(kind=kind, **fields) for kind, fields in _GRID if kind not in seen}
    for pattern in last.values():
        yield InputGenerator(inputs=dict.fromkeys(inputs, pattern))


_COUNTED = ("equal_maxima", "outliers", "sparse", "ties")
_PLACED = ("sorted", "outliers", "sparse", "equal_maxima")
