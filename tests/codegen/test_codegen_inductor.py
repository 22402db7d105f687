"""Seeds from TorchInductor: they build, they are right, and what has none says so."""

from __future__ import annotations

import types

import pytest
from conftest import problem

from kernelwright.codegen import Graph, inductor_seed
from kernelwright.codegen._capture import capture_entry
from kernelwright.codegen._inductor import inductor_entry
from kernelwright.inline import patch_load_inline

SIZES = [{"N": 6, "M": 40}, {"N": 3, "M": 7}]
CASES = {
    "chain": ("return F.gelu(x * 2 + self.b) * torch.sigmoid(x)", "self.b = nn.Parameter(torch.randn(1))"),
    "linear": ("return F.relu(F.linear(x, self.w)) + 1", "self.w = nn.Parameter(torch.randn(11, M))"),
    "softmax": ("return torch.softmax(x, -1) * x.mean()", ""),
    "rows": ("return torch.zeros_like(x).index_add_(0, torch.arange(x.shape[0]).flip(0), x)", ""),
    "rms": ("return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)", ""),
    "pair": ("return x.exp(), x.sum(-1)", ""),
}


def entries(forward, init):
    constants = "N = 6\nM = 40"
    source = problem(forward, "torch.randn(N, M)", init=init, init_inputs="M", constants=constants, variants=SIZES)
    payload = {"source": source, "variant": SIZES[0]}
    return Graph.from_json(capture_entry(payload)), inductor_entry(payload)


@pytest.mark.matrix(one_in=4)
@pytest.mark.parametrize("name", CASES)
def test_seed_matches(build_source, name):
    graph, reply = entries(*CASES[name])
    seed = inductor_seed(graph, reply)
    assert seed is not None
    assert "at::vec" in seed.source or reply["vector_bits"] == 0
    built = build_source(graph.module_source, {}, SIZES)
    built.module = types.ModuleType("seed")
    patch_load_inline(None)
    exec(compile(seed.source, "seed.py", "exec"), built.module.__dict__)
    for variant in SIZES:
        built.check(variant)


def test_no_seed_where_there_is_no_kernel():
    graph, reply = entries("return x @ x.T", "")
    assert reply["ok"]
    assert inductor_seed(graph, reply) is None


def test_faults_have_reasons():
    reply = inductor_entry({"source": "import nothing_like_this", "variant": {}})
    assert not reply["ok"]
    assert "nothing_like_this" in reply["reason"]
    graph, _ = entries("return x * 2", "")
    assert inductor_seed(graph, reply) is None
