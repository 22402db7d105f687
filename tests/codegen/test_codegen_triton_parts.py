"""Long rows and columns that several Triton programs share: right in the interpreter, and compiled for a GPU."""

from __future__ import annotations

import json

import pytest
from conftest import problem
from test_codegen_triton import assert_compiled, cases_of, compile_kernels, results_of

from kernelwright.codegen import Graph, generate, schedule_space
from kernelwright.codegen._capture import capture_entry

SCRIPT = "codegen_triton_parts.py"
CASES = cases_of(SCRIPT)
results = results_of(SCRIPT, CASES)


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]


COMPILED = {
    "return F.batch_norm(x, None, None, training=True)": ("torch.randn(8, 24, 4001)", 16, 3),
    "return x.logsumexp(0), x.prod(0)": ("torch.randn(4001, 130)", 128, 3),
}


def test_kernels_compile_for_a_gpu():
    candidates = {}
    for body, (inputs, parts, _) in COMPILED.items():
        source = problem(body, inputs)
        graph = Graph.from_json(json.loads(json.dumps(capture_entry({"source": source, "variant": {}}))))
        assert schedule_space(graph, backend="triton")["split"][0] == parts
        candidates[body] = generate(graph, backend="triton").source, source, {}
    for body, found in compile_kernels(candidates).items():
        assert_compiled(found)
        assert len(found["launches"]) == COMPILED[body][-1]
