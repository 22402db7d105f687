"""The Triton emitter: what it writes is right in the interpreter, and compiles for a GPU."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.codegen import CodegenError, Graph, default_schedule, generate, schedule_space
from kernelwright.codegen._capture import capture_entry
from kernelwright.datasets import load_suite
from kernelwright.inline import apply_knobs

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PROBLEMS = {p.id.removeprefix("kernelwright/"): p for p in load_suite("kernelwright")}
CASES = re.findall(r"^@case\ndef (\w+)\(", (FOLDER / "codegen_triton_cases.py").read_text(), flags=re.M)


def run(script, *names, text=None):
    """What a script of this folder prints, given names of cases to run, and ``text`` as its standard input."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(FOLDER / script), *names]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def graph_of(name):
    """A problem in the shapes that a GPU and the interpreter see, small ones first: capture draws real inputs."""
    variants = [*PROBLEMS[name].meta.variants_for("interpreter"), *PROBLEMS[name].meta.variants_for("gpu")[1:]]
    reply = capture_entry({"source": PROBLEMS[name].source, "variant": variants[0], "variants": variants})
    assert reply["ok"], reply
    return Graph.from_json(json.loads(json.dumps(reply)))


@pytest.fixture(scope="module")
def results(taken):
    return run("codegen_triton_cases.py", *[name for name in CASES if name in taken("name")])


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]


COMPILED = {
    "level1/gelu": {},
    "level1/softmax": {},
    "level1/layer_norm": {"rows": "blocks"},
    "level1/norm_middle_dim": {"fast_math": True},
    "level1/argmax": {},
    "level1/cumsum": {},
    "level1/max_pool2d": {},
    "level1/cross_entropy": {},
    "level2/gemm_bias_gelu": {"gemm": "own", "BLOCK_M": 32, "BLOCK_N": 32},
}
PRODUCT = "level2/gemm_bias_gelu"


@pytest.fixture(scope="module")
def compiled(taken):
    payloads = {}
    for name, schedule in COMPILED.items():
        if name != PRODUCT and name not in taken("name"):
            continue
        known = {k: v for k, v in schedule.items() if k in schedule_space(graph_of(name), backend="triton")}
        source = generate(graph_of(name), known, backend="triton").source
        variant = PROBLEMS[name].meta.variants_for("gpu")[1]
        problem = PROBLEMS[name].source
        payloads[name] = {
            "source": source,
            "problem": problem,
            "variant": variant,
            "mode": "eval",
            "architectures": [90],
        }
    return run("codegen_triton_compiled.py", text=json.dumps(payloads))


@pytest.mark.matrix
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_for_a_gpu(compiled, name):
    found = compiled[name]
    assert found["fault"] == ""
    assert found["launches"]
    for launch in found["launches"]:
        assert not launch["error"], launch["error"]
        assert ".target sm_90" in launch["ptx"]


def test_products_of_float32_do_not_use_tensor_cores(compiled):
    for launch in compiled[PRODUCT]["launches"]:
        assert "mma" not in launch["ptx"]


def test_knobs_are_constants_of_the_file():
    graph = graph_of("level1/softmax")
    made = generate(graph, {"TILE": 2048}, backend="triton")
    assert made.knobs["TILE"] == 2048
    values = {}
    for statement in ast.parse(apply_knobs(made.source, {"TILE": 1024})).body:
        if isinstance(statement, ast.Assign):
            values[statement.targets[0].id] = ast.literal_eval(statement.value)
    assert values["TILE"] == 1024
    assert 1024 in values["KNOBS"]["TILE"]


def test_the_space_names_what_matters():
    softmax, product = (
        schedule_space(graph_of(n), backend="triton") for n in ("level1/softmax", "level1/square_matmul")
    )
    assert {"rows", "TILE", "REDUCE_WARPS"} <= set(softmax)
    assert "BLOCK_M" not in softmax
    assert {"gemm", "BLOCK_M", "GEMM_STAGES"} <= set(product)
    assert default_schedule(graph_of("level1/softmax"), backend="triton")["rows"] == softmax["rows"][0]


def test_other_backends_and_choices_are_refused():
    graph = graph_of("level1/softmax")
    with pytest.raises(CodegenError, match="no generator for hip"):
        generate(graph, backend="hip")
    with pytest.raises(CodegenError, match="unknown choice"):
        generate(graph, {"tile": "8x3"}, backend="triton")
    with pytest.raises(CodegenError, match="cannot be"):
        generate(graph, {"TILE": 999}, backend="triton")
    assert generate(graph).source == generate(graph, backend="cpp").source
    assert "@triton.jit" not in generate(graph).source


def test_constants_are_moved_to_the_inputs_device():
    source = (
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return x * torch.tensor([1.0, 2.0, 3.0])\n"
        "def get_inputs():\n    return [torch.randn(4, 3)]\ndef get_init_inputs():\n    return []\n"
    )
    graph = Graph.from_json(capture_entry({"source": source, "variant": {}}))
    assert re.search(r"= \w+\.to\(x\.device\)", generate(graph, backend="triton").source)
