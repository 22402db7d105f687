"""A world in which every kernel's true speed is known, and every look at it is noisy."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelwright.agents import Assignment, Attempt
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evolution import Search
from kernelwright.records import Candidate, Interval, Profile, Speedup, Stage, Status, Timing, Verdict

PROBLEM = "test/level1/world"
SPACE: Mapping[str, Sequence[int]] = {name: range(4) for name in ("VECTOR", "CALLS", "A", "B", "C", "D")}
DEFAULT = dict.fromkeys(SPACE, 0)


def candidate_of(
    knobs: Mapping[str, int], parents: Sequence[str] = (), operator: str = "new", backend: Any = "cpp"
) -> Candidate:
    """A kernel that is nothing but its choices."""
    text = "KNOBS = " + json.dumps(dict(sorted(knobs.items())))
    return Candidate(problem_id=PROBLEM, source=text, backend=backend, parents=tuple(parents), operator=operator)


def knobs_of(candidate: Candidate) -> dict[str, int]:
    return json.loads(candidate.source.removeprefix("KNOBS = "))


def speedup_of(measured: statistics.LogInterval, faster: bool) -> Speedup:
    median, low, high = measured.ratios()
    return Speedup(median=median, low=low, high=high, faster=faster)


def verdict_of(
    candidate: Candidate,
    *,
    speedup: Speedup | None = None,
    rivals: Mapping[str, Speedup] | None = None,
    status: Status = Status.PASSED,
    stage: Stage | None = None,
    metrics: Mapping[str, float] | None = None,
    bound: Any = "memory",
    seconds: float = 1.0,
) -> Verdict:
    """A verdict with what the search looks at."""
    passed = status is Status.PASSED
    timing = None
    if passed and speedup is not None:
        timing = Timing(
            latency_ms=Interval(median=1 / speedup.median, low=1 / speedup.high, high=1 / speedup.low),
            processes=1,
            pairs=12,
            threads=1,
            confirmed=False,
            noise_bound=0.03,
            speedup={"eager": speedup},
            rivals=dict(rivals or {}),
        )
    reached = stage or (Stage.TIMED if timing else Stage.CHECKED if passed else Stage.COMPILED)
    return Verdict(
        candidate=candidate.sha256,
        problem=PROBLEM,
        backend="cpp",
        stage=reached,
        failed_stage=None if passed else "check",
        status=status,
        reason="" if passed else "wrong",
        timing=timing,
        own_kernel_share=1.0,
        profile=Profile(rung="roofline", bound=bound, metrics=dict(metrics or {})),
        environment="e" * 16,
        seconds={"time": seconds},
    )


def attempt_of(candidate: Candidate, verdict: Verdict, **more: Any) -> Attempt:
    """An attempt; its evaluation's id is its number among all that this process made."""
    more["action"] = {"schedule": {}, **more.get("action", {})}  # as the offline Coder's kernels have one
    return Attempt(
        round=more.pop("round", 0), evaluation_id=f"E{next(_numbers)}", candidate=candidate, verdict=verdict, **more
    )


_numbers = itertools.count()


@dataclass
class World:
    """True log speedups of all kernels, and measurements of them.

    ``session``: deviation of what one evaluation gets wrong as a whole; ``pair``: of one pair of windows in a race.
    """

    seed: int = 0
    session: float = 0.05
    pair: float = 0.05
    truth: Callable[[Mapping[str, int]], float] | None = None
    evaluations: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng((self.seed, 1))
        made = np.random.default_rng((self.seed, 2))
        self._single = {name: made.normal(0, 0.08, len(values)) for name, values in SPACE.items()}
        self._double = {names: made.normal(0, 0.05, (4, 4)) for names in itertools.combinations(SPACE, 2)}

    def true(self, candidate: Candidate) -> float:
        """The log of a kernel's true speedup."""
        knobs = knobs_of(candidate)
        if self.truth is not None:
            return self.truth(knobs)
        return sum(self._single[name][knobs[name]] for name in SPACE) + sum(
            table[knobs[a], knobs[b]] for (a, b), table in self._double.items()
        )

    def judge(self, candidate: Candidate, rivals: Sequence[Candidate] = (), **more: Any) -> Attempt:
        """One evaluation."""
        self.evaluations += 1
        value = self.true(candidate) + self.rng.normal(0, self.session)
        own = statistics.LogInterval(value, value - 1.96 * self.session, value + 1.96 * self.session)
        raced = {rival.sha256: self._race(candidate, rival) for rival in rivals}
        knobs = knobs_of(candidate)
        metrics = {
            "vector_bits": float((0, 128, 256, 512)[knobs["VECTOR"]]),
            "kernel_calls": float(1 + knobs["CALLS"]),
            "code_bytes": 4000.0,
        }
        verdict = verdict_of(candidate, speedup=speedup_of(own, own.low > 0.03), rivals=raced, metrics=metrics)
        return attempt_of(candidate, verdict, rivals=tuple(rival.sha256 for rival in rivals), **more)

    def _race(self, candidate: Candidate, rival: Candidate) -> Speedup:
        race = statistics.Race(noise_bound=0.01, most_pairs=96)
        difference = self.true(candidate) - self.true(rival)
        while race.decision is None:
            race.add(difference + self.rng.normal(0, self.pair))
        return speedup_of(race.interval(), race.faster)


def write(asked: Assignment, known: Mapping[str, Candidate]) -> Candidate:
    """What a simple Coder makes of an assignment."""
    rng = random.Random(asked.seed)
    parents = [knobs_of(known[sha256]) for sha256 in asked.parents]
    if not parents:
        knobs = {name: rng.choice(list(values)) for name, values in SPACE.items()}
    elif asked.mode == "cross":
        knobs = {name: rng.choice(parents)[name] for name in SPACE}
    else:
        name = rng.choice(sorted(SPACE))
        knobs = {**parents[0], name: rng.choice([v for v in SPACE[name] if v != parents[0][name]])}
    return candidate_of(knobs, asked.parents, asked.mode)


def run(search: Search, world: World, evaluations: int) -> dict[str, Candidate]:
    """Let a search spend so many evaluations; returns all candidates by hash."""
    known: dict[str, Candidate] = {}
    number, spent = 0, 0
    while spent < evaluations:
        again = search.contests()
        if again:
            wanted = again[0]
            rivals = [known[sha256] for sha256 in wanted.rivals]
            search.tell(world.judge(known[wanted.candidate], rivals, purpose=wanted.purpose))
            spent += 1
            continue
        asked = search.ask(number)[0]
        number += 1
        candidate = write(asked, known)
        if candidate.sha256 in known:
            continue
        known[candidate.sha256] = candidate
        rivals = [known[sha256] for sha256 in search.rivals_of(asked.parents)]
        action = {"assignment": asked.model_dump(mode="json", exclude_defaults=True)}
        search.tell(world.judge(candidate, rivals, action=action))
        spent += 1
    return known


def overclaim(search: Search, world: World) -> float:
    """By how much elites' claimed speedups exceed their true ones, on average."""
    elites = {member.sha256: member for island in search.islands for member in island.archive.elites}
    excess = []
    for member in elites.values():
        standing = member.standing
        assert standing is not None
        excess.append(math.expm1(standing.value - world.true(member.attempt.candidate)))
    return float(np.mean(excess))
