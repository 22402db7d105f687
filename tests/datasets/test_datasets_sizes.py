"""The same problem in other sizes, under a name that says so."""

from __future__ import annotations

import pytest

from kernelwright.datasets import find_problem, parse_problem, parse_sizes
from kernelwright.datasets._sizes import resized
from kernelwright.datasets.runtime import load_reference, make_init_inputs, make_inputs, make_model, run_forward
from kernelwright.errors import UsageError

SOURCE = """import torch
from torch import nn

batch_size = 4096; channels: int = 8
height, width = 64, (
    32 * 4
)
mode = "same"
shape = (channels, height, width)


class Model(nn.Module):
    def forward(self, x):
        return x.sum(-1)


def get_inputs():
    return [torch.randn(batch_size, *shape)]


def get_init_inputs():
    return []
"""


def problem(source=SOURCE):
    return parse_problem(source, id="own/level1/sum", suite="own", level=1, name="sum", number=3, path="/x/3_sum.py")


def shapes(made):
    module = load_reference(made.source, made.meta.variants_for("cpu")[0])
    inputs = make_inputs(module)
    outputs = run_forward(make_model(module, make_init_inputs(module)), inputs)
    return tuple(inputs[0].shape), tuple(outputs[0].shape)


def test_constants_that_are_computed_from_another_one_follow():
    made = resized(problem(), {"width": 5, "batch_size": 2, "height": 3})
    assert shapes(made) == ((2, 8, 3, 5), (2, 8, 3))
    assert made.id == "own/level1/sum@batch_size=2,height=3,width=5"
    assert (made.suite, made.level, made.name, made.number, made.path) == ("own", 1, "sum", 3, "/x/3_sum.py")
    assert made.sha256 != problem().sha256
    lines = SOURCE.splitlines()
    kept = [number for number, line in enumerate(made.source.splitlines()) if line == lines[number]]
    assert kept[-10:] == list(range(len(lines)))[-10:], "what follows stays on its line"


def test_lines_are_those_that_python_counts():
    odd = SOURCE.replace("import torch\n", 'import torch\n\f\nNAME = "a\u2028b\x85c"\r\n')
    made = resized(problem(odd), {"batch_size": 2, "height": 1, "width": 3})
    assert shapes(made) == ((2, 8, 1, 3), (2, 8, 1))
    assert 'NAME = "a\u2028b\x85c"\r\n' in made.source


def test_sizes_on_sizes_are_one_name():
    twice = resized(resized(problem(), {"channels": 1, "width": 9}), {"width": 2, "batch_size": 3, "height": 1})
    assert twice.id == "own/level1/sum@batch_size=3,channels=1,height=1,width=2"
    assert shapes(twice) == ((3, 1, 1, 2), (3, 1, 1))
    assert resized(problem(), {}) == problem()


def test_variants_keep_what_they_set_besides(good):
    made = resized(problem(good), {"FEATURES": 2})
    assert made.meta.variants == {"cpu": ({"ROWS": 4, "FEATURES": 2}, {"ROWS": 3, "FEATURES": 2})}
    assert shapes(made) == ((4, 2), (4, 2))
    same = resized(problem(good), {"FEATURES": 2, "ROWS": 1})
    assert same.meta.variants == {"cpu": ({"ROWS": 1, "FEATURES": 2},)}
    assert made.at_variant(1).id == "own/level1/sum@FEATURES=2@1"
    assert made.at_variant(1).declared == made


def test_an_id_with_sizes_names_the_resized_problem(tmp_path):
    (tmp_path / "own" / "level1").mkdir(parents=True)
    path = tmp_path / "own" / "level1" / "3_sum.py"
    path.write_text(SOURCE)
    made = find_problem("own/level1/sum@batch_size=2,channels=1", [tmp_path])
    assert made.id == "own/level1/sum@batch_size=2,channels=1"
    assert find_problem(made.id, [tmp_path]) == made
    assert find_problem(f"{path}@batch_size=2").id == "file/3_sum@batch_size=2"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"rows": 2}, "own/level1/sum has no constant rows"),
        ({"mode": 2}, "mode is of type str, not int"),
        ({"batch_size": "many"}, "batch_size is of type int, not str"),
    ],
)
def test_a_constant_that_is_not_there_or_of_another_kind_is_named(sizes, said):
    with pytest.raises(UsageError, match=said) as caught:
        resized(problem(), sizes)
    assert "rows" not in sizes or "batch_size, channels, height" in str(caught.value.hint)


def test_sizes_are_read_from_text():
    assert parse_sizes("batch_size=16, rate=0.5,mode=same,bias=True") == {
        "batch_size": 16,
        "rate": 0.5,
        "mode": "same",
        "bias": True,
    }


@pytest.mark.parametrize("text", ["", "batch_size", "batch_size=", "=3", "a b=3", "a=1,,b=2"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="not a size"):
        parse_sizes(text)
