"""The list of faults that the suite is measured by: each can be put in, and all parts of the package have some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
AREAS = {
    "budget": "evaluator",
    "judging": "evaluator",
    "timing": "evaluator",
    "evidence": "evaluator",
    "screens": "evaluator",
    "store": "store",
    "search": "evolution campaign",
    "codegen": "codegen",
    "sandbox": "sandbox",
}


@pytest.fixture(scope="module")
def benchmark(load_script):
    return load_script("benchmarks/mutants.py")


@pytest.fixture(scope="module")
def mutants(benchmark):
    return benchmark.load()


def test_all_forty_can_be_put_in(mutants):
    assert len({mutant.name for mutant in mutants}) == len(mutants) == 40
    for mutant in mutants:
        assert mutant.applied(ROOT) != (ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.breaks
        assert mutant.tests
        assert all((ROOT / path).exists() for path in mutant.tests), mutant.name


def test_they_are_spread_over_the_package(mutants):
    assert min(Counter(mutant.area for mutant in mutants).values()) >= 4
    assert {mutant.area for mutant in mutants} == set(AREAS)
    for mutant in mutants:
        assert Path(mutant.file).parts[1] in AREAS[mutant.area].split(), mutant.name


@pytest.mark.parametrize("text", ["nowhere to be found", "return", ""])
def test_a_fault_whose_text_does_not_stand_there_once_is_an_error(benchmark, mutants, text):
    with pytest.raises(benchmark.MutantError, match=r"times in .*, not once: correct its entry"):
        replace(mutants[0], old=text).applied(ROOT)


def test_a_fault_that_is_no_python_is_an_error(benchmark, mutants):
    with pytest.raises(benchmark.MutantError, match="is no Python"):
        replace(mutants[0], new="(").applied(ROOT)


@pytest.mark.parametrize(
    ("places", "others", "found"),
    [
        (["tests"], ["tests/cli", "tests/test_docs.py"], ["tests/cli", "tests/test_docs.py"]),
        (["tests/cli/test_cli_real.py", "tests/rl"], ["tests/cli", "tests/store"], ["tests/cli/test_cli_real.py"]),
        (["tests/rl"], ["tests/cli"], []),
    ],
)
def test_a_phase_is_cut_to_what_can_reach_a_fault(benchmark, places, others, found):
    assert benchmark.common(places, others) == found


def test_tests_of_rooms_that_cannot_reach_a_fault_are_left_out(benchmark, mutants):
    in_codegen = next(mutant for mutant in mutants if mutant.area == "codegen")
    found = benchmark.other_tests(in_codegen, ROOT)
    assert {"tests/codegen", "tests/agents", "tests/cli", "tests/adversarial", "tests/test_docs.py"} <= set(found)
    assert not {"tests/sandbox", "tests/inline", "tests/browser"} & set(found)


class Phase(NamedTuple):
    name: str
    tests: str
    places: Sequence[str]
    options: Sequence[str]


class Copy:
    """A copy of the tree in which each run of tests fails as the test says: by phase, suite, and with or without."""

    root = ROOT

    def __init__(self, benchmark, failures: Mapping[tuple[str, bool, bool], Sequence[str]]) -> None:
        self._benchmark, self._failures, self._faulty = benchmark, failures, False
        phases = (Phase("side by side", "not alone", ["tests"], ["-n", "2"]), Phase("last", "alone", ["tests/rl"], []))
        self.suite = {"PHASES": phases, "Phase": Phase}
        self.ran: list[tuple[str, bool]] = []

    @contextmanager
    def with_fault(self, mutant) -> Iterator[None]:
        self._faulty = True
        yield
        self._faulty = False

    def pytest(self, phase: Phase, *, whole: bool, left_out: Sequence[str] = ()):
        if self._faulty:
            self.ran.append((phase.name, whole))
        failing = self._failures.get((phase.name, whole, self._faulty), ())
        alone = [test for test in failing if test in phase.places] if not self._faulty else failing
        return self._benchmark.Run(next((test for test in alone if test not in left_out), ""), 1.0)


FIRST, LATER = "tests/a.py::test_first", "tests/rl/b.py::test_later"


@pytest.mark.parametrize(
    ("failures", "suite", "test", "unsteady", "ran"),
    [
        ({("likely", False, True): [FIRST]}, "daily", FIRST, [], [("likely", False)]),
        (
            {("last", False, True): [LATER]},
            "daily",
            LATER,
            [],
            [("likely", False), ("side by side", False), ("last", False)],
        ),
        (
            {("likely", False, True): [FIRST, LATER], ("likely", True, False): [FIRST]},
            "daily",
            LATER,
            [FIRST],
            [("likely", False)] * 2,
        ),
        (
            {("side by side", True, True): [LATER]},
            "whole",
            LATER,
            [],
            [("likely", False), ("side by side", False), ("last", False), ("likely", True), ("side by side", True)],
        ),
        ({}, "", "", [], [(name, whole) for whole in (False, True) for name in ("likely", "side by side", "last")]),
    ],
    ids=["likely", "later phase", "one that fails anyway", "whole suite", "lives"],
)
def test_the_suites_are_asked_in_turn_until_a_test_fails_by_the_fault(
    benchmark, mutants, failures, suite, test, unsteady, ran
):
    copy = Copy(benchmark, failures)
    found = benchmark.fate(copy, mutants[0], likely_only=False)
    assert (found["suite"], found["test"], found["unsteady"]) == (suite, test, unsteady)
    assert copy.ran == ran


def row(killed: str) -> dict[str, object]:
    return {"suite": killed, "test": "", "seconds": 1.0, "unsteady": []}


@pytest.mark.parametrize(
    ("daily", "whole", "code", "ratio"), [(38, 1, 0, "38 of the 39"), (37, 3, 1, "37 of the 40"), (40, 0, 0, "40 of")]
)
def test_no_more_than_two_may_outlive_the_daily_suite(benchmark, mutants, capsys, daily, whole, code, ratio):
    fates = ["daily"] * daily + ["whole"] * whole + [""] * (40 - daily - whole)
    rows = {mutant.name: row(fate) for mutant, fate in zip(mutants, fates, strict=True)}
    assert benchmark.report(mutants, rows) == code
    assert f"daily kills {ratio}" in capsys.readouterr().out


def test_a_fault_that_lives_is_run_again_after_a_commit_and_one_that_changed_at_once(benchmark, mutants):
    mutant = mutants[0]
    killed = {"digest": mutant.digest, "slot": None, "suite": "daily", "commit": "a"}
    lives = {**killed, "suite": ""}
    assert benchmark.settled(killed, mutant, "b", None)
    assert benchmark.settled(lives, mutant, "a", None)
    assert not benchmark.settled(lives, mutant, "b", None)
    assert not benchmark.settled(killed, mutant, "a", "3")
    assert not benchmark.settled(killed, replace(mutant, new=mutant.old + " "), "a", None)
    assert not benchmark.settled(None, mutant, "a", None)
