"""The vector-friendly math functions against float64, in units of the last place."""

from __future__ import annotations

import math
import platform
import re
import subprocess

import numpy as np
import pytest
import torch

from kernelwright.codegen._math import math_library
from kernelwright.inline import cpp


def sigmoid(x):
    return np.where(x < 0, np.exp(-np.abs(x)), 1.0) / (1.0 + np.exp(-np.abs(x)))


def softplus(x):
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


NORMAL = 2.0**-126
FUNCTIONS = {  # name: exact function, allowed error in units of the last place, smallest result that has to be right
    "kw_exp": (np.exp, 1.5, 0.0),
    "kw_exp2": (np.exp2, 1.5, 0.0),
    "kw_expm1": (np.expm1, 2.0, 0.0),
    "kw_log": (np.log, 1.0, 0.0),
    "kw_log2": (np.log2, 2.0, 0.0),
    "kw_log1p": (np.log1p, 1.5, 0.0),
    "kw_tanh": (np.tanh, 2.0, 0.0),
    "kw_erf": (lambda x: torch.erf(torch.from_numpy(x)).numpy(), 2.5, 0.0),
    "kw_sigmoid": (sigmoid, 2.5, NORMAL),
    "kw_softplus": (softplus, 3.0, 0.0),
    "kw_mish": (lambda x: x * np.tanh(softplus(x)), 4.0, NORMAL),
}
EXPONENTS = (0.75, -0.75, 1.5, 1.0 / 3.0, 3.0, -2.0, 7.0, 40.0)
FLAGS = ("-fno-math-errno", "-fno-trapping-math")
LOOP = """extern "C" void run_{name}(const float* __restrict x, float* __restrict y, int64_t n) {{
    #pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = {value};
}}
"""


def loops():
    """One function for each: C++ that applies it to n numbers."""
    calls = {name: f"{name}(x[i])" for name in (*FUNCTIONS, "kw_gelu")}
    calls |= {f"pow{place}": f"kw_pow(x[i], {y!r}f)" for place, y in enumerate(EXPONENTS)}
    return {name: LOOP.format(name=name, value=value) for name, value in calls.items()}


def text_of(code):
    return f"#include <cmath>\n#include <cstdint>\n{math_library(code)}{code}"


def every_float():
    """Numbers of all exponents and both signs, subnormal ones as well, and many where the functions bend."""
    generator = np.random.default_rng(0)
    bits = np.arange(255, dtype=np.uint32)[:, None] << 23 | generator.integers(0, 1 << 23, (255, 400), dtype=np.uint32)
    found = bits.ravel().view(np.float32)
    dense = np.concatenate([np.linspace(-110, 110, 100_001), np.linspace(-2, 2, 40_001)])
    return np.concatenate([found, -found, dense.astype(np.float32)])


@pytest.fixture(scope="module")
def library():
    return cpp(text_of("".join(loops().values())), flags=FLAGS)


def run(library, name, values):
    x = torch.from_numpy(np.asarray(values, dtype=np.float32))
    y = torch.empty_like(x)
    getattr(library, f"run_{name}")(x, y, x.numel())
    return x.numpy().astype(np.float64), y.numpy().astype(np.float64)


@np.errstate(all="ignore")
def assert_accurate(y, true, allowed, smallest=0.0):
    rounded = true.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(rounded))
    infinite = np.isinf(y) | np.isinf(rounded)
    np.testing.assert_array_equal(y[infinite], rounded[infinite])
    finite = np.isfinite(rounded)
    ulp = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert np.max(np.abs(y - true)[finite] / np.maximum(ulp, smallest)) <= allowed


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_over_all_exponents(library, name):
    exact, allowed, smallest = FUNCTIONS[name]
    x, y = run(library, name, every_float())
    with np.errstate(all="ignore"):
        assert_accurate(y, exact(x), allowed, smallest)


@pytest.mark.parametrize("place", range(len(EXPONENTS)))
def test_powers_are_accurate_over_all_exponents(library, place):
    x, y = run(library, f"pow{place}", every_float())
    with np.errstate(all="ignore"):
        assert_accurate(y, np.power(x, np.float64(np.float32(EXPONENTS[place]))), 1.0)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the report of g++ for x86-64")
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_each_function_is_vectorised(tmp_path, target):
    for name, code in loops().items():
        path = tmp_path / f"{name}.cpp"
        path.write_text(text_of(code))
        command = ["g++", "-std=c++17", "-O3", f"-march={target}", "-fopenmp", *FLAGS, "-fopt-info-vec-optimized"]
        done = subprocess.run(
            [*command, "-c", str(path), "-o", str(path.with_suffix(".o"))], check=True, capture_output=True, text=True
        )
        assert "loop vectorized" in done.stderr, name


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
        "kw_expm1": {nan: nan, -inf: -1.0, inf: inf, 0.0: 0.0},
        "kw_exp2": {nan: nan, -inf: 0.0, inf: inf, 3.0: 8.0, -149.0: 2.0**-149},
        "kw_log2": {nan: nan, 0.0: -inf, inf: inf, 8.0: 3.0, 2.0**-149: -149.0},
        "pow0": {nan: nan, inf: inf, -inf: inf, 0.0: 0.0, -1.0: nan},
        "pow4": {nan: nan, inf: inf, -inf: -inf, -2.0: -8.0},
        "kw_gelu": {nan: nan, 0.0: 0.0, 1e30: 1e30, -1e30: 0.0},
    }
    for name, table in expected.items():
        _, y = run(library, name, list(table))
        np.testing.assert_allclose(y, list(table.values()), rtol=1e-6, err_msg=name)


def test_library_holds_what_is_called_and_no_more():
    text = math_library("y = kw_mish(x);")
    assert set(re.findall(r"static inline float (kw_\w+)", text)) == {
        "kw_mish",
        "kw_exp",
        "kw_expm1_part",
        "kw_float",
    }
