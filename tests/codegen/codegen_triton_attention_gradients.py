"""The backward pass of attention as Triton kernels, run in the corrected interpreter: a script, as for other cases.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

from unittest import mock

import torch
from codegen_cases import Cases, main
from codegen_triton_attention import MASKS, SCALED, shapes
from codegen_triton_cases import imported
from conftest import problem
from test_codegen_gradients import captured, compare, models

from kernelwright.codegen import _triton_tiles, generate

case = Cases()
SMALL = {"ATTENTION_M": 16, "ATTENTION_N": 32, "GRADIENT_M": 16, "GRADIENT_N": 32}
WEIGHED = "\nreturn s.softmax(-1) @ v"


@torch.enable_grad()
def differentiated(forward, inputs, schedule=SMALL, *, init="", kernels=3):
    """A candidate with gradients against torch in float64. So many of its kernels are attention, in both passes."""
    source = problem("# q k v\n" + forward, inputs, init=init)
    generated = generate(captured(source, backward=True), schedule, backend="triton")
    kinds = [step["kind"] for step in generated.report]
    assert kinds.count("attention") == kernels, generated.report
    torch.manual_seed(0)
    reference, candidate, given = models(source, imported(generated.source))
    compare(candidate, reference, given, given[0].dtype)
    return generated


@case
def odd_sizes():
    for rows, columns, head, out in ((29, 31, 5, 7), (2, 67, 16, 5), (37, 2, 7, 16), (64, 32, 16, 32)):
        made = differentiated(SCALED + WEIGHED, shapes((2, 2, rows, head), (2, 2, columns, head), (2, 2, columns, out)))
        assert made.launches == 4


@case
def masks_and_biases():
    for name, mask in MASKS.items():
        made = differentiated(SCALED + mask + WEIGHED, shapes(*[(1, 2, 41, 8)] * 3))
        assert made.launches == 4, name
        skips = "first = tl.maximum(0, first_key" in made.source
        assert skips == (name in ("causal", "window", "added", "tril", "alibi")), name
        assert ("last = tl.minimum(41, first_key" in made.source) == (name == "window"), name


@case
def halves():
    for dtype in ("float16", "bfloat16"):
        inputs = ", ".join([f"torch.randn(2, 2, 37, 8, dtype=torch.{dtype})"] * 3)
        for weights in ("s.softmax(-1)", "s.float().softmax(-1).to(v.dtype)"):
            made = differentiated(f"{SCALED}{MASKS['causal']}\nreturn {weights} @ v", inputs)
            assert made.launches == 4


@case
def heads_are_read_where_they_lie():
    """From one projection, and the result where the next step reads it."""
    forward = (
        "q, k, v = self.qkv(q).view(2, 19, 3, 3, 8).permute(2, 0, 3, 1, 4)\n"
        f"{SCALED}return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(2, 19, 24))"
    )
    init = "self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)"
    inputs = "torch.randn(2, 19, 24), torch.randn(2), torch.randn(2)"
    made = differentiated(forward, inputs, {**SMALL, "gemm": "library"}, init=init)
    assert not any("clone" in step["ops"] for step in made.report)


@case
def heads_shared_by_groups():
    forward = f"k, v = (t.repeat_interleave(2, 1) for t in (k, v))\n{SCALED}{WEIGHED}"
    differentiated(forward, shapes((1, 4, 19, 8), (1, 2, 19, 8), (1, 2, 19, 8)))


@case
def every_choice_is_right():
    forward, inputs = SCALED + MASKS["causal"] + WEIGHED, shapes(*[(1, 2, 37, 8)] * 3)
    large = {"GRADIENT_M": 64, "GRADIENT_N": 64, "GRADIENT_STAGES": 2}
    for schedule in (large, {"precision": "tf32x3", "GRADIENT_M": 32, "GRADIENT_N": 16}):
        differentiated(forward, inputs, schedule)
    differentiated(forward, inputs, {"attention": "decomposed"}, kernels=0)


@case
def one_attention_after_the_other():
    forward = f"{SCALED}w = s.softmax(-1) @ v\nreturn (w @ q.mT).softmax(-1) @ k"
    differentiated(forward, shapes(*[(1, 2, 19, 8)] * 3), kernels=6)


@case
def other_forms_stay_as_they_were():
    """Weights that are returned, read twice or turned, scores whose gradient is wanted, and random numbers."""
    inputs = shapes(*[(2, 2, 8, 8)] * 3)
    for rest in ("return p @ v, p", "return p @ v + p.sum()", "return p.mT @ v", "return p.transpose(0, 1) @ v"):
        made = differentiated(f"{SCALED}p = s.softmax(-1)\n{rest}", inputs, {}, kernels=0)
        assert "logsumexp" not in made.source
    init = "self.bias = nn.Parameter(torch.randn(2, 8, 8))"
    differentiated("return (q @ k.mT + self.bias).softmax(-1) @ v", inputs, {}, init=init, kernels=0)
    for dropped in ("F.dropout(s, 0.5, True).softmax(-1)", "F.dropout(s.softmax(-1), 0.5, True)"):
        source = problem(f"# q k v\n{SCALED}return {dropped} @ v", inputs)
        with torch.enable_grad():
            graph = captured(source, backward=True)
        report = generate(graph, backend="triton").report
        assert "attention" not in {step["kind"] for step in report}


@case
def long_indices():
    with mock.patch.object(_triton_tiles, "LARGE", 64):
        made = differentiated(SCALED + MASKS["causal"] + WEIGHED, shapes(*[(1, 2, 37, 8)] * 3))
    assert "tl.program_id(0).to(tl.int64)" in made.source


if __name__ == "__main__":
    main(case)
