"""One file for several shapes: who serves which, and what the file does where kernelwright cannot be imported."""

from __future__ import annotations

import ast
import datetime
import os
import re
import subprocess
import sys

import pytest

from kernelwright.errors import UsageError
from kernelwright.export import Measured, assign_routes, export_dispatch
from kernelwright.records import (
    Candidate,
    Environment,
    Interval,
    Problem,
    ProblemMeta,
    Speedup,
    Stage,
    Status,
    Timing,
    Verdict,
)
from kernelwright.records.verdicts import TimedVariant

LINEAR = '''"""A linear layer without bias, twice as large."""

import torch
from torch import nn

ROWS, WIDTH, DTYPE = 8, 12, "float32"


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return (x * self.weight) * 2


def get_inputs():
    return [torch.randn(ROWS, WIDTH).to(getattr(torch, DTYPE))]


def get_init_inputs():
    return [WIDTH]
'''


def kernel(name: str, ctype: str = "float") -> str:
    return f"""import torch
from torch import nn
from kernelwright.inline import cpp

lib = cpp(r'''
#include <cstdint>
extern "C" void {name}(const {ctype}* x, const float* w, {ctype}* y, int64_t rows, int64_t n) {{
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < n; c++) y[r * n + c] = x[r * n + c] * w[c] * 2;
}}
''')
calls = []


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        calls.append(tuple(x.shape))
        y = torch.empty_like(x)
        lib.{name}(x, self.weight, y, x.shape[0], x.shape[1])
        return y
"""


VARIANTS = (
    {"ROWS": 8, "WIDTH": 12, "DTYPE": "float32"},
    {"ROWS": 3, "WIDTH": 5, "DTYPE": "float32"},
    {"ROWS": 6, "WIDTH": 12, "DTYPE": "float32"},
    {"ROWS": 1, "WIDTH": 2, "DTYPE": "float32"},
    {"ROWS": 8, "WIDTH": 12, "DTYPE": "float64"},
)
PROBLEM = Problem(
    id="file/linear",
    suite="file",
    level=1,
    name="linear",
    source=LINEAR,
    meta=ProblemMeta(variants={"cpu": VARIANTS, "interpreter": VARIANTS[:2], "gpu": VARIANTS[1:2]}),
)
ENVIRONMENT = Environment(
    device="cpu",
    device_class="cpu",
    cpu="some cpu",
    cores=2,
    os="linux",
    python="3",
    torch="2",
    compiler="g++",
    threads=1,
)
WIDE, NARROW, DOUBLE = (
    Candidate(problem_id=PROBLEM.id, source=kernel(*words), backend="cpp")
    for words in (("wide",), ("narrow",), ("doubled", "double"))
)


def measured(candidate, variant, low=None, high=None, *, confirmed=True, baseline="eager"):
    timing = None
    if low is not None:
        timing = Timing(
            latency_ms=Interval(median=1.0, low=0.9, high=1.1),
            processes=5,
            pairs=5,
            threads=1,
            confirmed=confirmed,
            noise_bound=0.01,
            speedup={baseline: Speedup(median=low + 0.01, low=low, high=high or low + 0.02, faster=low > 1.01)},
        )
    shape = VARIANTS[variant]
    words = f"x {shape['DTYPE']}[{shape['ROWS']}, {shape['WIDTH']}]"
    verdict = Verdict(
        candidate=candidate.sha256,
        problem=PROBLEM.at_variant(variant).id,
        backend=candidate.backend,
        stage=Stage.CHECKED if timing is None else Stage.CONFIRMED if confirmed else Stage.TIMED,
        status=Status.PASSED,
        timing=timing,
        environment=ENVIRONMENT.id,
        variant=TimedVariant(number=variant, constants=shape, inputs=(words,)),
    )
    return Measured(variant, candidate, verdict)


EVIDENCE = [
    measured(WIDE, 0, 1.5),
    measured(NARROW, 0, 1.2),
    measured(NARROW, 1, 1.8),
    measured(DOUBLE, 4, 1.4),
    measured(NARROW, 3, 0.5),
]


def served(routes):
    names = {WIDE.sha256: "wide", NARROW.sha256: "narrow", DOUBLE.sha256: "double"}
    return [names[route.kernel.sha256] if route.kernel else "reference" for route in routes]


def test_the_fastest_on_a_shape_or_on_the_nearest_serves_it():
    routes = assign_routes(PROBLEM, EVIDENCE, ENVIRONMENT, "eager")
    assert served(routes) == ["wide", "narrow", "wide", "reference", "double"]
    assert [bool(route.measured_on) for route in routes] == [False, False, True, False, False]
    assert routes[2].measured_on.startswith("x float32[8, 12] (variant 0: ROWS=8")
    assert routes[1].inputs == ("x float32[3, 5]",)
    assert routes[2].inputs == ()


def test_another_dtype_is_further_away_than_any_size():
    routes = assign_routes(PROBLEM, [measured(WIDE, 3, 1.3), measured(DOUBLE, 4, 1.4)], ENVIRONMENT, "eager")
    assert served(routes) == ["wide", "wide", "wide", "wide", "double"]


def test_a_confirmed_kernel_goes_before_one_that_is_not():
    evidence = [measured(WIDE, 0, 1.5, confirmed=False), measured(NARROW, 0, 1.2)]
    assert served(assign_routes(PROBLEM, evidence, ENVIRONMENT, "eager"))[0] == "narrow"


def test_what_was_timed_goes_before_what_was_only_checked():
    evidence = [measured(WIDE, 1), measured(NARROW, 0, 1.2)]
    assert served(assign_routes(PROBLEM, evidence, ENVIRONMENT, "eager")) == ["narrow"] * 5
    assert served(assign_routes(PROBLEM, [measured(WIDE, 1)], ENVIRONMENT, "eager")) == ["wide"] * 5


def test_kernels_of_a_gpu_serve_the_shapes_on_which_they_were_judged():
    gpu = ENVIRONMENT.model_copy(update={"device_class": "gpu"})
    on_gpu = WIDE.model_copy(update={"backend": "triton"})
    for environment, count in ((gpu, 1), (ENVIRONMENT, 2)):
        routes = assign_routes(PROBLEM, [measured(on_gpu, 0, 1.5)], environment, "eager")
        assert len(routes) == count
        assert 'device="cuda"' in export_dispatch(PROBLEM, routes, environment, "eager")


def test_nothing_is_written_where_every_kernel_is_slower():
    routes = assign_routes(PROBLEM, [measured(WIDE, 0, 0.5)], ENVIRONMENT, "eager")
    with pytest.raises(UsageError, match="slower than eager"):
        export_dispatch(PROBLEM, routes, ENVIRONMENT, "eager")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dispatch")
    routes = assign_routes(PROBLEM, EVIDENCE, ENVIRONMENT, "eager")
    today = datetime.date(2031, 5, 17)
    text = export_dispatch(PROBLEM.at_variant(3), routes, ENVIRONMENT, "eager", today=today)
    (folder / "exported.py").write_text(text)
    return folder


def test_the_header_says_who_serves_what(exported):
    text = (exported / "exported.py").read_text()
    header = re.sub(r"\s+", " ", ast.get_docstring(ast.parse(text)))
    wide, narrow, double = (one.sha256[:12] for one in (WIDE, NARROW, DOUBLE))
    for part in (
        "LinearKernels: 3 kernels for file/linear, chosen by the shape",
        f"(variant 0: ROWS=8,WIDTH=12,DTYPE=float32) kernel 1 ({wide}): 1.510x [1.500, 1.520], confirmed, measured",
        f"kernel 2 ({narrow}): 1.810x [1.800, 1.820], confirmed, measured here",
        "variant 2: ROWS=6,WIDTH=12,DTYPE=float32 kernel 1",
        "checked here and not timed; measured on the nearest shape, x float32[8, 12] (variant 0: ROWS=8,WIDTH=12",
        f"the reference: the best kernel, {narrow}, is slower: 0.510x [0.500, 0.520]",
        f"kernel 3 ({double}): 1.410x",
        "over eager (95% interval)",
        ENVIRONMENT.id,
        "2031-05-17",
    ):
        assert part in header, part
    assert max(map(len, text.partition("\nfrom __future__")[0].splitlines())) <= 120
    assert not re.search(r"(import|from) +kernelwright", text)


PROGRAM = """
import importlib.abc, pickle, copy, sys


class NoKernelwright(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "kernelwright":
            raise ImportError("an exported file must not need kernelwright")


sys.meta_path.insert(0, NoKernelwright())
sys.path.insert(0, sys.argv[1])
import exported as e
import torch

WIDE, NARROW, DOUBLE = sys.argv[2:]
torch.manual_seed(3)


def takes(model, label, *shape, dtype=torch.float32, why="checked"):
    x = torch.randn(*shape, dtype=dtype)
    active, reason = model.kernel_active(x)
    assert model.kernel_for(x) == label, (model.kernel_for(x), reason)
    assert active == bool(label) and why in reason, reason
    expected = model.dropin_reference.forward(model, x)
    torch.testing.assert_close(model(x), expected)
    return x


with torch.no_grad():
    model = e.Model(12).eval()
    for _ in range(2):  # back and forth, by shape and by dtype
        takes(model, WIDE, 8, 12)
        takes(model, WIDE, 6, 12)
        takes(model, DOUBLE, 8, 12, dtype=torch.float64)
    takes(model, "", 7, 12, why="input 0 has shape (7, 12) (checked: (8, 12); (6, 12); (8, 12))")
    takes(model, "", 6, 12, dtype=torch.float64, why="input 0 has shape (6, 12)")
    assert e.EXPORTS[0].kernel().calls[:2] == [(8, 12), (6, 12)]
    assert e.EXPORTS[2].kernel().calls[0] == (8, 12)
    model.weight.mul_(3)
    takes(model, WIDE, 8, 12)
    takes(model, DOUBLE, 8, 12, dtype=torch.float64)
    other = e.Model(5).eval()
    takes(other, NARROW, 3, 5)
    takes(other, "", 8, 5, why="shape (8, 5)")
    takes(e.Model(2).eval(), "", 1, 2, why="constructed with arguments")
    live = e.REFERENCE.Model(5).eval()
    shared = e.from_reference(live)
    assert shared.weight is live.weight
    takes(shared, NARROW, 3, 5)
    again = pickle.loads(pickle.dumps(model))
    takes(again, DOUBLE, 8, 12, dtype=torch.float64)
    takes(copy.deepcopy(model), WIDE, 6, 12)
    takes(e.Model(12).train(), "", 8, 12, why="training mode")
x = torch.randn(8, 12)
assert model.kernel_active(x) == (False, "gradients are wanted: use torch.no_grad() or torch.inference_mode()")
model(x).sum().backward()
assert model.weight.grad is not None
assert e.EXPORTS[0].kernel() is e.EXPORTS[0].kernel() is not e.EXPORTS[1].kernel()
print("done")
"""


def run(*arguments, folder):
    variables = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run([sys.executable, "-I", *arguments], capture_output=True, text=True, env=variables)


def test_the_file_chooses_by_shape_and_dtype_without_kernelwright(exported):
    labels = [one.sha256[:12] for one in (WIDE, NARROW, DOUBLE)]
    done = run("-c", PROGRAM, str(exported), *labels, folder=exported)
    assert done.stdout.strip() == "done", done.stderr[-3000:]


def test_the_file_compares_itself_in_every_shape_when_run(exported):
    done = run(str(exported / "exported.py"), folder=exported)
    assert done.stdout.count("active: True") == 4, done.stderr
    assert done.stdout.count("largest difference:") == 4


def test_without_a_compiler_the_reference_runs(exported, tmp_path):
    program = f"""
import sys, warnings
sys.path.insert(0, {str(exported)!r})
import exported as e, torch
warnings.simplefilter("ignore")
with torch.no_grad():
    model = e.Model(12).eval()
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(8, 12, dtype=dtype)
        assert torch.equal(model(x), e.REFERENCE.Model.forward(model, x))
        assert "apt install g++" in model.kernel_active(x)[1]
print("done")
"""
    variables = {**os.environ, "PATH": "/nonexistent", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, env=variables)
    assert done.stdout.strip() == "done", done.stderr
