"""Long rows and columns that several Triton programs share: right in the interpreter, and compiled for a GPU."""

from __future__ import annotations

import json
import re

import pytest
from conftest import problem
from test_codegen_triton import FOLDER, run

from kernelwright.codegen import Graph, generate, schedule_space
from kernelwright.codegen._capture import capture_entry

SCRIPT = "codegen_triton_parts.py"
CASES = re.findall(r"^@case\ndef (\w+)\(", (FOLDER / SCRIPT).read_text(), flags=re.M)


@pytest.fixture(scope="module")
def results(taken):
    return run(SCRIPT, *[name for name in CASES if name in taken("name")])


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]


COMPILED = {
    "return F.batch_norm(x, None, None, training=True)": ("torch.randn(8, 24, 4001)", 16, 3),
    "return x.logsumexp(0), x.prod(0)": ("torch.randn(4001, 130)", 128, 3),
}


def test_kernels_compile_for_a_gpu():
    payloads = {}
    for body, (inputs, parts, _) in COMPILED.items():
        source = problem(body, inputs)
        graph = Graph.from_json(json.loads(json.dumps(capture_entry({"source": source, "variant": {}}))))
        assert schedule_space(graph, backend="triton")["split"][0] == parts
        text = generate(graph, backend="triton").source
        payloads[body] = {"source": text, "problem": source, "variant": {}, "mode": "eval", "architectures": [90]}
    for body, found in run("codegen_triton_compiled.py", text=json.dumps(payloads)).items():
        assert found["fault"] == ""
        assert len(found["launches"]) == COMPILED[body][-1]
        for launch in found["launches"]:
            assert not launch["error"], launch["error"]
            assert ".target sm_90" in launch["ptx"]
