"""parse_problem: what it reads, and each fault with its line."""

from __future__ import annotations

import math
import pickle

import pytest

from kernelwright.datasets import parse_problem
from kernelwright.errors import InvalidReferenceError


def parse(source: str):
    return parse_problem(source, id="s/level1/p", suite="s", level=1, name="p", number=3, path="p.py")


def test_reads_the_metadata_without_running_the_file(good):
    problem = parse(good + "\nraise SystemExit('ran')\n")
    assert (problem.id, problem.level, problem.number, problem.path) == ("s/level1/p", 1, 3, "p.py")
    assert problem.meta.title == "Scale"
    assert problem.meta.inputs["x"].low == -math.inf
    assert problem.meta.variants_for("cpu")[1] == {"ROWS": 3, "FEATURES": 5}
    assert problem.meta.variants_for("gpu") == ({},)
    assert problem.meta.mode == "eval"


def test_a_plain_kernelbench_file_needs_no_metadata(good):
    start, end = good.index("PROBLEM"), good.index("class Model")
    assert parse(good[:start] + good[end:]).meta.inputs == {}


def test_contract_names_may_be_imported_or_assigned():
    source = "from lib import Net, make as get_inputs\nModel = Net\nget_init_inputs = lambda: []\n"
    assert parse(source).meta.title == ""


FAULTS = [
    # (text to replace, replacement, text at the line at fault in the changed file, part of the message)
    ("return x * self.weight", "return x * * self.weight", "x * *", "not valid Python"),
    ("class Model(nn.Module)", "class Net(nn.Module)", '"""y = x', "no class Model"),
    ("class Model(nn.Module)", "class Model", "class Model", "not a torch.nn.Module"),
    ("def forward(self, x)", "def forwards(self, x)", "class Model", "no forward"),
    ("return x * self.weight", "x * self.weight", "def forward", "forward returns nothing"),
    ("return x * self.weight", "return None", "def forward", "forward returns nothing"),
    ("return x * self.weight", "return\n\n    def g(self): return 1", "def forward", "forward returns nothing"),
    ("def get_inputs", "def make_inputs", '"""y = x', "no function get_inputs"),
    ("def get_init_inputs", "def init_inputs", '"""y = x', "no function get_init_inputs"),
    ("def get_inputs()", "def get_inputs(rows)", "def get_inputs", "requires arguments"),
    ("return [FEATURES]", "pass", "def get_init_inputs", "get_init_inputs returns nothing"),
    ('"title": "Scale"', '"title": str(1)', "str(1)", "not a literal"),
    ('"title": "Scale"', '"title": f"a{ROWS}"', 'f"a', "not a literal"),
    ('"high": "inf"', '"high": "big"', '"inputs"', "inputs.x.high"),
    ('{"fill": "normal", ', '{"non_finite": True, ', '"inputs"', "non_finite needs a fill"),
    ('"category": "pointwise"', '"categroy": "pointwise"', "categroy", "unknown field categroy"),
    ('{"ROWS": 3, "FEATURES": 5}', '{"ROWS": 3, "FEATURE": 5}', '"FEATURE": 5', "sets FEATURE"),
    ('{"ROWS": 3, "FEATURES": 5}', '{"ROWS": [3]}', '"ROWS": [3]', "variants.cpu.1.ROWS"),
    ('"cpu": [', '"tpu": [', '"tpu"', "tpu"),
    ('"inputs": {"x"', '"inputs": {"z"', '"z"', "input z"),
    ("PROBLEM = {", "PROBLEM = 3\nOTHER = {", "PROBLEM = 3", "not a dict"),
]


@pytest.mark.parametrize(("old", "new", "at", "message"), FAULTS, ids=[f"{f[3]}-{i}" for i, f in enumerate(FAULTS)])
def test_each_fault_names_its_line(good, line_of, old, new, at, message):
    assert old in good
    source = good.replace(old, new)
    with pytest.raises(InvalidReferenceError, match=message) as caught:
        parse(source)
    assert caught.value.data["line"] == line_of(source, at)
    assert f"line {caught.value.data['line']}" in str(caught.value)
    assert caught.value.data["problem"] == "s/level1/p"
    assert caught.value.hint
    assert pickle.loads(pickle.dumps(caught.value)).data == caught.value.data


@pytest.mark.parametrize("source", ["\0", "x = " + "(" * 5000, "# " + "x" * 8_000_001], ids=["nul", "deep", "huge"])
def test_hostile_text_is_refused(source):
    with pytest.raises(InvalidReferenceError):
        parse(source)
