"""Other people's suites, in small: each layout as its project lays it out, loaded and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kernelwright.datasets import find_problem, load_suite, suites
from kernelwright.datasets.runtime import load_reference, make_init_inputs, make_inputs, make_model, run_forward
from kernelwright.records import Problem


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def load(folder: Path, suite: str) -> dict[str, Problem]:
    """The problems of a suite by their ids; nothing of it is broken."""
    loaded = load_suite(suite, suite_dirs=[folder])
    assert [str(broken.error) for broken in loaded.broken] == []
    return {problem.id: problem for problem in loaded}


def broken(folder: Path, suite: str) -> dict[str, str]:
    """What is said of the problems of a suite that cannot be read."""
    return {fault.id: str(fault.error) for fault in load_suite(suite, suite_dirs=[folder]).broken}


def calls(problem: Problem) -> list[tuple[list, tuple]]:
    """Inputs and outputs of each CPU variant."""
    found = []
    for variant in problem.meta.variants_for("cpu"):
        module = load_reference(problem.source, variant)
        inputs = make_inputs(module)
        found.append((inputs, run_forward(make_model(module, make_init_inputs(module)), inputs)))
    return found


# -------------------------------------------------------------------------------------------------------- KernelBench


def test_problems_of_one_name_are_told_apart_by_their_numbers(tmp_path, good):
    names = ("level1/50_conv.py", "level1/63_conv.py", "level1/7_relu.py", "level2/50_conv.py")
    folder = put(tmp_path / "KernelBench", dict.fromkeys(names, good))
    assert list(load(tmp_path, "KernelBench")) == [
        "KernelBench/level1/relu",
        "KernelBench/level1/50_conv",
        "KernelBench/level1/63_conv",
        "KernelBench/level2/conv",
    ]
    for reference in ("KernelBench/level1/63_conv", "KernelBench/level1/63", "KernelBench/1/63"):
        assert find_problem(reference, [folder]).number == 63
    assert suites([tmp_path]) == ("KernelBench", "kernelwright")


def test_two_files_that_no_number_tells_apart_leave_the_first(tmp_path, good):
    put(tmp_path / "own", {"level1/relu.py": good, "level_1/relu.py": good, "level1/tanh.py": good})
    loaded = load_suite("own", suite_dirs=[tmp_path])
    assert [problem.name for problem in loaded] == ["relu", "tanh"]
    (said,) = broken(tmp_path, "own").values()
    assert "relu.py is named own/level1/relu as well" in said


@pytest.mark.parametrize("name", ["1_a\nb.py", "1_a@2.py", "1_\x1b[31mred.py", "1_..py"])
def test_a_name_that_no_id_can_have_is_said_and_shown_escaped(tmp_path, good, name):
    put(tmp_path / "own", {"level1/2_relu.py": good, f"level1/{name}": good})
    loaded = load_suite("own", suite_dirs=[tmp_path])
    assert [problem.name for problem in loaded] == ["relu"]
    (fault,) = loaded.broken
    assert "no problem can be named" in str(fault.error)
    assert "\n" not in str(fault.error)
    assert "\x1b" not in str(fault.error)


# --------------------------------------------------------------------------------------------------- MultiKernelBench

MODEL = """
import json
import os
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, scale: float, bias):
        return x * scale if bias is None else x * scale + bias
"""
GROUPS = """

def get_input_groups():
    path = os.path.join(os.path.dirname(__file__), {name})
    groups = []
    with open(path, "r") as f:
        for line in f:
            case = json.loads(line)
            x = torch.randn(case["shape"])
            groups.append([x, case["scale"], torch.randn(case["shape"]) if case["bias"] else None])
    return groups


def get_init_inputs():
    return []
"""
CASES = [
    {"shape": [2, 3], "scale": 2.0, "bias": False},
    {"shape": [5], "scale": -1.0, "bias": True},
    {"shape": [10**7, 10**5], "scale": 1.0, "bias": False},
]


@pytest.fixture
def multi(tmp_path, good):
    """Its repository: two files in KernelBench's contract, two with cases, named by text and by their own name."""
    text = "\n".join(json.dumps(case) for case in CASES) + "\n\n"
    own_name = "os.path.splitext(os.path.basename(__file__))[0] + '.json'"
    return put(
        tmp_path / "checkout" / "reference",
        {
            "activation/relu.py": good,
            "fuse/gemm_relu.py": good,
            "matmul/square.py": good,
            "matmul/_helper.py": "no problem",
            "npukernelbench_level2/7_scale.py": MODEL + GROUPS.format(name='"7_scale.json"'),
            "npukernelbench_level2/7_scale.json": text,
            "npukernelbench_level2/8_scale.py": MODEL + GROUPS.format(name=own_name),
            "npukernelbench_level2/8_scale.json": text,
        },
    ).parent


def test_multikernelbench_has_its_categories_and_levels(multi):
    found = load(multi, "MultiKernelBench")
    assert {name: (p.level, p.number, p.meta.category) for name, p in found.items()} == {
        "MultiKernelBench/activation/relu": (1, None, "activation"),
        "MultiKernelBench/fuse/gemm_relu": (2, None, "fuse"),
        "MultiKernelBench/matmul/square": (1, None, "matmul"),
        "MultiKernelBench/npukernelbench_level2/7_scale": (2, 7, "npukernelbench_level2"),
        "MultiKernelBench/npukernelbench_level2/8_scale": (2, 8, "npukernelbench_level2"),
    }
    assert len(calls(found["MultiKernelBench/activation/relu"])) == 1
    assert load(multi / "reference", "MultiKernelBench").keys() == found.keys(), "the folder of references alone"
    assert find_problem("fuse/gemm_relu", [multi]).level == 2


@pytest.mark.parametrize("number", [7, 8])
def test_each_case_of_multikernelbench_is_a_variant_that_makes_no_other_case(multi, number):
    problem = find_problem(f"MultiKernelBench/npukernelbench_level2/{number}", [multi])
    assert problem.meta.variants_for("cpu") == problem.meta.variants_for("gpu")
    assert len(problem.meta.variants_for("cpu")) == 3
    small = problem.model_copy(
        update={"meta": problem.meta.model_copy(update={"variants": {"cpu": problem.meta.variants_for("cpu")[:2]}})}
    )
    (first, out), (second, _) = calls(small)  # the third would take 4 TB
    assert (tuple(first[0].shape), first[1], first[2]) == ((2, 3), 2.0, None)
    assert tuple(second[0].shape) == tuple(second[2].shape) == (5,)
    assert (out[0] == first[0] * 2).all()


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        (None, "reads its cases from 7_scale.json: 0 lie beside it"),
        ("\n\n", "0 cases where 1 to"),
        ('{"shape": [2]}\n{"shape": [2\n', "7_scale.json, line 2: not valid JSON"),
    ],
)
def test_cases_that_cannot_be_read_break_one_problem(multi, cases, said):
    file = multi / "reference" / "npukernelbench_level2" / "7_scale.json"
    file.unlink()
    if cases is not None:
        file.write_text(cases)
    (fault,) = broken(multi, "MultiKernelBench").items()
    assert fault[0] == "MultiKernelBench/npukernelbench_level2/7_scale"
    assert said in fault[1]


# ------------------------------------------------------------------------------------------------------ robust-kbench

TASK = """
import torch
import torch.nn as nn


def forward_fn(x, weight):
    return x @ weight.T


class Model(nn.Module):
    def __init__(self, width: int = 8, out: int = 4, init_method: str = "normal"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(out, width) if init_method == "ones" else torch.randn(out, width))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight)


def get_inputs(batch_size: int = 16, width: int = 8):
    return [torch.randn(batch_size, width)]
"""


def config(single, multi):
    return json.dumps(
        {
            f"{size}_{part}_configs": values
            for size, parts in (("single", single), ("multi", multi))
            for part, values in zip(("input", "init", "shared"), parts, strict=True)
        }
    )


@pytest.fixture
def robust(tmp_path, good):
    several = config(
        ([{"batch_size": 3}], [{"out": 2, "init_method": "ones"}], [{"width": 5}]),
        ([{"batch_size": 3}, {"batch_size": 1}], [{"out": 2, "init_method": "ones"}, {"out": 7}], [{"width": 5}]),
    )
    none = config(([{"N": 2048}], [{}], [{}]), ([{}], [{}], [{}]))
    return put(
        tmp_path / "checkout" / "tasks",
        {
            "linear/func_forward.py": TASK,
            "linear/config_forward.json": several,
            "linear/func_backward.py": TASK.replace("torch.randn(batch", "1.0 + torch.randn(batch"),
            "linear/config_backward.json": several,
            "kernelbench/level_1/task_3/3_Scale.py": good,
            "kernelbench/level_1/task_3/func_forward.py": TASK,
            "kernelbench/level_1/task_3/config_forward.json": none,
        },
    ).parent


def test_robust_kbench_has_forward_and_backward_tasks_and_those_of_kernelbench(robust):
    found = load(robust, "robust-kbench")
    assert {name: (p.level, p.number, p.meta.backward) for name, p in found.items()} == {
        "robust-kbench/backward/linear": (1, None, True),
        "robust-kbench/forward/linear": (1, None, False),
        "robust-kbench/level1/Scale": (1, 3, False),
    }
    (inputs, outputs), *others = calls(found["robust-kbench/level1/Scale"])
    assert not others, "configurations without a setting are none"
    assert (tuple(inputs[0].shape), tuple(outputs[0].shape)) == ((16, 8), (16, 4))


def test_the_first_variant_is_the_single_configuration_and_the_others_are_all_combinations(robust):
    found = calls(find_problem("robust-kbench/forward/linear", [robust]))
    shapes = [(tuple(inputs[0].shape), tuple(outputs[0].shape)) for inputs, outputs in found]
    assert shapes == [((3, 5), (3, 2)), ((1, 5), (1, 2)), ((3, 5), (3, 7)), ((1, 5), (1, 7))]
    inputs, outputs = found[0]
    assert torch.allclose(outputs[0], inputs[0].sum(-1, keepdim=True), atol=1e-5), "init_method is ones"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "single_init_configs is not a list of objects"),
        (config(([{}], [{}], [{}]), ([{}], [], [{}])), "multi_init_configs is not a list of objects"),
        (config(([{}], [{}], [{}]), ([{"batch_size": n} for n in range(70)], [{}], [{}])), "more than 64"),
        (
            config(([{}], [{}], [{}]), ([{"a": n} for n in range(9999)], [{"b": n} for n in range(9999)], [{}])),
            "than 64",
        ),
        (None, "no such file"),
    ],
)
def test_a_configuration_that_cannot_be_read_breaks_one_task(robust, text, said):
    file = robust / "tasks" / "linear" / "config_backward.json"
    file.unlink()
    if text is not None:
        file.write_text(text)
    (fault,) = broken(robust, "robust-kbench").items()
    assert fault[0] == "robust-kbench/backward/linear"
    assert said in fault[1]


# --------------------------------------------------------------------------------------------------- FlashInfer-Trace

DEFINITION = {
    "name": "norm_h8",
    "description": "RMSNorm.\nMore of it.",
    "op_type": "rmsnorm",
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "bfloat16"},
        "index": {"shape": ["rows"], "dtype": "int32"},
        "mask": {"shape": [], "dtype": "bool"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "bfloat16"}},
    "reference": "import torch\n\ndef run(x, index, mask, eps):\n"
    "    return {'y': x + index[:, None].to(x.dtype) * mask + eps}\n",
}


def workload(rows, **inputs):
    given = {"x": {"type": "random"}, "index": {"type": "random"}, "mask": {"type": "random"}, **inputs}
    return {"definition": "norm_h8", "solution": None, "workload": {"axes": {"rows": rows}, "inputs": given}}


EPS = {"type": "scalar", "value": 1e-3}
FILE = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}


def trace(folder: Path, definition: object = DEFINITION, workloads=()):
    lines = "\n".join(json.dumps(line) for line in workloads)
    text = definition if isinstance(definition, str) else json.dumps(definition)
    files = {"definitions/rmsnorm/norm_h8.json": text}
    if workloads:
        files["workloads/rmsnorm/norm_h8.jsonl"] = lines + "\n"
    return put(folder / "set", files)


def test_a_flashinfer_definition_becomes_a_problem_with_a_variant_for_each_workload(tmp_path):
    folder = trace(tmp_path, workloads=(workload(3, eps=EPS), workload(3, eps=EPS), workload(5, eps=EPS)))
    (problem,) = load(folder, "flashinfer-trace").values()
    assert problem.id == "flashinfer-trace/rmsnorm/norm_h8"
    assert (problem.meta.title, problem.meta.category, problem.meta.dtype) == ("RMSNorm.", "rmsnorm", "bfloat16")
    (three, out), (five, _) = calls(problem)
    x, index, mask, eps = three
    assert [tuple(t.shape) for t in (x, index, mask)] == [(3, 8), (3,), ()]
    assert [str(t.dtype) for t in (x, index, mask)] == ["torch.bfloat16", "torch.int32", "torch.bool"]
    assert eps == 1e-3
    assert tuple(out[0].shape) == (3, 8)
    assert tuple(five[0].shape) == (5, 8)


def test_a_definition_beside_no_folder_of_its_kind_is_known_by_the_kind_that_it_names(tmp_path):
    files = {
        "definitions/norm_h8.json": json.dumps(DEFINITION),
        "workloads/norm_h8.jsonl": json.dumps(workload(2, eps=EPS)),
    }
    assert list(load(put(tmp_path, files), "flashinfer-trace")) == ["flashinfer-trace/rmsnorm/norm_h8"]


def test_workloads_with_tensors_from_files_are_left_out(tmp_path):
    folder = trace(tmp_path, workloads=(workload(3, eps=EPS, x=FILE), workload(4, eps=EPS)))
    (problem,) = load(folder, "flashinfer-trace").values()
    assert [variant["rows"] for variant in problem.meta.variants_for("cpu")] == [4]


@pytest.mark.parametrize(
    ("definition", "workloads", "said"),
    [
        ("{", (), "not valid JSON"),
        ("3", (), "no JSON object"),
        ({**DEFINITION, "reference": ""}, (), "reference is missing or empty"),
        ({**DEFINITION, "axes": {"rows": {"type": "var"}, "hidden": {"type": "const"}}}, (), "axis hidden is neither"),
        ({**DEFINITION, "axes": {"x": {"type": "var"}}}, (), "x is both an axis and an input"),
        ({**DEFINITION, "inputs": {"a; b": {"shape": [], "dtype": "bool"}}}, (), "'a; b' cannot be the name"),
        ({**DEFINITION, "inputs": {"x": {"shape": ["rows", "heads"], "dtype": "bool"}}}, (workload(2),), "axis heads"),
        (
            {**DEFINITION, "inputs": {"x": {"shape": ["rows"], "dtype": "float8_e4m3fn"}}},
            (workload(2),),
            "float8_e4m3fn",
        ),
        (DEFINITION, (), "it has no workload"),
        (
            DEFINITION,
            (3, {"workload": 3}, {"workload": {"axes": [1], "inputs": "x"}}),
            "none of its workloads says all inputs",
        ),
        (
            DEFINITION,
            ({"workload": {"axes": {"rows": 2}, "inputs": {"eps": "1", "x": []}}},),
            "none of its workloads says all inputs",
        ),
        ({**DEFINITION, "inputs": {"x": 3}}, (), "input x has no shape"),
        ({**DEFINITION, "inputs": {"x": {"shape": [["rows"], 8], "dtype": "bool"}}}, (workload(2),), "axis ['rows']"),
        ({**DEFINITION, "inputs": {"x": {"shape": [True], "dtype": "bool"}}}, (workload(2),), "axis True"),
        (DEFINITION, (workload(2, eps=EPS, x=FILE),), "without tensors from files"),
    ],
)
def test_a_definition_that_cannot_be_judged_says_why(tmp_path, definition, workloads, said):
    (fault,) = broken(trace(tmp_path, definition, workloads), "flashinfer-trace").items()
    assert fault[0] == "flashinfer-trace/rmsnorm/norm_h8"
    assert said in fault[1]
    assert "\n" not in fault[1]
