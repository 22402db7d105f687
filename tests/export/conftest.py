"""Hand-written problems and candidates, and what comes out when they are exported."""

from __future__ import annotations

import datetime

import pytest

from kernelwright.export import export_module
from kernelwright.records import Candidate, Problem, ProblemMeta

SOFTMAX = '''"""Softmax over the last dimension."""

import torch
from torch import nn

ROWS, COLUMNS = 16, 100


class Model(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
'''
SOFTMAX_KERNEL = """from __future__ import annotations

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r'''
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    const float* in = x + r * columns;
    float* out = y + r * columns;
    float top = in[0], total = 0;
    for (int64_t c = 1; c < columns; c++) top = std::fmax(top, in[c]);
    for (int64_t c = 0; c < columns; c++) total += out[c] = std::exp(in[c] - top);
    for (int64_t c = 0; c < columns; c++) out[c] /= total;
  }
}
'''
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        assert dim == -1

    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
"""

LINEAR = '''"""Linear layer, then GELU, with a mask."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH, OUT = 8, 12, 20


class Model(nn.Module):
    def __init__(self, width, out, scale=1.0):
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.register_buffer("mask", (torch.arange(out) % 3 > 0).float())
        self.scale = scale

    def forward(self, x, residual=None):
        y = F.gelu(self.linear(x)) * self.mask * self.scale
        return y if residual is None else y + residual


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH, OUT]
'''
LINEAR_KERNEL = '''import math
import torch
from torch import nn
import kernelwright.inline as inline

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" void gelu_mask(float* y, const float* bias, const float* mask, int64_t rows, int64_t n, float scale) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < n; c++) {
      float v = y[r * n + c] + bias[c];
      y[r * n + c] = 0.5f * v * (1 + std::erf(v * 0.70710678f)) * mask[c] * scale;
    }
}
"""
lib = inline.cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, width, out, scale=1.0):
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.register_buffer("mask", torch.zeros(out))
        self.scale = scale

    def forward(self, x, residual=None):
        assert residual is None
        y = torch.mm(x, self.linear.weight.t())
        lib.gelu_mask(y, self.linear.bias, self.mask, y.shape[0], y.shape[1], self.scale)
        return y
'''

NORM = '''"""Layer norm."""

import torch
from torch import nn

ROWS, WIDTH = 6, 33


class Model(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
'''
NORM_KERNEL = '''import torch
from torch import nn
from kernelwright.inline import cpp as build, cuda

KNOBS = {"LANES": [1, 4], "FAST": [False, True]}
LANES = 1
SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" {
void norm(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t n, double eps) {
  for (int64_t r = 0; r < rows; r++) {
    double sum[LANES] = {}, mean = 0, squares = 0;
    for (int64_t c = 0; c < n; c++) sum[c % LANES] += x[r * n + c];
    for (int i = 0; i < LANES; i++) mean += sum[i] / n;
    for (int64_t c = 0; c < n; c++) squares += (x[r * n + c] - mean) * (x[r * n + c] - mean);
    double scale = 1 / std::sqrt(squares / n + eps);
    for (int64_t c = 0; c < n; c++) y[r * n + c] = (x[r * n + c] - mean) * scale * w[c] + b[c];
  }
}
int lanes() { return LANES; }
}
"""
lib = build(SOURCE, defines={"LANES": LANES}, flags=("-ffast-math",) if FAST else ())
STATE_MAP = {"norm.weight": "gain", "norm.bias": "shift"}


class ModelNew(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        lib.norm(x, self.gain, self.shift, y, x.shape[0], x.shape[1], self.eps)
        return y
'''

FOLDED = NORM.replace('"""Layer norm."""', '"""Layer norm whose weights are constants."""')
FOLDED_KERNEL = '''import torch
from torch import nn
from kernelwright.inline import cpp

lib = cpp("""extern "C" void axpb(const float* x, const float* w, float* y, long rows, long n) {
  for (long r = 0; r < rows; r++) for (long c = 0; c < n; c++) y[r * n + c] = x[r * n + c] * w[c] + w[n + c];
}""")


class ModelNew(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)
        self.packed = None

    def forward(self, x):
        if self.packed is None:
            self.packed = torch.cat([self.norm.weight, self.norm.bias]).detach()
        mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        y = ((x - mean) / torch.sqrt(var + self.norm.eps)).contiguous()
        lib.axpb(y, self.packed, y, y.shape[0], y.shape[1])
        return y
'''

EXTENSION_KERNEL = """import torch, torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import CUDA_HOME, load_inline as build

SOURCE = r'''
#include <pybind11/pybind11.h>
#include <cmath>
#include <cstdint>
#if !defined _OPENMP || !defined __OPTIMIZE__ || !defined __AVX__
#error the options of the judge are missing
#endif
static void softmax(int64_t from, int64_t to, int64_t rows, int64_t columns) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    const float* x = reinterpret_cast<const float*>(from) + r * columns;
    float* y = reinterpret_cast<float*>(to) + r * columns;
    float total = 0;
    for (int64_t c = 0; c < columns; c++) total += y[c] = std::exp(x[c]);
    for (int64_t c = 0; c < columns; c++) y[c] /= total;
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("softmax", &softmax); }
'''
first = build("kernelwright_test_first", SOURCE, extra_cflags=["-ffp-contract=off"], no_implicit_headers=True)
second = torch.utils.cpp_extension.load_inline(
    name="kernelwright_test_second", cpp_sources=[SOURCE], no_implicit_headers=True
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        (first if len(x) > 3 else second).softmax(x.data_ptr(), y.data_ptr(), len(x), x.shape[1])
        return y
"""

SEQUENCE = '''"""A transposed input, and an output for each of two inputs."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, ys, k):
        return x * 2, ys * k


def get_inputs():
    data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert data.sum().item() == 10  # cannot be run without memory
    return [data.t(), torch.ones(3, dtype=torch.int64), 3]


def get_init_inputs():
    return []
'''
SEQUENCE_KERNEL = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, ys, k):
        return x + x, ys * 3
"""
TODAY = datetime.date(2031, 5, 17)


def problem(name, source, **meta):
    return Problem(id=f"file/{name}", suite="file", level=1, name=name, source=source, meta=ProblemMeta(**meta))


def candidate(name, source, **more):
    return Candidate(problem_id=f"file/{name}", source=source, **{"backend": "cpp", **more})


@pytest.fixture(scope="session")
def exported_files(tmp_path_factory):
    """A folder with one exported file per hand-written candidate."""
    folder = tmp_path_factory.mktemp("exported")
    softmax_variants = {"cpu": ({"ROWS": 16, "COLUMNS": 100}, {"ROWS": 3, "COLUMNS": 7})}
    exports = {
        "softmax": export_module(
            problem("01_softmax", SOFTMAX, variants=softmax_variants), candidate("01_softmax", SOFTMAX_KERNEL)
        ),
        "linear": export_module(problem("linear_gelu", LINEAR), candidate("linear_gelu", LINEAR_KERNEL)),
        "norm": export_module(
            problem("layer norm", NORM), candidate("layer norm", NORM_KERNEL, knobs={"LANES": 4, "FAST": True})
        ),
        "folded": export_module(
            problem("folded", FOLDED, weights="constants"), candidate("folded", FOLDED_KERNEL), today=TODAY
        ),
        "triton": export_module(
            problem("triton_softmax", SOFTMAX, variants={"interpreter": ({"ROWS": 4, "COLUMNS": 8},)}),
            candidate("triton_softmax", "import triton\nraise RuntimeError('no device')\n", backend="triton"),
        ),
        "extension": export_module(
            problem("softmax_extension", SOFTMAX, variants=softmax_variants),
            candidate("softmax_extension", EXTENSION_KERNEL),
        ),
        "sequence": export_module(problem("sequence", SEQUENCE), candidate("sequence", SEQUENCE_KERNEL)),
    }
    for name, text in exports.items():
        (folder / f"exported_{name}.py").write_text(text)
    return folder
