"""The vector-friendly math functions against float64, in units of the last place."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from kernelwright.codegen._math import math_library
from kernelwright.inline import cpp

FUNCTIONS = {  # name: exact function, range, allowed error in units of the last place
    "kw_exp": (np.exp, (-86.0, 88.0), 2.0),
    "kw_log": (np.log, (1e-30, 1e30), 2.0),
    "kw_log1p": (np.log1p, (-0.9, 50.0), 3.0),
    "kw_expm1": (np.expm1, (-5.0, 5.0), 4.0),
    "kw_tanh": (np.tanh, (-9.0, 9.0), 3.0),
    "kw_erf": (np.vectorize(math.erf), (-4.0, 4.0), 3.0),
    "kw_sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-30.0, 30.0), 4.0),
    "kw_softplus": (lambda x: np.logaddexp(x, 0), (-15.0, 30.0), 4.0),
    "kw_mish": (lambda x: x * np.tanh(np.logaddexp(x, 0)), (-10.0, 30.0), 6.0),
}


@pytest.fixture(scope="module")
def library():
    wrappers = "".join(
        f'extern "C" void run_{name}(const float* x, float* y, int64_t n) {{\n#pragma omp simd\n'
        f"for (int64_t i = 0; i < n; ++i) y[i] = {name}(x[i]); }}\n"
        for name in (*FUNCTIONS, "kw_gelu")
    )
    return cpp(f"#include <cmath>\n#include <cstdint>\n{math_library(wrappers)}{wrappers}", flags=("-fno-math-errno",))


def run(library, name, values):
    x = torch.from_numpy(np.asarray(values, dtype=np.float32))
    y = torch.empty_like(x)
    getattr(library, f"run_{name}")(x, y, x.numel())
    return x.numpy().astype(np.float64), y.numpy().astype(np.float64)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(library, name):
    exact, (low, high), allowed = FUNCTIONS[name]
    near_zero = np.linspace(-1e-3 if low < 0 else 1e-3, 2e-3, 999)
    grid = np.concatenate([np.linspace(low, high, 40_001), near_zero, np.geomspace(1e-6, high, 999)])
    grid = grid[(grid >= low) & (grid <= high)]
    x, y = run(library, name, grid)
    true = exact(x)
    ulp = np.spacing(np.maximum(np.abs(true), 1e-37).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(y - true) / ulp) <= allowed


def test_gelu_is_accurate_relative_to_its_input(library):
    x, y = run(library, "kw_gelu", np.linspace(-12, 12, 60_001))
    true = x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2))
    assert np.max(np.abs(y - true) / np.maximum(np.abs(x), 1e-9)) < 2.5e-7


def test_special_values(library):
    inf, nan = math.inf, math.nan
    expected = {
        "kw_exp": {nan: nan, inf: inf, -inf: 0.0, 0.0: 1.0, 100.0: inf, -200.0: 0.0},
        "kw_log": {nan: nan, inf: inf, 0.0: -inf, -1.0: nan, 1.0: 0.0},
        "kw_tanh": {nan: nan, inf: 1.0, -inf: -1.0, 0.0: 0.0},
        "kw_erf": {nan: nan, inf: 1.0, -inf: -1.0, 0.0: 0.0},
        "kw_sigmoid": {nan: nan, inf: 1.0, -inf: 0.0, 0.0: 0.5},
        "kw_softplus": {nan: nan, inf: inf, -inf: 0.0},
        "kw_log1p": {nan: nan, -1.0: -inf, inf: inf, 0.0: 0.0},
        "kw_gelu": {nan: nan, 0.0: 0.0, 1e30: 1e30, -1e30: 0.0},
    }
    for name, table in expected.items():
        _, y = run(library, name, list(table))
        np.testing.assert_allclose(y, list(table.values()), rtol=1e-6, err_msg=name)


def test_library_holds_what_is_called_and_no_more():
    text = math_library("y = kw_mish(x);")
    assert set(re.findall(r"static inline float (kw_\w+)", text)) == {"kw_mish", "kw_exp", "kw_float"}
