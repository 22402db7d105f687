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


def run(script, *names, text=None):
    """What a script of this folder prints, given names of cases to run, and ``text`` as its standard input."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(FOLDER / script), *names]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def cases_of(*scripts):
    """The names of the cases in files of this folder."""
    text = "".join((FOLDER / script).read_text() for script in scripts)
    return re.findall(r"^@(?:case|shared)\n(?:@.*\n)?def (\w+)\(", text, flags=re.M)


def results_of(script, names):
    """A fixture: what a script prints for those of its cases that the tests of a module take."""

    @pytest.fixture(scope="module")
    def results(taken):
        return run(script, *[name for name in names if name in taken("name")])

    return results


def compile_kernels(candidates):
    """The compiled kernels of (source, problem, variant, architectures ...) by any names, for sm_90 by default."""
    payloads = {}
    for name, (source, problem, variant, *architectures) in candidates.items():
        payloads[name] = {"source": source, "problem": problem, "variant": variant, "mode": "eval",
                          "architectures": architectures or [90]}  # fmt: skip
    return run("codegen_triton_compiled.py", text=json.dumps(payloads))


def assert_compiled(found, architectures=(90,)):
    """All launches of a candidate were compiled, for each of these architectures at least one."""
    assert found["fault"] == ""
    assert {launch["architecture"] for launch in found["launches"]} == set(architectures)
    for launch in found["launches"]:
        assert not launch["error"], launch["error"]
        assert f".target sm_{launch['architecture']}" in launch["ptx"]


def graph_of(name):
    """A problem in the shapes that a GPU and the interpreter see, small ones first: capture draws real inputs."""
    variants = [*PROBLEMS[name].meta.variants_for("interpreter"), *PROBLEMS[name].meta.variants_for("gpu")[1:]]
    reply = capture_entry({"source": PROBLEMS[name].source, "variant": variants[0], "variants": variants})
    assert reply["ok"], reply
    return Graph.from_json(json.loads(json.dumps(reply)))


CASES = cases_of("codegen_cases.py", "codegen_triton_cases.py")
results = results_of("codegen_triton_cases.py", CASES)


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
    candidates = {}
    for name in (n for n in COMPILED if n in {PRODUCT, *taken("name")}):
        graph, problem = graph_of(name), PROBLEMS[name]
        known = set(schedule_space(graph, backend="triton"))
        schedule = {choice: value for choice, value in COMPILED[name].items() if choice in known}
        source = generate(graph, schedule, backend="triton").source
        candidates[name] = source, problem.source, problem.meta.variants_for("gpu")[1]
    return compile_kernels(candidates)


@pytest.mark.matrix
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_for_a_gpu(compiled, name):
    assert_compiled(compiled[name])


def test_products_of_float32_are_three_of_tf32(compiled):
    for launch in compiled[PRODUCT]["launches"]:
        products = len(re.findall(r"mma\S*\.tf32\.tf32", launch["ptx"]))
        assert products % 3 == 0 < products


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
