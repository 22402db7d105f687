"""Seeds of TorchInductor's Triton kernels: generated without a GPU, right in the interpreter, compiled for one."""

from __future__ import annotations

import ast
import copy
import json
import re
import subprocess
import sys

import pytest
import torch
from conftest import problem
from test_codegen_triton import assert_compiled, compile_kernels, run
from torch.utils._triton import has_triton

from kernelwright.codegen import CodegenError, Graph, triton_seed
from kernelwright.codegen._capture import capture_entry
from kernelwright.codegen._inductor_triton import inductor_triton_entry
from kernelwright.evaluator.screen.screening import screen

WEIGHTS = "self.w = nn.Parameter(torch.randn(N))\nself.b = nn.Parameter(torch.randn(N))"
ROWS = [{"M": 4096, "N": 1024}, {"M": 3, "N": 37}]  # the first one is compiled, the others are run
LONG = [{"M": 64, "N": 200_000}, {"M": 2, "N": 2500}]
IMAGES = [{"M": 32, "N": 64, "S": 56}, {"M": 2, "N": 8, "S": 9}]
MATRIX, IMAGE = "torch.randn(M, N)", "torch.randn(M, N, S, S)"
CASES = {
    "softmax": ("return x.softmax(-1)", MATRIX, "", ROWS),
    "layer_norm_gelu": ("return F.gelu(F.layer_norm(x, (N,), self.w, self.b))", MATRIX, WEIGHTS, ROWS),
    "rms_norm_silu": (
        "return F.silu(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w)", MATRIX, WEIGHTS, ROWS
    ),
    "long_logsumexp": ("return torch.logsumexp(x, -1)", MATRIX, "", LONG),
    "linear_gelu_softmax": (
        "return F.gelu(self.linear(x)).softmax(-1)", MATRIX, "self.linear = nn.Linear(N, 48)", ROWS
    ),
    "batch_norm": ("return self.norm(x).relu()", IMAGE, "self.norm = nn.BatchNorm2d(N)", IMAGES),
    "cross_entropy": ("# x y\nreturn F.cross_entropy(x, y)", f"{MATRIX}, torch.randint(N, (M,))", "", ROWS),
    "convolution": ("return self.conv(x).sigmoid()", IMAGE, "self.conv = nn.Conv2d(N, 8, 3)", IMAGES),
    "group_norm": (  # Welford's sums, which loop
        "return F.group_norm(x, 2)", IMAGE, "", [{"M": 8, "N": 64, "S": 64}, {"M": 1, "N": 4, "S": 34}]
    ),
    "long_extremes": (
        "return x.argmax(-1), x.amin(-1), (x > 4).any(-1), x.amax(0)",
        MATRIX, "", [{"M": 4096, "N": 20_000}, {"M": 1, "N": 2100}],
    ),
    "cumsum": ("return x.cumsum(-1)", MATRIX, "", ROWS),
    "integers": (
        "# i\nreturn i // 7, i % 5, (i % 3).max(-1).values, i.min(-1).indices", "torch.randint(-99, 99, (M, N))",
        "", ROWS,
    ),
    "sorted places": (
        "# x b\nreturn torch.bucketize(x, b), torch.searchsorted(b, x, right=True)",
        "torch.randn(M, N).round(), torch.randn(N).round().sort().values", "", ROWS,
    ),
    "library calls": (  # which are no products, some under names of their own
        "# x i\nz = torch.zeros(M, 7, dtype=x.dtype).to(x.device)\n"
        "return F.adaptive_avg_pool2d(x[:, None, None], (1, 5)) * 2, z.scatter_add(1, i, x.exp()), i * 2",
        f"{MATRIX}, torch.randint(7, (M, N))", "", ROWS,
    ),
    "transposed": ("return (x + x.T, [x.T * 2][0])", "torch.randn(N, N)", "", [{"N": 2048}, {"N": 33}]),
}  # fmt: skip
SHARED = ("softmax", "layer_norm_gelu", "rms_norm_silu", "batch_norm")  # where one kernel does for several shapes


def built(name):
    """A case as problem, captured graph and TorchInductor's reply, which has come as JSON."""
    forward, inputs, init, variants = CASES[name]
    constants = "\n".join(f"{key} = {value}" for key, value in variants[1].items())
    source = problem(forward, inputs, init=init, init_inputs="N", constants=constants)
    graph = capture_entry({"source": source, "variant": variants[1], "variants": variants[1:]})
    reply = inductor_triton_entry({"source": source, "variant": variants[0], "variants": variants})
    assert reply["ok"], reply
    return source, Graph.from_json(graph), json.loads(json.dumps(reply))


@pytest.fixture(scope="module", autouse=True)
def asked_anew():
    """torch remembers whether Triton works, and what other tests of this process were told counts for no device."""
    has_triton.cache_clear()
    yield
    has_triton.cache_clear()


class Seeds(dict):
    """Problem and seed of a case by its name, made when they are asked for first."""

    def __missing__(self, name):
        source, graph, reply = built(name)
        self[name] = source, triton_seed(graph, reply)
        return self[name]


@pytest.fixture(scope="module")
def seeds(taken):
    made = Seeds()
    for name in CASES:
        if name in taken("name"):
            made[name]
    return made


@pytest.fixture(scope="module")
def results(seeds):
    given = {
        name: {"problem": source, "source": seed.source, "variants": CASES[name][3][1:]}
        for name, (source, seed) in seeds.items()
    }
    return run("codegen_triton_seeds.py", text=json.dumps(given))


@pytest.fixture(scope="module")
def compiled(seeds):
    return compile_kernels({name: (seed.source, source, CASES[name][3][0]) for name, (source, seed) in seeds.items()})


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_seed_is_right_in_the_interpreter(results, name):
    assert results[name] == "ok", results[name]


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_seed_compiles_for_a_gpu(compiled, name):
    assert_compiled(compiled[name])


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_seed_is_a_plain_file(seeds, name):
    source = seeds[name][1].source
    assert not re.search(r"_inductor|triton_helpers|heuristics|extern_kernels", source)
    assert screen(source, "triton").status is None
    values = {s.targets[0].id: ast.literal_eval(s.value) for s in ast.parse(source).body if isinstance(s, ast.Assign)}
    values.pop("N", None)  # a constant of the problem
    knobs = values.pop("KNOBS")
    assert knobs.keys() == values.keys() == seeds[name][1].knobs.keys()
    assert all(values[knob] == choices[0] for knob, choices in knobs.items())


@pytest.mark.parametrize("name", SHARED)
def test_shapes_share_a_kernel(seeds, name):
    """What is checked in a small shape is the kernel that is timed in a large one."""
    kernels = re.findall(r"^def (\w+_kernel\w*)\(", seeds[name][1].source, flags=re.MULTILINE)
    first, second = re.findall(r"def _shapes_[01]\(.*?(?=\n    def |\Z)", seeds[name][1].source, flags=re.DOTALL)
    used = {kernel for kernel in kernels if f"{kernel}[" in first}
    assert used
    assert used <= {kernel for kernel in kernels if f"{kernel}[" in second}


def test_products_stay_calls_into_torch(seeds):
    assert "torch.addmm(self.linear.bias, " in seeds["linear_gelu_softmax"][1].source
    assert "out=buf0" in seeds["linear_gelu_softmax"][1].source


def test_this_machine_has_no_more_devices_than_before():
    before = torch.cuda.is_available(), torch.version.cuda
    built("softmax")
    assert (torch.cuda.is_available(), torch.version.cuda) == before


def test_max_pooling_is_lowered_in_a_new_process():
    asked = {"source": problem("return F.max_pool2d(x, 2) + 1", "torch.randn(1, 2, 8, 8)"), "variant": {}}
    entry = "import sys, json; from kernelwright.codegen._inductor_triton import inductor_triton_entry as entry; "
    call = [sys.executable, "-c", entry + "print(entry(json.loads(sys.argv[1])))", json.dumps(asked)]
    assert subprocess.run(call, capture_output=True, text=True, check=True).stdout.startswith("{'ok': True")


# -------------------------------------------------------------------------------------------------------- what has none


def test_faults_have_reasons():
    assert "nothing_like_this" in inductor_triton_entry({"source": "import nothing_like_this", "variant": {}})["reason"]
    reply = inductor_triton_entry({"source": problem("return x.item() + 1", "torch.randn(1)"), "variant": {}})
    assert reply["ok"] is False
    assert "\n" not in reply["reason"]
    assert inductor_triton_entry({})["ok"] is False


@pytest.fixture(scope="module")
def softmax():
    return built("softmax")


def test_a_refusal_is_passed_on(softmax):
    with pytest.raises(CodegenError, match="the compiler is out"):
        triton_seed(softmax[1], {"ok": False, "reason": "the compiler is out"})


def test_products_alone_give_no_seed():
    source = problem("return x @ x.T", "torch.randn(8, 8)")
    graph = Graph.from_json(capture_entry({"source": source, "variant": {}}))
    reply = inductor_triton_entry({"source": source, "variant": {}})
    assert reply["ok"], reply
    with pytest.raises(CodegenError, match="libraries do all"):
        triton_seed(graph, reply)


HOSTILE = {
    "import": ("xoffset = tl.program_id(0)", "import os; xoffset = tl.program_id(0)", "Import"),
    "name": ("tl.load(in_ptr0", "open(in_ptr0", "uses open"),
    "dunder": ("tl.load(in_ptr0", "tl.__class__(in_ptr0", "uses __class__"),
    "helper": ("libdevice.exp", "triton_helpers.frexp", "no stand-in for frexp"),
    "lambda": ("libdevice.exp(", "(lambda x: x)(", "Lambda"),
    "heuristics": ("triton_heuristics.persistent_reduction", "triton_heuristics.template", "other heuristics"),
    "grid": ("tl.program_id(0)", "tl.program_id(2)", "launched in another way"),
    "argument": (".run(x, ", ".run(x, x, ", "launched in another way"),
    "call": ("empty_strided_cuda(", "os.system(", "a call of os.system"),
    "size": ("empty_strided_cuda((", "empty_strided_cuda((x, ", "malformed"),
    "statement": ("args.clear()", "while True: pass", "unknown form"),
    "inputs": ("x, = args", "x, y, = args", "other inputs"),
    "returns": ("return (buf", "return (x, buf", "more or less"),
    "kernel": ("async_compile.triton('triton", "async_compile.triton('other", "not one function"),
    "syntax": ("class Runner", "class class", "malformed"),
    "depth": ("args.clear()", f"args.clear({'-' * 100_000}1)", "malformed"),
    "zero": ("class Runner", "\0class Runner", "malformed"),
    "length": ("class Runner", " " * (1 << 21), "too long"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_wrappers_are_refused(softmax, name):
    old, new, reason = HOSTILE[name]
    _, graph, reply = softmax
    reply = copy.deepcopy(reply)
    assert old in reply["variants"][0]["wrapper"]
    reply["variants"][0]["wrapper"] = reply["variants"][0]["wrapper"].replace(old, new)
    with pytest.raises(CodegenError, match=re.escape(reason)):
        triton_seed(graph, reply)


MALFORMED = [
    {"ok": True}, {"ok": True, "variants": 3}, {"ok": True, "variants": [{}]}, {"ok": True, "variants": []},
    {"ok": True, "variants": [{"wrapper": 1, "inputs": []}]},
    {"ok": True, "variants": [{"wrapper": "", "inputs": [{}]}]},
    {"ok": True, "variants": [None]}, {"ok": 1, "variants": [{"wrapper": "x = 1", "inputs": [{"kind": []}]}]},
]  # fmt: skip


@pytest.mark.parametrize("reply", MALFORMED, ids=str)
def test_malformed_replies_are_refused(softmax, reply):
    with pytest.raises(CodegenError):
        triton_seed(softmax[1], reply)


@pytest.mark.parametrize("change", [{"target": "nothing"}, {"target": 7}, {"shape": "x"}, {"name": []}, {"kind": "?"}])
def test_malformed_inputs_are_refused(softmax, change):
    _, graph, reply = softmax
    reply = copy.deepcopy(reply)
    reply["variants"][0]["inputs"][0] |= change
    with pytest.raises(CodegenError):
        triton_seed(graph, reply)
