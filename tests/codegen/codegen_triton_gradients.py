"""Triton candidates with gradients, run in the corrected interpreter: a script, because that takes a whole process.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

import json
import sys
import traceback

from kernelwright.evaluator.worker.triton.interpreter import install

install()

import torch  # noqa: E402
from codegen_triton_cases import imported  # noqa: E402
from conftest import problem  # noqa: E402
from test_codegen_gradients import BACKWARD, CASES, captured, compare, models  # noqa: E402

from kernelwright.codegen import generate  # noqa: E402
from kernelwright.datasets import find_problem  # noqa: E402


def check(name):
    """Outputs and gradients of one case against the reference's."""
    variants = [{}]
    if name in BACKWARD:
        item = find_problem(name)
        source, variants = item.source, [dict(v) for v in item.meta.variants_for("interpreter")]
    else:
        forward, inputs, init = CASES[name]
        source = problem(forward, inputs, init=init)
    graph = captured(source, backward=True, variant=variants[0], variants=variants)
    generated = generate(graph, backend="triton")
    assert any(step["kind"] == "nest" for step in generated.report)
    for variant in variants:
        torch.manual_seed(0)
        reference, candidate, given = models(source, imported(generated.source), variant=variant)
        compare(candidate, reference, given)


def main():
    results = {}
    for name in sys.argv[1:]:
        try:
            check(name)
            results[name] = "ok"
        except Exception:  # noqa: BLE001 - reported by name to the test that reads it
            results[name] = traceback.format_exc()[-1500:]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
