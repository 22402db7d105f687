"""Calling C++ through ``cpp``: conversions, checks against the declaration, errors that name the argument."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernelwright.inline as inline
from kernelwright.inline import ArgumentError, cpp

SOURCE = r"""
#include <cstdint>
#include <cstddef>
#include <cmath>
#define EXPORTED(name) extern "C" int64_t name
extern "C" {
void scale(const float* x, float* y, int64_t n, float factor) {
  #pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}
double numbers(double a, int b, std::size_t c, bool d, float e) {
  return a + 10 * b + 100 * double(c) + (d ? 1000 : 0) + e;
}
int64_t is_null(const void* p) { return p == nullptr; }
float half_of(float x) { return x / 2; }
int sum_int(const int32_t* x, int n) { int s = 0; for (int i = 0; i < n; i++) s += x[i]; return s; }
int64_t bits(const uint16_t* x) { return x[0]; }
int64_t flags(const bool* x, const uint8_t* y, const double* z, const int64_t* w) {
  return x[0] + y[0] + int(z[0]) + w[0];
}
void by_value(struct Pair* ok, long double bad) {}
}
EXPORTED(hidden)(const float* x, int64_t n) { return int64_t(x[0]) + n; }
"""


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("module-cache")))
        return cpp(SOURCE)


def test_a_kernel_computes(lib):
    x = torch.arange(37, dtype=torch.float32)
    y = torch.empty_like(x)
    assert lib.scale(x, y, x.numel(), 2.5) is None
    assert torch.equal(y, x * 2.5)
    lib.scale(torch.nn.Parameter(x), y, x.numel(), 2)
    assert torch.equal(y, x * 2)


def test_numbers_arrive_by_the_declared_type(lib):
    assert lib.numbers(0.5, 2, 3, True, 0.25) == 1320.75
    assert lib.numbers(1, -2, 3, 0, 1) == 282.0
    assert lib.half_of(3) == 1.5
    assert lib.numbers(ctypes.c_double(0.5), ctypes.c_int(1), 0, False, 0.0) == 10.5


def test_tensors_of_every_common_dtype(lib):
    assert lib.sum_int(torch.tensor([1, 2, 3], dtype=torch.int32), 3) == 6
    assert lib.bits(torch.tensor([1.0], dtype=torch.bfloat16)) == 0x3F80
    assert lib.bits(torch.tensor([1.0], dtype=torch.float16)) == 0x3C00
    ones = [torch.ones(1, dtype=d) for d in (torch.bool, torch.uint8, torch.float64, torch.int64)]
    assert lib.flags(*ones) == 4


def test_null_addresses_and_ctypes_values_pass(lib):
    x = torch.ones(1)
    assert lib.is_null(None) == 1
    assert lib.is_null(x) == 0
    assert lib.is_null(x.data_ptr()) == 0
    assert lib.is_null(ctypes.c_void_p(x.data_ptr())) == 0
    assert lib.is_null((ctypes.c_float * 2)()) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({0: torch.zeros(4, dtype=torch.float64)}, ["'x'", "float*", "torch.float64"]),
        ({1: torch.zeros(4, 2)[:, 0]}, ["'y'", "not contiguous", ".contiguous()"]),
        ({0: torch.zeros(4, device="meta")}, ["'x'", "cpu", "meta"]),
        ({0: [1.0, 2.0]}, ["'x'", "pointer", "list"]),
        ({2: 4.0}, ["'n'", "int64", "float"]),
        ({2: torch.tensor(4)}, ["'n'", "tensor", ".item()"]),
        ({2: 2**63}, ["'n'", str(2**63)]),
        ({2: None}, ["'n'", "NoneType"]),
        ({3: "fast"}, ["'factor'", "str"]),
    ],
)
def test_a_wrong_argument_is_named(lib, change, words):
    values = [torch.zeros(4), torch.zeros(4), 4, 1.0]
    for position, value in change.items():
        values[position] = value
    with pytest.raises(ArgumentError) as error:
        lib.scale(*values)
    assert all(word in str(error.value) for word in ["scale()", *words])


def test_small_integers_never_wrap(lib):
    with pytest.raises(ArgumentError, match="cannot hold 2147483648"):
        lib.sum_int(torch.zeros(1, dtype=torch.int32), 2**31)
    with pytest.raises(ArgumentError, match="'c'"):
        lib.numbers(0.0, 0, -1, False, 0.0)


def test_wrong_count_is_a_type_error_that_names_what_is_missing(lib):
    with pytest.raises(TypeError, match="'factor'"):
        lib.scale(torch.zeros(1), torch.zeros(1), 1)
    with pytest.raises(TypeError, match="positional"):
        lib.half_of(1.0, 2.0)


def test_a_missing_function_names_its_neighbours(lib):
    with pytest.raises(AttributeError, match="did you mean scale"):
        lib.scales
    with pytest.raises(AttributeError, match='extern "C"'):
        cpp("int f() { return 1; }").f


def test_types_that_cannot_be_passed_are_refused_before_any_call(lib):
    with pytest.raises(ArgumentError, match="long double"):
        lib.by_value


def test_a_function_declared_by_a_macro_takes_the_default_conversions(lib):
    assert lib.hidden(torch.tensor([3.0]), 4) is None
    with pytest.raises(ArgumentError, match="contiguous"):
        lib.hidden(torch.zeros(4, 2)[:, 0], 4)


def test_a_function_named_as_one_of_the_c_library_is_the_kernels_own():
    source = """
    extern "C" {
    __attribute__((noinline)) double gamma(double x) { return x * 3; }
    void apply(const double* x, double* y) { y[0] = gamma(x[0]); }
    }
    """
    x, y = torch.tensor([2.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    cpp(source).apply(x, y)
    assert y.item() == 6.0


def test_defines_reach_source_and_signature():
    source = '#include <cstdint>\nextern "C" T get(const T* x) { return x[0] * FACTOR + ON; }'
    made = cpp(source, defines={"T": "double", "FACTOR": 2, "ON": True})
    assert made.get(torch.tensor([1.5], dtype=torch.float64)) == 4.0
    assert cpp(source, defines={"T": "float", "FACTOR": 0.5, "ON": False}).get(torch.tensor([3.0])) == 1.5


def test_fast_math_leaves_the_callers_denormals_alone():
    made = cpp('extern "C" float half_of(float x) { return x / 2; }', flags=["-ffast-math", "-lm"])
    assert made.half_of(1.0) == 0.5
    smallest_normal = torch.tensor([1.1754943508222875e-38])
    assert float(smallest_normal / 2) != 0.0


def test_the_room_has_a_sorted_face_and_imports_neither_torch_nor_pydantic():
    assert inline.__all__ == sorted(inline.__all__)
    assert all(hasattr(inline, name) for name in inline.__all__)
    check = "import sys, kernelwright.inline; print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
