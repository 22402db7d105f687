"""Capture and the graph's JSON: variants unify, faults have reasons, nothing trusted imports torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PRELUDE, problem

from kernelwright.codegen import CodegenError, Graph, _capture, generate
from kernelwright.codegen._capture import capture_entry

STYLES = Path(__file__).parents[1] / "styles"
SOFTMAX = problem(
    "return torch.softmax(x * self.scale, -1)", "torch.randn(ROWS, COLS)", init="self.scale = COLS ** -0.5",
    constants="ROWS = 4\nCOLS = 6",
    variants=[{"ROWS": 4, "COLS": 6}, {"ROWS": 1, "COLS": 31}, {"ROWS": 9, "COLS": 130}],
)  # fmt: skip


def capture(source, **payload):
    return capture_entry({"source": source, "variant": {}, **payload})


def test_numbers_that_differ_become_vectors():
    reply = capture(SOFTMAX, variant={"ROWS": 4, "COLS": 6})
    graph = Graph.from_json(json.dumps(reply))
    assert graph.variants == 3
    assert [s.values for s in graph.inputs[0].info.shape] == [(4, 1, 9), (6, 31, 130)]
    assert graph.nodes[0].args[1].values == pytest.approx([6**-0.5, 31**-0.5, 130**-0.5])
    assert Graph.from_json(graph.to_json()) == graph


def test_candidate_reads_sizes_from_shapes(build_source):
    variants = [{"ROWS": 4, "COLS": 6}, {"ROWS": 1, "COLS": 31}, {"ROWS": 9, "COLS": 130}]
    built = build_source(SOFTMAX, {}, variants)
    assert "math.sqrt(x.shape[1])" in built.generated.source.replace("x_size1", "x.shape[1]")
    for variant in (*variants, {"ROWS": 5, "COLS": 77}):
        built.check(variant)


def test_sizes_that_no_shape_shows_are_looked_up(build_source):
    source = problem(
        "return x[:, :KEEP] * 2 + x[:, -KEEP:]", "torch.randn(3, COLS)", constants="COLS = 8\nKEEP = 2",
        variants=[{"COLS": 8, "KEEP": 2}, {"COLS": 11, "KEEP": 3}, {"COLS": 20, "KEEP": 5}],
    )  # fmt: skip
    built = build_source(source, {}, [{"COLS": 8, "KEEP": 2}, {"COLS": 11, "KEEP": 3}, {"COLS": 20, "KEEP": 5}])
    assert "variant" in built.generated.source
    built.check({"COLS": 11, "KEEP": 3})
    built.check({"COLS": 20, "KEEP": 5})


def test_fixed_sizes_are_guarded(build):
    built = build("return x * 2", "torch.randn(3, 5)")
    with pytest.raises(ValueError, match="made for x of shape"):
        built.module.ModelNew()(__import__("torch").randn(3, 6))


def test_a_problem_larger_than_the_memory_is_captured():
    square = "self.w = nn.Parameter(torch.randn(1 << 21, 1 << 21))"
    source = problem("return F.linear(x, self.w)", "torch.randn(8, 1 << 21)", init=square)
    assert capture(source)["nodes"][0]["outputs"][0]["shape"] == [8, 1 << 21]  # its weight has 16 TiB
    assert capture(source, backward=True)["ok"]


def test_a_large_problem_that_reads_numbers_of_its_own_gets_some(build, monkeypatch):
    monkeypatch.setattr(_capture, "_LARGE", -1)
    init = "self.scale = torch.arange(6.0).sum().item()\nself.table = torch.linspace(0, 1, 9000).view(2, -1)"
    built = build("return x * self.scale + self.table.mean()", "torch.randn(3, 5)", init=init)
    assert "15.0" in built.generated.source
    built.check()


def test_a_large_problem_whose_graph_holds_a_constant_is_captured(monkeypatch):
    monkeypatch.setattr(_capture, "_LARGE", -1)
    assert capture((STYLES / "closures_and_lambdas.py").read_text())["ok"]


TWO = [{"N": 2}, {"N": 5}]
SHAPED = problem("return x * 2 if N > 3 else x + 1", "torch.randn(N)", constants="N = 2", variants=TWO)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (PRELUDE + "import not_there_at_all\n", "not_there_at_all"),
        (problem("return x if x.sum() > 0 else -x", "torch.randn(3)"), "torch.export"),
        (problem("return x.add_(1)", "torch.randn(3)"), "changes an input"),
        (problem("return {'a': x * 2}", "torch.randn(3)"), "returns a dict"),
        (SHAPED, "different graphs"),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_has_a_reason(source, reason):
    reply = capture(source)
    assert not reply["ok"]
    assert reason in reply["reason"]
    with pytest.raises(CodegenError, match="there is no graph"):
        Graph.from_json(reply)


def test_malformed_json_is_refused():
    good = capture(problem("return x * 2", "torch.randn(3)"))
    for broken in ({**good, "format": 99}, {**good, "nodes": [{"op": 1}]}, {**good, "inputs": 7}):
        with pytest.raises(CodegenError):
            Graph.from_json(broken)


def test_outputs_keep_their_structure(build):
    for text, kind in (("return x * 2", "torch.empty"), ("return (x * 2,)", ","), ("return [x * 2, x + 1]", "[")):
        built = build(text, "torch.randn(3, 5)")
        assert kind in built.generated.source
        reference, candidate, inputs = built.models({})
        assert type(candidate(*inputs)) is type(reference(*inputs))


def test_constructor_keeps_names_and_helpers(build_source):
    source = (
        f"{PRELUDE}WIDTH = 6\nclass Inner(nn.Module):\n    def __init__(self, d):\n        super().__init__()\n"
        "        self.fc = nn.Linear(d, WIDTH)\n    def forward(self, x):\n        return F.relu(self.fc(x))\n"
        "def twice(d):\n    return 2 * d\nclass Model(nn.Module):\n    def __init__(self, d):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(Inner(d), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, twice(d)))\n"
        "        self._setup()\n    def _setup(self):\n"
        "        self.register_buffer('offset', torch.arange(3.0)[:, None])\n"
        "    def forward(self, x):\n        return self.layers(x) + self.offset\n"
        "def get_inputs():\n    return [torch.randn(3, 4)]\ndef get_init_inputs():\n    return [4]\n"
    )
    built = build_source(source)
    reference, candidate, _ = built.models({})
    assert list(candidate.state_dict()) == list(reference.state_dict())
    assert built.generated.source.count("def forward") == 1
    built.check()


def test_parameters_of_numbered_modules_are_found_as_a_captured_problem_finds_them(build_source):
    source = (
        f"{PRELUDE}class Group(nn.Module):\n    def __getitem__(self, name):\n        return getattr(self, str(name))\n"
        "class Model(Group):\n    def __init__(self):\n        super().__init__()\n"
        "        self.add_module('1', Group())\n"
        "        self[1].register_parameter('weight', nn.Parameter(torch.ones(6)))\n"
        "        self[1].register_parameter('2', nn.Parameter(torch.zeros(6)))\n"
        "    def forward(self, x):\n        return F.layer_norm(F.gelu(x), [6], self[1].weight, self[1][2])\n"
        "def get_inputs():\n    return [torch.randn(5, 6)]\ndef get_init_inputs():\n    return []\n"
    )
    built = build_source(source)
    reference, candidate, _ = built.models({})
    assert list(candidate.state_dict()) == list(reference.state_dict()) == ["1.weight", "1.2"]
    assert "layer_norm" not in "".join(row["name"] for row in built.generated.report if row["kind"] == "torch")
    built.check()


def test_the_trusted_face_imports_no_torch():
    code = (
        "import sys, kernelwright.codegen as c; assert 'torch' not in sys.modules;"
        "assert c.__all__ == sorted(c.__all__, key=lambda n: (not n.isupper(), n))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_generate_reads_plain_data_only(tmp_path):
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(capture(SOFTMAX, variant={"ROWS": 4, "COLS": 6})))
    code = (
        "import sys; from kernelwright.codegen import *; g = Graph.from_json(open(sys.argv[1]).read());"
        "generate(g); schedule_space(g); cost(g); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(graph)], check=True, timeout=240)


def test_unsupported_operators_stay_in_torch(build):
    built = build("return torch.fft.rfft(x).abs() * 2, torch.sort(x * 2, -1)[0] + 1", "torch.randn(4, 8)")
    kept = [r for r in built.generated.report if r["kind"] == "torch"]
    assert {"fft_rfft", "sort"} <= {r["ops"][0] for r in kept}
    assert all(r["why"] for r in kept)
    built.check()


def test_a_bias_alone_is_left_to_the_library(build):
    built = build("return F.linear(x, self.w, self.b)", "torch.randn(5, 6)", schedule={"gemm": "library"},
                  init="self.w = nn.Parameter(torch.randn(7, 6))\nself.b = nn.Parameter(torch.randn(7))")  # fmt: skip
    assert "F.linear(x, w, b)" in built.generated.source
    assert built.generated.report[-1]["why"] == "nothing here to fuse"
    built.check()
    assert generate(built.graph).report[0]["kind"] == "own_matmul"
