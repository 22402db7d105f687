"""The exemplars are what they are shown as: right kernels. The referee judges each on its own reference."""

from __future__ import annotations

import pytest

from kernelwright.config import Settings
from kernelwright.datasets import parse_problem
from kernelwright.evaluator import Check, Referee
from kernelwright.inline.cuda_toolchain import find_nvcc
from kernelwright.prompts import CATEGORIES, exemplar_names, read_exemplar
from kernelwright.records import Candidate, Stage, Status

NAMES = exemplar_names()
# Of Triton those of its interpreter, which copies what a kernel reads and writes.
ALLOCATIONS = {"aten.empty", "aten.empty_like", "aten.new_empty", "aten.set_", "aten.copy_"}


@pytest.fixture(scope="module")
def referee(make_cache):
    flags = {"cache_dir": str(make_cache()), "device": "none", "memory_bytes": 1 << 30}
    with Referee(Settings.load(flags=flags, env={})) as made:
        yield made


def test_every_category_has_one_in_cpp_and_the_most_common_ones_on_gpus():
    backends = {category: {backend for backend, name in NAMES if name == category} for category in CATEGORIES}
    assert all("cpp" in found for found in backends.values())
    for category in ("pointwise", "reduction", "normalisation", "softmax", "gemm"):
        assert backends[category] == {"cpp", "triton", "cuda"}
    assert {name for _, name in NAMES} == set(CATEGORIES)


@pytest.mark.untimed
@pytest.mark.matrix(stratum=lambda backend, category: backend)
@pytest.mark.parametrize(("backend", "category"), NAMES, ids=["-".join(name) for name in NAMES])
def test_an_exemplar_passes_on_its_own_reference(referee, backend, category):
    if backend == "cuda" and find_nvcc() is None:
        pytest.skip("no nvcc here: install CUDA's toolkit to judge the exemplars in CUDA")
    exemplar = read_exemplar(backend, category)
    problem = parse_problem(exemplar.problem, id=f"exemplars/{category}", suite="exemplars", level=1, name=category)
    with referee.open(problem, backend=backend, baselines=("eager",)) as session:
        made = Candidate(problem_id=problem.id, source=exemplar.source, backend=backend)
        verdict = session.judge(made, depth=Check()).verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.CHECKED), verdict.reason
    said = {finding.rule: finding.evidence for finding in verdict.findings}
    assert said["own-kernels"].startswith("wrong without its own kernels")
    assert set(said["torch-operators"].split(", ")) <= ALLOCATIONS, "an exemplar leaves no work to torch"
