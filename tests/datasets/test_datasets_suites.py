"""Finding problems: references in all forms, other people's suites, near names; and the room's face."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kernelwright
from kernelwright import datasets
from kernelwright.datasets import find_problem, load_suite, suites
from kernelwright.datasets._suites import DEMO_PROBLEMS
from kernelwright.errors import InvalidReferenceError, UsageError


@pytest.fixture
def other(tmp_path: Path, good: str) -> Path:
    """A suite in a KernelBench-like folder."""
    for level, name in ((1, "2_Relu.py"), (1, "10_Tanh.py"), (2, "1_softmax.py"), (2, "_helper.py")):
        (tmp_path / "bench" / f"level{level}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "bench" / f"level{level}" / name).write_text(good)
    return tmp_path / "bench"


def test_the_built_in_suite_has_its_problems_in_order():
    problems = load_suite()
    assert len(problems) == 100
    assert [(p.level, p.number) for p in problems] == sorted((p.level, p.number) for p in problems)
    assert {p.level for p in problems} == {1, 2, 3}
    assert len({p.id for p in problems}) == 100
    assert all(p.level == 2 for p in load_suite(level=2))


def test_the_demo_problems_exist():
    assert len(DEMO_PROBLEMS) == len(set(DEMO_PROBLEMS)) == 10
    assert [find_problem(ref).id for ref in DEMO_PROBLEMS] == list(DEMO_PROBLEMS)


@pytest.mark.parametrize(
    "ref",
    [
        "kernelwright/level1/softmax",
        "kernelwright/level1/2",
        "kernelwright/1/softmax",
        "kernelwright/1/02_softmax",
        "level1/softmax",
        "softmax",
    ],
)
def test_a_problem_is_found_by_every_form_of_reference(ref):
    assert find_problem(ref).id == "kernelwright/level1/softmax"


def test_a_path_is_a_problem(tmp_path, good):
    path = tmp_path / "mine.py"
    path.write_text(good)
    problem = find_problem(str(path))
    assert (problem.id, problem.suite, problem.name, problem.path) == ("file/mine", "file", "mine", str(path))


@pytest.mark.parametrize(
    ("ref", "near"),
    [
        ("sofmax", "kernelwright/level1/softmax"),
        ("kernelwright/level1/layernorm", "kernelwright/level1/layer_norm"),
        ("kernelwright/level3/attention", "kernelwright/level3/attention_block"),
        ("zzzzzz", "problems list"),
    ],
)
def test_an_unknown_problem_suggests_near_names(ref, near):
    with pytest.raises(UsageError) as caught:
        find_problem(ref)
    assert near in caught.value.hint


def test_an_unknown_file_suggests_its_neighbours(tmp_path, good):
    (tmp_path / "gelu_reference.py").write_text(good)
    with pytest.raises(UsageError) as caught:
        find_problem(str(tmp_path / "gelu_referense.py"))
    assert "gelu_reference.py" in caught.value.hint


def test_unknown_suites_and_levels_are_named():
    with pytest.raises(UsageError) as caught:
        load_suite("kernelwrigth")
    assert "did you mean kernelwright?" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        load_suite(level=9)
    assert "1, 2, 3" in caught.value.hint


@pytest.mark.parametrize("given", ["itself", "its parent"])
def test_other_suites_load_from_a_folder(other, given):
    dirs = [other if given == "itself" else other.parent]
    assert suites(dirs) == ("bench", "kernelwright")
    problems = load_suite("bench", suite_dirs=dirs)
    assert [p.id for p in problems] == ["bench/level1/Relu", "bench/level1/Tanh", "bench/level2/softmax"]
    assert find_problem("bench/1/10", dirs).name == "Tanh"
    with pytest.raises(UsageError, match="more than one") as caught:
        find_problem("softmax", dirs)
    assert "bench/level2/softmax" in caught.value.hint
    assert "kernelwright/level1/softmax" in caught.value.hint


def test_a_broken_file_of_a_suite_breaks_only_itself(other):
    (other / "level1" / "2_Relu.py").write_text("class Model:\n    pass\n")
    assert find_problem("Tanh", [other]).name == "Tanh"
    with pytest.raises(InvalidReferenceError, match=r"2_Relu\.py, line 1"):
        find_problem("Relu", [other])
    assert [problem.name for problem in load_suite("bench", suite_dirs=[other])] == ["Tanh", "softmax"]


def test_what_cannot_be_read_is_listed_with_its_reason(other):
    (other / "level1" / "2_Relu.py").write_text("class Model:\n    pass\n")
    (other / "level2" / "bytes.py").write_bytes(b"\xff\xfe")
    suite = load_suite("bench", suite_dirs=[other])
    relu, unreadable = suite.broken
    assert (relu.id, relu.number, relu.path) == ("bench/level1/Relu", 2, str(other / "level1" / "2_Relu.py"))
    assert (relu.finding.rule, relu.finding.severity, relu.finding.line) == ("invalid-reference", "error", 1)
    assert "not a torch.nn.Module" in relu.finding.message
    assert (unreadable.id, unreadable.number) == ("bench/level2/bytes", None)
    assert "cannot read" in unreadable.finding.message
    assert [fault.id for fault in load_suite("bench", 1, [other]).broken] == ["bench/level1/Relu"]
    assert (len(suite), suite[0].name, [problem.name for problem in suite[1:]]) == (2, "Tanh", ["softmax"])


def test_bad_suite_folders_are_named(tmp_path, other):
    with pytest.raises(UsageError, match="no such suite folder"):
        suites([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no suite"):
        suites([tmp_path / "empty"])
    twin = tmp_path / "elsewhere" / "bench" / "level1"
    twin.mkdir(parents=True)
    with pytest.raises(UsageError, match="two suites are named bench"):
        suites([other, twin.parent])


def test_the_face_is_sorted_and_complete():
    kinds = {name: 0 if name.isupper() else 1 if name[0].isupper() else 2 for name in datasets.__all__}
    assert list(datasets.__all__) == sorted(kinds, key=lambda name: (kinds[name], name))
    assert all(getattr(datasets, name) is not None for name in datasets.__all__)
    with pytest.raises(AttributeError):
        datasets.no_such_name


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("from kernelwright.datasets import load_suite, lint_static; [lint_static(p) for p in load_suite()]", "torch"),
        ("import kernelwright.datasets._lint_worker", "pydantic"),
        ("import kernelwright.datasets._capture_worker", "pydantic"),
    ],
)
def test_each_side_pays_only_for_what_it_uses(code, absent):
    check = f"import sys; sys.path.insert(0, {str(Path(kernelwright.__file__).parents[1])!r}); {code}; "
    check += f"sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
