"""Triton kernels of operators that move, pick or gather elements: right in the interpreter, and compiled for a GPU."""

from __future__ import annotations

import pytest
from test_codegen_triton import PROBLEMS, assert_compiled, cases_of, compile_kernels, graph_of, results_of

from kernelwright.codegen import generate

SCRIPT = "codegen_triton_irregular.py"
CASES = cases_of(SCRIPT)
results = results_of(SCRIPT, CASES)
COMPILED = [
    *(f"level1/{name}" for name in ("cummax", "histogram", "top_k", "adaptive_avg_pool2d", "rotary_embedding")),
    *(f"level2/{name}" for name in ("edge_message_sum", "sparse_row_product")),
]


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]


@pytest.fixture(scope="module")
def compiled(taken):
    candidates = {}
    for name in taken("problem"):
        source = generate(graph_of(name), backend="triton").source
        candidates[name] = source, PROBLEMS[name].source, PROBLEMS[name].meta.variants_for("interpreter")[0]
    return compile_kernels(candidates)


@pytest.mark.matrix
@pytest.mark.parametrize("problem", COMPILED)
def test_kernels_compile_for_a_gpu(compiled, problem):
    assert_compiled(compiled[problem])
