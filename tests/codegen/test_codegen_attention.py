"""Attention as one Triton kernel: it is right in the interpreter, and compiles for GPUs."""

from __future__ import annotations

import json

import pytest
from conftest import problem
from test_codegen_triton import assert_compiled, cases_of, compile_kernels, results_of, run

from kernelwright.codegen import Graph, generate, schedule_space
from kernelwright.codegen._capture import capture_entry

SCRIPT = "codegen_triton_attention.py"
CASES = cases_of(SCRIPT)
results = results_of(SCRIPT, CASES)
GRADIENTS = [f"gradients: {name}" for name in cases_of("codegen_triton_attention_gradients.py")]


@pytest.fixture(scope="module")
def gradients(taken):
    names = [name.split(": ")[1] for name in GRADIENTS if name in taken("gradient")]
    return run("codegen_triton_attention_gradients.py", *names)


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_attention(results, name):
    assert results[name] == "ok", results[name]


@pytest.mark.matrix
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_of_attention(gradients, gradient):
    result = gradients[gradient.split(": ")[1]]
    assert result == "ok", result


def captured(forward, inputs, **more):
    source = problem(forward, inputs)
    reply = capture_entry({"source": source, "variant": {}, **more})
    assert reply["ok"], reply
    return source, Graph.from_json(json.loads(json.dumps(reply)))


def qkv(tokens, head, dtype):
    return ", ".join([f"torch.randn(2, 4, {tokens}, {head}, dtype=torch.{dtype})"] * 3)


CAUSAL = "# q k v\nreturn F.scaled_dot_product_attention(q, k, v, is_causal=True)"
COMPILED = {
    "causal_float32": (CAUSAL, qkv(200, 40, "float32"), {}),
    "ieee": (CAUSAL, qkv(256, 64, "float32"), {"precision": "ieee"}),
    "window_bfloat16": (
        "# q k v\ni = torch.arange(q.shape[2], device=q.device)\nd = i[:, None] - i\n"
        "s = (q @ k.mT * 0.1).masked_fill((d < 0) | (d > 70), float('-inf'))\nreturn s.softmax(-1) @ v",
        qkv(300, 64, "bfloat16"),
        {},
    ),
    "mask_float16": (
        "# q k v m\nreturn F.scaled_dot_product_attention(q, k, v, attn_mask=m)",
        qkv(256, 128, "float16") + ", torch.rand(256, 256) > 0.5",
        {},
    ),
    "one_query": ("# q k v\nreturn F.scaled_dot_product_attention(q[:, :, :1], k, v)", qkv(100, 1, "float32"), {}),
}  # fmt: skip
BACKWARD = (
    "# q k v\ni = torch.arange(q.shape[2], device=q.device)\n"
    "s = (q @ k.mT * 0.1).masked_fill(i > i[:, None], float('-inf'))\nreturn s.softmax(-1) @ v"
)
DIFFERENTIATED = {
    "gradient_float32": (BACKWARD, qkv(200, 40, "float32"), {}),
    "gradient_bfloat16": (BACKWARD, qkv(300, 128, "bfloat16"), {}),
}
ARCHITECTURES = {"causal_float32": [90, 100], "window_bfloat16": [90, 100]}
BOTH_PASSES = """
class Context:
    def save_for_backward(self, *saved):
        self.saved_tensors = saved

class ModelNew(nn.Module):
    def forward(self, *given):
        context = Context()
        return Kernels.backward(context, torch.empty_like(Kernels.forward(context, *given)))
"""


@pytest.fixture(scope="module")
def compiled(taken):
    candidates = {}
    for name, (forward, inputs, schedule) in {**COMPILED, **DIFFERENTIATED}.items():
        if name in taken("name"):
            source, graph = captured(forward, inputs, backward=name in DIFFERENTIATED)
            text = generate(graph, schedule, backend="triton").source
            text += BOTH_PASSES if name in DIFFERENTIATED else ""
            candidates[name] = text, source, {}, *ARCHITECTURES.get(name, [90])
    return compile_kernels(candidates)


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*COMPILED, *DIFFERENTIATED])
def test_attention_compiles_for_gpus(compiled, name):
    found = compiled[name]
    assert_compiled(found, ARCHITECTURES.get(name, [90]))
    for launch in found["launches"]:
        if name == "causal_float32" and ".target sm_90" in launch["ptx"]:
            assert ".tf32" in launch["ptx"]
        if name == "ieee":
            assert "mma" not in launch["ptx"]
    if name in DIFFERENTIATED:
        kernels = [launch for launch in found["launches"] if "attention" in launch["kernel"]]
        kinds = {"gradient_bfloat16": ".bf16.bf16", "gradient_float32": ".tf32.tf32"}
        assert [kinds[name] in launch["ptx"] for launch in kernels] == [True] * 3


def test_cpp_gives_0_to_a_query_that_sees_no_key(build):
    built = build("# q m\nreturn F.scaled_dot_product_attention(q, q, q, attn_mask=m)", "torch.randn(2, 5, 8), "
                  "torch.arange(25).reshape(5, 5) >= 5")  # fmt: skip
    assert not any(entry["kind"] == "torch" for entry in built.generated.report)
    built.check()


def test_only_tiles_that_fit_are_offered():
    for head, dtype, left_out in ((256, "float16", ("ATTENTION_N", 128)), (128, "float32", ("ATTENTION_WARPS", 1))):
        space = schedule_space(captured(CAUSAL, qkv(512, head, dtype))[1], backend="triton")
        assert left_out[1] not in space[left_out[0]]
        assert ("precision" in space) == (dtype == "float32")
    assert schedule_space(captured(CAUSAL, qkv(9, 64, "float32"))[1], backend="triton")["ATTENTION_M"][0] == 16


def test_no_scores_are_moved():
    graph = captured(CAUSAL, qkv(512, 64, "float16"))[1]
    apart, fused = (generate(graph, {"attention": how}, backend="triton") for how in ("decomposed", "fused"))
    assert fused.bytes_moved == 4 * 2 * 4 * 512 * 64 * 2
    assert apart.bytes_moved > 4 * fused.bytes_moved


def test_no_weights_are_saved():
    """Four launches read and write what has features, and a number of each row. C++ saves the weights as before."""
    graph = captured(BACKWARD, qkv(512, 64, "float32"), backward=True)[1]
    made = generate(graph, backend="triton")
    tensor, row = 2 * 4 * 512 * 64 * 4, 2 * 4 * 512 * 4
    assert made.launches == 4
    assert made.bytes_moved == (4 + 2 + 6 + 5) * tensor + (1 + 1 + 2 + 2) * row
    assert {"ATTENTION_M", "GRADIENT_M", "GRADIENT_STAGES"} <= set(made.knobs)
    plain = generate(graph)
    assert "saved_3" in plain.source
    assert "attention" not in {step["kind"] for step in plain.report}
