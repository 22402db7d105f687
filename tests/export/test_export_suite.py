"""Every built-in problem can be exported, and its own variants are inside the guards of what comes out."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from kernelwright.datasets import load_suite
from kernelwright.export import export_module
from kernelwright.records import Candidate

PROBLEMS = load_suite("kernelwright")


@pytest.mark.matrix(stratum=lambda problem: problem.meta.category)
@pytest.mark.parametrize("problem", PROBLEMS, ids=[problem.id for problem in PROBLEMS])
def test_declared_variants_are_admitted(problem, tmp_path, monkeypatch):
    source = problem.source.replace("class Model(", "class ModelNew(")
    assert source != problem.source
    path = tmp_path / f"exported_{problem.name}.py"
    path.write_text(export_module(problem, Candidate(problem_id=problem.id, source=source, backend="cpp")))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    variant = module.EXPORT._variant(module.EXPORT.variants[-1])
    model = module.Model(*variant.get_init_inputs()).train(module.EXPORT.training)
    inputs = variant.get_inputs()
    with torch.no_grad():
        assert model.kernel_active(*inputs) == (True, "the call was checked")
        made, wanted = model(*inputs), model.dropin_reference.forward(model, *inputs)
    assert type(made) is type(wanted)
    pairs = zip(made, wanted, strict=True) if isinstance(made, tuple) else [(made, wanted)]
    assert all(torch.equal(one, other) for one, other in pairs)
