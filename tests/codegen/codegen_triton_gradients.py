"""Triton candidates with gradients, run in the corrected interpreter: a script, because that takes a whole process.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

import functools
import json

import torch
from codegen_cases import main
from codegen_triton_cases import imported
from conftest import problem
from test_codegen_gradients import BACKWARD, CASES, captured, compare, models

from kernelwright.codegen import generate, triton_seed
from kernelwright.codegen._inductor_triton import inductor_triton_entry
from kernelwright.datasets import find_problem


def problem_of(name):
    """A case's source, its variants for capture, and those to check."""
    if name in BACKWARD:
        item = find_problem(name)
        small = [dict(v) for v in item.meta.variants_for("interpreter")]
        return item.source, [dict(item.meta.variants_for("gpu")[1]), *small], small
    forward, inputs, init = CASES[name]
    return problem(forward, inputs, init=init), [{}], [{}]


@torch.enable_grad()
def check(name):
    """Outputs and gradients of one case against the reference's."""
    source, variants, checked = problem_of(name.removeprefix("seed of "))
    payload = {"backward": True, "variant": variants[0], "variants": variants}
    graph = captured(source, **payload)
    if name.startswith("seed of "):
        reply = inductor_triton_entry({"source": source, **payload})
        generated = triton_seed(graph, json.loads(json.dumps(reply)))
        assert generated.launches == sum(half["launches"] for half in reply["variants"][0]["halves"])
    else:
        generated = generate(graph, backend="triton")
        assert any(step["kind"] == "nest" for step in generated.report)
    for variant in checked:
        torch.manual_seed(0)
        reference, candidate, given = models(source, imported(generated.source), variant=variant)
        compare(candidate, reference, given)


@torch.enable_grad()
def check_writes():
    """TorchInductor's kernels for a batch norm in training write what torch writes."""
    source = problem("return self.n(x)", "torch.randn(6, 5, 4, 3)", init="self.n = nn.BatchNorm2d(5, momentum=0.3)")
    graph = captured(source, mode="train")
    seed = triton_seed(graph, inductor_triton_entry({"source": source, "variant": {}, "mode": "train"}))
    reference, candidate, inputs = models(source, imported(seed.source), mode="train")
    for _ in range(2):
        torch.testing.assert_close(candidate(*inputs), reference(*inputs))
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(candidate.state_dict()[name], value)


if __name__ == "__main__":
    names = [*CASES, *BACKWARD]
    checks = {name: functools.partial(check, name) for name in [*names, *(f"seed of {name}" for name in names)]}
    main({**checks, "writes": check_writes})
