"""Every built-in problem can be exported, and its own variants are inside the guards of what comes out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from kernelwright.codegen import Graph, generate
from kernelwright.codegen._capture import capture_entry
from kernelwright.datasets import find_problem, load_suite
from kernelwright.export import export_module
from kernelwright.records import Candidate

PROBLEMS = load_suite("kernelwright")


def loaded(text, name, folder, monkeypatch):
    """An exported file as a module."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.matrix(stratum=lambda problem: problem.meta.category)
@pytest.mark.parametrize("problem", PROBLEMS, ids=[problem.id for problem in PROBLEMS])
def test_declared_variants_are_admitted(problem, tmp_path, monkeypatch):
    source = problem.source.replace("class Model(", "class ModelNew(")
    assert source != problem.source
    text = export_module(problem, Candidate(problem_id=problem.id, source=source, backend="cpp"))
    module = loaded(text, f"exported_{problem.name}", tmp_path, monkeypatch)
    variant = module.EXPORT._variant(module.EXPORT.variants[-1])
    model = module.Model(*variant.get_init_inputs()).train(module.EXPORT.training)
    inputs = variant.get_inputs()
    with torch.no_grad():
        assert model.kernel_active(*inputs) == (True, "the call was checked")
        made, wanted = model(*inputs), model.dropin_reference.forward(model, *inputs)
    assert type(made) is type(wanted)
    pairs = zip(made, wanted, strict=True) if isinstance(made, tuple) else [(made, wanted)]
    assert all(torch.equal(one, other) for one, other in pairs)


STYLES = sorted((Path(__file__).parents[1] / "styles").glob("*.py"))


@pytest.mark.matrix
@pytest.mark.parametrize("path", STYLES, ids=[path.stem for path in STYLES])
def test_a_generated_kernel_takes_the_place_of_code_as_others_write_it(path, tmp_path, monkeypatch):
    problem = find_problem(str(path))
    graph = Graph.from_json(capture_entry({"source": problem.source, "mode": "eval"}))
    kernel = Candidate(problem_id=problem.id, source=generate(graph, {}, backend="cpp").source, backend="cpp")
    module = loaded(export_module(problem, kernel), f"exported_{path.stem}", tmp_path, monkeypatch)
    model = module.Model(*module.get_init_inputs()).eval()
    inputs = module.get_inputs()
    with torch.no_grad():
        assert model.kernel_active(*inputs) == (True, "the call was checked")
        made, wanted = model(*inputs), model.dropin_reference.forward(model, *inputs)
    tolerance = 2e-2 if "bfloat16" in problem.source else 1e-4
    torch.testing.assert_close(made, wanted, rtol=tolerance, atol=tolerance)
