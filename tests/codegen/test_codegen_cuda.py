"""The CUDA emitter: what it writes is right in the emulator, and compiles for a GPU."""

from __future__ import annotations

import ast
import json
import re
import subprocess

import pytest
from test_codegen_triton import PROBLEMS, cases_of, graph_of, results_of

from kernelwright import inline
from kernelwright.codegen import CodegenError, Graph, generate, schedule_space
from kernelwright.codegen._capture import capture_entry
from kernelwright.inline import apply_knobs
from kernelwright.inline.cuda_toolchain import cubin_command, find_nvcc

CASES = cases_of("codegen_cases.py", "codegen_cuda_cases.py")
# One problem of each kind of kernel; every problem's kernels have been run this way.
BUILT_IN = ("level1/gelu", "level1/softmax", "level1/batch_norm", "level1/norm_middle_dim", "level1/argmax",
            "level1/cumsum", "level1/reversed_cumsum", "level1/cross_entropy", "level1/max_pool2d",
            "level1/scatter_add", "level2/float16_masked_softmax", "level2/adamw_update",
            "level3/mlp_block")  # fmt: skip
COMPILED = {"level1/softmax": {}, "level1/cumsum": {}, "level1/norm_middle_dim": {"rows": "blocks"},
            "level1/cross_entropy": {"fast_math": True}, "level2/float16_masked_softmax": {}}  # fmt: skip


def graph_at_size(name):
    """A problem as a GPU's referee has it, but for the timed variant, whose inputs are large."""
    variants = [*PROBLEMS[name].meta.variants_for("gpu")[1:], *PROBLEMS[name].meta.variants_for("interpreter")]
    reply = capture_entry({"source": PROBLEMS[name].source, "variant": variants[0], "variants": variants})
    assert reply["ok"], reply
    return Graph.from_json(json.loads(json.dumps(reply)))


results = results_of("codegen_cuda_cases.py", [*CASES, *BUILT_IN])


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*CASES, *BUILT_IN])
def test_cuda_candidate(results, name):
    assert results[name] == "ok", results[name]


@pytest.mark.matrix
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_for_a_gpu_without_spills(name, tmp_path):
    if find_nvcc() is None:
        pytest.skip("no nvcc here: install CUDA's toolkit to compile the kernels of CUDA candidates")
    built = []

    def compiled(request):
        source, out = tmp_path / f"{request.name}.cu", tmp_path / f"{request.name}.cubin"
        source.write_text(request.source)
        command = cubin_command("sm_90", request.name, request.flags, str(source), str(out))
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        built.append((request.name, re.findall(r"(\d+) bytes spill stores", done.stderr)))
        return str(out)

    generated = generate(graph_at_size(name), COMPILED[name], backend="cuda")
    module = ast.parse(generated.source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline.requests, "_only_builds", True)
        patch.setattr(inline.requests, "_provider", compiled)
        exec(compile(module, "candidate.py", "exec"), {"__name__": "candidate"})
    assert built
    assert all(spills == ["0"] for _, spills in built), built


def test_knobs_are_constants_of_the_file():
    made = generate(graph_of("level1/softmax"), {"ROW_ITEMS": 4}, backend="cuda")
    assert made.knobs["ROW_ITEMS"] == 4
    values = {}
    for statement in ast.parse(apply_knobs(made.source, {"VECTOR": 2})).body:
        if isinstance(statement, ast.Assign):
            values[statement.targets[0].id] = statement.value
    assert ast.literal_eval(values["VECTOR"]) == 2
    declared = ast.literal_eval(values["KNOBS"])
    assert set(declared) == {"VECTOR", "REDUCE_BLOCK", "ROW_ITEMS"}
    assert 2 in declared["VECTOR"]


def test_the_space_names_what_matters():
    space = schedule_space(graph_of("level1/gelu"), backend="cuda")
    assert set(space) == {"BLOCK", "VECTOR", "ITEMS"}
    assert schedule_space(graph_of("level2/float16_masked_softmax"), backend="cuda")["VECTOR"][0] == 8
    with pytest.raises(CodegenError, match="unknown choice 'TILE'"):
        generate(graph_of("level1/gelu"), {"TILE": 1024}, backend="cuda")
    with pytest.raises(CodegenError, match="ITEMS cannot be 3"):
        generate(graph_of("level1/gelu"), {"ITEMS": 3}, backend="cuda")


def test_what_the_library_computes_is_reported():
    made = generate(graph_of("level1/square_matmul"), backend="cuda")
    assert not made.has_kernel
    assert made.report[0]["kind"] == "torch"
