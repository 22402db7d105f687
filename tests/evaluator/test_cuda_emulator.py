"""CUDA kernels on the CPU: every case of ``evaluator_cuda_cases.py``, run once in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.evaluator.builds.cuda_rewrite import TooComplexError, rewrite

SCRIPT = Path(__file__).with_name("evaluator_cuda_cases.py")
CASES = re.findall(r"^@case\ndef (\w+)\(", SCRIPT.read_text(), flags=re.M)


@pytest.fixture(scope="module")
def results(taken):
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *taken("name")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_cuda_case(results, name):
    assert results[name] == "ok", results[name]


def test_every_case_ran(results, taken):
    assert sorted(results) == sorted(taken("name"))


def plain(text):
    return " ".join(rewrite(text).split())


@pytest.mark.parametrize(
    ("launch", "callee", "configuration", "arguments"),
    [
        ("f<<<1, 2>>>(x)", "f", "1, 2", "x"),
        ("f<float, 4><<<g, dim3(b, 2), 3 * sizeof(float), s>>>(x, y[i])", "f<float, 4>", None, "x, y[i]"),
        ("ns::f<T><<<(n + 1) / 2, b>>>()", "ns::f<T>", "(n + 1) / 2, b", None),
        ("f<(A > B)><<<1, 2>>>(g(x, y))", "f<(A > B)>", "1, 2", "g(x, y)"),
        ("f <<< 1, 2 >>> (x)", "f", " 1, 2 ", "x"),
    ],
)
def test_a_launch_becomes_a_call(launch, callee, configuration, arguments):
    text = rewrite(f"void g() {{ {launch}; }}")
    assert "<<<" not in text
    assert f"{{ {callee}(kw_a...); }}{', ' + arguments if arguments else ''})" in text.replace(
        f"{callee} (", f"{callee}("
    )
    if configuration is not None:
        assert f"kw::Configuration({configuration})" in text


@pytest.mark.parametrize(
    "text",
    [
        '// f<<<1, 2>>>(x)\nchar* s = "f<<<1, 2>>>(x)"; /* f<<<1, 2>>>(x) */',
        'auto s = R"(f<<<1, 2>>>(x))";',
        "int a = b << 3, c = d >> 2; bool e = x < y;",
        "extern int shared; extern void f();",
    ],
)
def test_what_is_no_launch_stays(text):
    assert rewrite(text) == text


def test_launches_within_macros_are_rewritten():
    assert "kw::launch" in rewrite("#define GO(T) \\\n  f<T><<<1, 2>>>(x)\nint y;")


def test_dynamic_shared_memory_in_functions_and_outside():
    inside = plain("__global__ void f() { extern __shared__ __align__(16) float s[]; s[0] = 1; }")
    assert "float* const s = static_cast<float*>(kw_dynamic_shared());" in inside
    outside = "static unsigned char* const s = static_cast<unsigned char*>(kw_dynamic_shared());"
    assert outside in plain("extern __shared__ unsigned char s[];\nvoid f() {}")
    assert "static int* const s" in plain("namespace n { extern __shared__ int s[]; }")
    assert "static int* const s" in plain("struct alignas(16) A { int a; };\nextern __shared__ int s[];")


@pytest.mark.parametrize(
    "head",
    [
        "template <class T> __global__ void f()",
        "template <typename T, class U = int> struct V g(T t)",
        "namespace n { template <class T> void f() const",
        "struct A { void f()",
    ],
)
def test_dynamic_shared_memory_after_a_head_that_names_a_class(head):
    text = plain(f"{head} {{ extern __shared__ float s[]; }}")
    assert "{ float* const s = static_cast" in text


def test_the_address_of_dynamic_shared_memory_is_the_memory_itself():
    text = plain("void f() { extern __shared__ char s[]; g(&s, (int*)&s[4], a & s[0]); auto p = &s; }")
    assert "g(s, (int*)&s[4], a & s[0]); auto p = s;" in text


def test_launch_bounds_are_checked_where_the_kernel_begins():
    text = plain("template <int N> __global__ void __launch_bounds__(N * f(2, 3), 2) k(int n) { g(); }")
    assert text == "template <int N> __global__ void k(int n) { kw_launch_bound(N * f(2, 3)); g(); }"
    assert plain("__global__ void __launch_bounds__(64) k(int n);") == "__global__ void k(int n);"


@pytest.mark.parametrize(
    "text", ["f<<<", "f<<<1", "<<<1, 2>>>(x)", "f<<<1, 2>>>", 'x = "open', "/* open", 'R"(open', "}}}"]
)
def test_text_that_is_cut_off_is_left_to_the_compiler(text):
    assert isinstance(rewrite(text), str)


@pytest.mark.parametrize(
    "text",
    ["f<<<" * 65000, "extern " * 37000, "a> <<<" * 40000, "#define A " * 600, "extern __shared__ float s[];" * 5000],
    ids=["launches", "externs", "angles", "macros", "arrays"],
)
def test_hostile_text_ends_at_once(text):
    with pytest.raises(TooComplexError):
        rewrite(text)


@pytest.mark.parametrize("text", ["#define A cudaLaunchKernel(", "#if 0\ncudaLaunchKernel(static_cast\n#endif"])
def test_runtime_launches_that_are_cut_off_are_told(text):
    with pytest.raises(TooComplexError):
        rewrite(text)


def test_shared_memory_is_static_once():
    assert (
        plain("__global__ void f() { static __shared__ float s[4]; }")
        == "__global__ void f() { __shared__ float s[4]; }"
    )
