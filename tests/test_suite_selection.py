"""What a sample of the matrices takes: some of every stratum, and with the next commits everything."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_selection import (
    SLOW_ONE_IN,
    Cell,
    Sample,
    base_of,
    chosen,
    is_touched,
    size_of,
    slot_of,
    touched,
    whose_turn,
    window,
)

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SLOW_TESTS = json.loads((TESTS / "durations.json").read_text())
numbers = st.integers(1, 200)
slots = st.integers(0, 1 << 32)


def cells_of(strata, one_in=5, keep=1, matrix="m"):
    """Cells of a matrix; ``strata`` says how many each stratum has."""
    return [
        Cell(f"{matrix}[{stratum}{number}]", matrix, f"{stratum}{number}", stratum, one_in, keep)
        for stratum, count in strata.items()
        for number in range(count)
    ]


# ------------------------------------------------------------------------------------------------ the choice


@given(numbers, st.integers(1, 9), st.integers(1, 9), slots)
def test_slots_in_a_row_cover_a_stratum(number, one_in, keep, slot):
    size = size_of(number, one_in, keep)
    rounds = [window(number, size, slot + step) for step in range(one_in)]
    assert set().union(*rounds) == set(range(number))
    assert {len(taken) for taken in rounds} == {size}


@given(st.dictionaries(st.sampled_from("abcdef"), numbers, min_size=1), st.integers(1, 9), st.integers(1, 4), slots)
def test_every_slot_keeps_some_of_each_stratum(strata, one_in, keep, slot):
    cells = cells_of(strata, one_in, keep)
    rounds = [chosen(cells, slot + step) for step in range(one_in)]
    for taken in rounds:
        counts = Counter(cell.stratum for cell in cells if cell.id in taken)
        assert all(counts[stratum] >= min(keep, number) for stratum, number in strata.items())
        assert all(counts[stratum] <= max(keep, -(-number // one_in)) for stratum, number in strata.items())
    assert set().union(*rounds) == {cell.id for cell in cells}


def test_a_choice_follows_the_slot_alone():
    cells = cells_of({"a": 40, "b": 7})
    assert chosen(cells, 3) == chosen(cells[::-1], 3) != chosen(cells, 4)


def test_tests_with_the_same_cells_take_the_same_ones():
    first, second = (chosen(cells_of({"a": 40}, matrix=matrix), 7) for matrix in ("m", "n"))
    assert {name.removeprefix("m") for name in first} == {name.removeprefix("n") for name in second}


@given(st.dictionaries(st.text(min_size=1), st.floats(1, 100), max_size=50), slots)
def test_slow_tests_take_turns_that_cost_about_the_same(seconds, slot):
    rounds = [whose_turn(seconds, slot + step) for step in range(SLOW_ONE_IN)]
    assert sorted(name for taken in rounds for name in taken) == sorted(seconds)
    costs = [sum(seconds[name] for name in taken) for taken in rounds]
    assert max(costs) - min(costs) <= max(seconds.values(), default=0)


def test_a_test_that_samples_its_own_cells_takes_each_as_often():
    slot = 11
    taken = Counter(cell for shift in range(63) for cell in Sample(slot).of(range(11), 3, shift=shift))
    assert set(taken.values()) == {17, 18}
    rounds = [set(Sample(slot + step).of(range(11), 3)) for step in range(4)]
    assert set().union(*rounds) == set(range(11))


def test_a_sample_counts_what_it_leaves_out_and_a_whole_run_leaves_nothing_out():
    sample, whole = Sample(2), Sample(None)
    assert (len(sample.of("abcdef", 2)), sample.number(100, 25), sample.left_out) == (2, 25, 79)
    assert (whole.of("abcdef", 2), whole.number(100, 25), whole.left_out) == ([*"abcdef"], 100, 0)


# ------------------------------------------------------------------------------------------------ the commit


def git_in(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def project(tmp_path):
    """A project of two test files in its second commit on the main branch."""
    folder = tmp_path / "project"
    folder.mkdir()
    git_in(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    text = (
        "import pytest\n@pytest.mark.matrix(one_in=8)\n@pytest.mark.parametrize('number', range(20))\n"
        "def test_cell(number, taken):\n    assert number in taken('number') and number < 50\n"
        "def test_repetitions(sample):\n    assert sample.number(9, 3) < 10\n"
    )
    for name in ("test_one.py", "test_two.py"):
        (folder / name).write_text(text)
        git_in(folder, "add", ".")
        git_in(folder, "commit", "--quiet", "-m", name)
    return folder


def run_tests(folder: Path, *words: str, code: int = 0, **variables: str) -> str:
    """What pytest prints of the project."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWRIGHT", "PYTEST"))}
    environment |= {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    command = [sys.executable, "-m", "pytest", "-p", "suite_plugin", "-p", "no:cacheprovider", "-p", "xdist", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_slot_counts_commits_and_a_shallow_clone_takes_the_hash(project, tmp_path):
    assert slot_of(project, {}) == 2
    shallow = tmp_path / "shallow"
    git_in(tmp_path, "clone", "--quiet", "--depth=1", f"file://{project}", str(shallow))
    assert slot_of(shallow, {}) == int(git_in(project, "rev-parse", "HEAD")[:8], 16)
    assert slot_of(project, {"KERNELWRIGHT_TEST_SLOT": "7"}) == 7
    assert slot_of(tmp_path, {}) == 0  # no repository
    with pytest.raises(ValueError, match="give a whole number"):
        slot_of(project, {"KERNELWRIGHT_TEST_SLOT": "next"})


def test_the_change_is_what_a_branch_has_and_what_is_not_committed(project):
    assert touched(project) == {"test_two.py"}  # on the main branch: the last commit
    git_in(project, "switch", "--quiet", "-c", "work")
    (project / "test_three.py").write_text("")
    assert touched(project) == {"test_two.py", "test_three.py"}
    git_in(project, "add", ".")
    git_in(project, "commit", "--quiet", "-m", "three")
    (project / "test_one.py").write_text("")
    assert touched(project) == {"test_one.py", "test_three.py"}
    assert base_of(project) == git_in(project, "rev-parse", "main")


def test_a_cell_that_is_named_after_a_touched_file_is_touched():
    paths = ["tests/adversarial/attacks/answers/zeros.py", "suites/kernelwright/level1/07_softmax.py"]
    assert is_touched("tests/test_untimed.py", "answers/zeros", paths)
    assert is_touched("tests/test_suite.py", "level1/softmax", paths)
    assert not is_touched("tests/test_suite.py", "max", paths)
    assert not is_touched("tests/test_suite.py", "", paths)
    assert is_touched("tests/test_suite.py", "", ["tests/test_suite.py"])
    assert is_touched("tests/test_docs.py", "docs/guide.md", ["docs/guide.md"])


# ------------------------------------------------------------------------------------------------ a run


def test_a_run_without_the_option_is_whole(project):
    assert "42 passed" in run_tests(project)


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "workers"])
def test_a_sample_takes_touched_files_whole_and_counts_what_it_leaves_out(project, workers):
    told = run_tests(project, "--sampled", "--tally=tally", *workers)
    assert "slot 2 (KERNELWRIGHT_TEST_SLOT=2 repeats it)" in told
    assert "25 passed" in told  # 3 of 20 and all 20, and two tests that repeat something
    assert (
        "left out of the sample: 17 of 40 cells of matrices and slow tests (test_one 17 of 20) and 6 repetitions"
        in told
    )
    record = json.loads((project / "tally").read_text())
    assert (record["counts"]["passed"], record["left out"], len(record["seconds"])) == (25, 17, 25)


def test_eight_slots_in_a_row_run_everything(project):
    names = set()
    for slot in range(100, 108):
        told = run_tests(project, "--sampled", "-v", "-v", "test_one.py", KERNELWRIGHT_TEST_SLOT=str(slot))
        assert "4 passed" in told
        names |= {line.split()[0] for line in told.splitlines() if "PASSED" in line}
    assert len(names) == 21


def test_slow_tests_take_turns_and_are_no_cells_of_a_matrix(project):
    (project / "tests").mkdir()
    slow = [f"tests/test_slow.py::test_{number}" for number in range(SLOW_ONE_IN)]
    (project / "tests" / "durations.json").write_text(json.dumps(dict.fromkeys(slow, 2.0)))
    (project / "tests" / "test_slow.py").write_text(
        "".join(f"def test_{name}():\n    pass\n" for name in [*range(SLOW_ONE_IN), "quick"])
    )
    git_in(project, "add", ".")
    assert f"{SLOW_ONE_IN + 1} passed" in run_tests(project, "--sampled", "tests")  # the change touches their file
    git_in(project, "commit", "--quiet", "-m", "slow")
    git_in(project, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    ran = set()
    for slot in range(SLOW_ONE_IN):
        told = run_tests(project, "--sampled", "--tally=tally", "-v", "-v", "tests", KERNELWRIGHT_TEST_SLOT=str(slot))
        assert f"2 passed, {SLOW_ONE_IN - 1} deselected" in told
        ran |= {line.split()[0] for line in told.splitlines() if "PASSED" in line}
    assert ran == {*slow, "tests/test_slow.py::test_quick"}
    assert set(json.loads((project / "tally").read_text().splitlines()[0])["bodies"]) < ran
    (project / "test_always.py").write_text("import pytest\n@pytest.mark.matrix(one_in=1)\ndef test_it():\n    pass\n")
    run_tests(project, "--tally=cells", "test_one.py", "test_always.py")
    timed = {"test_one.py::test_repetitions", "test_always.py::test_it"}
    assert set(json.loads((project / "cells").read_text())["bodies"]) == timed


def test_all_tests_of_a_slow_file_take_one_turn(project):
    (project / "tests").mkdir()
    (project / "tests" / "durations.json").write_text(json.dumps({"test_one.py": 60.0, "test_two.py": 50.0}))
    git_in(project, "add", ".")
    git_in(project, "commit", "--quiet", "-m", "slow files")
    git_in(project, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    ran = [run_tests(project, "--sampled", "-v", "-v", KERNELWRIGHT_TEST_SLOT=str(slot)) for slot in range(2)]
    assert ["test_one.py::test_repetitions PASSED" in told for told in ran] == [True, False]
    assert ["test_two.py::test_repetitions PASSED" in told for told in ran] == [False, True]


def test_a_sampled_test_that_fails_says_how_to_repeat_it(project):
    path = project / "test_one.py"
    path.write_text(path.read_text().replace("number < 50", "number < 0"))
    git_in(project, "commit", "--quiet", "-am", "wrong")
    git_in(project, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    told = run_tests(project, "--sampled", "test_one.py", code=1)
    assert "3 failed, 1 passed, 17 deselected" in told
    line = next(line for line in told.splitlines() if line.startswith("KERNELWRIGHT_TEST_SLOT=4 "))
    assert "-m pytest -m '' --sampled 'test_one.py::test_cell[" in line


def test_a_mark_with_an_unknown_word_is_a_usage_error(project):
    path = project / "test_one.py"
    path.write_text(path.read_text().replace("one_in=8", "strata='x'"))
    assert "matrix takes one_in, keep, stratum by name" in run_tests(project, "--sampled", code=4)


def test_a_slot_that_is_no_number_is_a_usage_error(project):
    run_tests(project, "--sampled", code=4, KERNELWRIGHT_TEST_SLOT="next")


# ------------------------------------------------------------------------------------------------ the phases


@pytest.fixture
def phase(request):
    """The mark that ``tests/conftest.py`` gives an item of a file with a fixture ``referee`` that is defined there."""
    conftest = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))

    def of(file: str, defined: str = "", *marks: str) -> str | None:
        fixtures = {"referee": [SimpleNamespace(baseid=defined)]} if defined else {}
        item = SimpleNamespace(
            path=TESTS / file,
            config=SimpleNamespace(rootpath=ROOT),
            _fixtureinfo=SimpleNamespace(name2fixturedefs=fixtures),
            get_closest_marker=lambda name: name in marks or None,
        )
        return conftest.phase_of(item)

    return of


def test_a_test_waits_for_the_machine_by_where_its_referee_is_defined(phase):
    assert phase("evaluator/test_x.py", "tests/evaluator") == "alone"
    assert phase("evaluator/test_x.py", "tests/evaluator", "untimed") is None
    assert phase("rl/test_local.py", "tests/rl") is None, "a fake"
    assert phase("rl/test_local.py") is None


def test_files_that_meet_limits_wait_unless_they_are_pure(phase):
    assert phase("sandbox/test_sandbox_memory.py") == "limits"
    assert phase("sandbox/test_sandbox_seccomp.py") is None
    assert phase("adversarial/test_host.py") == "limits"
    assert phase("cli/test_cli_real.py") == "alone"


def test_every_place_and_every_file_of_a_slow_test_exists():
    places = runpy.run_path(str(TESTS / "suite_phases.py"))
    named = {*places["PURE"], *places["PLACES"]["limits"], *places["PLACES"]["alone"]}
    named |= {name.partition("::")[0].removeprefix("tests/") for name in SLOW_TESTS}
    assert [name for name in sorted(named) if not (TESTS / name).exists()] == []


# ------------------------------------------------------------------------------------------------ the runner


@pytest.fixture
def runner(project, monkeypatch):
    """``scripts/run_tests.py`` over the project, with three phases that need no workers."""
    names = runpy.run_path(str(ROOT / "scripts" / "run_tests.py"))
    phases = [names["Phase"](name, name, [], []) for name in ("one", "two", "three")]
    for name in phases:
        (project / f"test_{name.name}.py").write_text(f"import pytest\n@pytest.mark.{name.name}\ndef test(): pass\n")
    (project / "pytest.ini").write_text("[pytest]\nmarkers =\n  one:\n  two:\n  three:\n")
    monkeypatch.setitem(names["main"].__globals__, "PHASES", phases)
    monkeypatch.setitem(names["main"].__globals__, "ROOT", project)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return SimpleNamespace(**names)


def test_a_failed_phase_fails_the_run_and_the_others_run_nevertheless(runner, project, capfd):
    (project / "test_one.py").write_text("import pytest\n@pytest.mark.one\ndef test(): assert False\n")
    slowest, order = project / "slowest.txt", project / "durations.json"
    given = ["-p", "suite_plugin", "--slowest", str(slowest), "--durations", str(order)]
    assert runner.main(given) == 1
    told = capfd.readouterr().out
    assert "--- failed: one (pytest ended with 1)" in told
    assert told.splitlines()[-1].startswith("1 failed, 2 passed in ")
    assert sorted(line.split()[-1] for line in slowest.read_text().splitlines()[2:]) == [
        f"test_{name}.py::test" for name in ("one", "three", "two")
    ]
    assert json.loads(order.read_text()) == {}


def test_a_run_that_passes_ends_with_nothing_and_a_phase_may_be_empty(runner, project, capfd):
    (project / "test_two.py").unlink()
    assert runner.main(["-p", "suite_plugin"]) == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("2 passed in ")


def test_every_test_is_in_one_phase_and_the_whole_run_samples_nothing():
    names = runpy.run_path(str(ROOT / "scripts" / "run_tests.py"))
    marks = [(), ("limits",), ("alone",), ("limits", "alone")]
    for mark in marks:
        spoken = {"limits": "limits" in mark, "alone": "alone" in mark and "limits" not in mark}
        assert sum(eval(phase.tests, {}, spoken) for phase in names["PHASES"]) == 1
    for whole in (False, True):
        for phase in names["PHASES"]:
            assert ("--sampled" in names["command_of"](phase, whole=whole, tally=Path("x"))) is not whole
    later = [place for phase in names["PHASES"][1:] for place in phase.places]
    assert [place for place in later if not (ROOT / place).exists()] == []


def test_what_a_run_measured_brings_the_slow_tests_up_to_date():
    names = runpy.run_path(str(ROOT / "scripts" / "run_tests.py"))
    before = {"tests/a.py::left_out": 3.0, "tests/a.py::fast_now": 4.4, "tests/b.py::slow": 5.0, "tests/d.py": 9.0}
    now = {"tests/a.py::fast_now": 0.2, "tests/b.py::slow": 6.04, "tests/c.py::new": 1.0, "tests/d.py::prepared": 8.0}
    after = {"tests/d.py": 9.0, "tests/b.py::slow": 6.0, "tests/a.py::left_out": 3.0, "tests/c.py::new": 1.0}
    assert list(names["durations"](before, now).items()) == list(after.items())
