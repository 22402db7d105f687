"""Triton kernels of operators that move, pick or gather elements: right in the interpreter, and compiled for a GPU."""

from __future__ import annotations

import json
import re

import pytest
from test_codegen_triton import FOLDER, PROBLEMS, graph_of, run

from kernelwright.codegen import generate

SCRIPT = "codegen_triton_irregular.py"
CASES = re.findall(r"^@case\ndef (\w+)\(", (FOLDER / SCRIPT).read_text(), flags=re.M)
COMPILED = [
    *(f"level1/{name}" for name in ("cummax", "histogram", "top_k", "adaptive_avg_pool2d", "rotary_embedding")),
    *(f"level2/{name}" for name in ("edge_message_sum", "sparse_row_product")),
]


@pytest.fixture(scope="module")
def results(taken):
    return run(SCRIPT, *[name for name in CASES if name in taken("name")])


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]


@pytest.fixture(scope="module")
def compiled(taken):
    payloads = {}
    for problem in taken("problem"):
        source = generate(graph_of(problem), backend="triton").source
        variant = PROBLEMS[problem].meta.variants_for("interpreter")[0]
        payloads[problem] = {"source": source, "problem": PROBLEMS[problem].source, "variant": variant, "mode": "eval",
                             "architectures": [90]}  # fmt: skip
    return run("codegen_triton_compiled.py", text=json.dumps(payloads))


@pytest.mark.matrix
@pytest.mark.parametrize("problem", COMPILED)
def test_kernels_compile_for_a_gpu(compiled, problem):
    found = compiled[problem]
    assert found["fault"] == ""
    assert found["launches"]
    for launch in found["launches"]:
        assert not launch["error"], launch["error"]
        assert ".target sm_90" in launch["ptx"]
