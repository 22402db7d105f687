"""The build service: what comes of a source does not depend on what was built before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelwright.evaluator import Referee
from kernelwright.evaluator.builds.builder import BuildService
from kernelwright.evaluator.builds.cache import ProductCache
from kernelwright.evaluator.builds.referee_code import compiler_takes
from kernelwright.inline import cuda_toolchain as _cuda_compiler
from kernelwright.inline import toolchain

KERNEL = """
// The root of every element? In place.
{headers}
extern "C" void root(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] = std::sqrt(x[i]) * M_PI;
}
"""
pytestmark = pytest.mark.untimed
HEADERS = "#include <cmath>\n/* and\n   the integers */\n  # include <cstdint>  // of fixed width"


@pytest.fixture(scope="module")
def referee(referee, make_cache):
    """With products and headers of its own, since these tests look for them."""
    settings = referee.settings.with_values(cache_dir=str(make_cache(without={"products", "headers"})))
    with Referee(settings, referee.host.sandbox) as made:
        yield made


@pytest.fixture
def build(referee):
    """Builds each of the texts that a pattern gives for 0, 1, 2: all different, all with the same headers on top."""

    def build(headers: str, *flags: str):
        texts = [KERNEL.replace("{headers}", headers) + "\n" * n for n in range(3)]
        request = {"language": "cpp", "flags": list(flags), "name": ""}
        return [referee.host.builds.build(request, text) for text in texts]

    return build


def precompiled(referee) -> list[Path]:
    """The precompiled headers that are kept."""
    kept = Path(referee.settings.cache_dir).glob("headers/*/product.so")
    return [path for path in kept if path.stat().st_size]


@pytest.mark.parametrize("flags", [(), ("-ffast-math", "-DNDEBUG"), ("-DM_PI=3",)], ids=" ".join)
def test_a_product_is_the_same_to_the_byte_when_its_headers_are_precompiled(build, referee, flags):
    first, second, third = build(HEADERS, *flags)
    assert first.product is not None
    assert first.product == second.product == third.product
    assert not third.cached
    assert precompiled(referee)


@pytest.mark.parametrize(
    "headers",
    [
        "// hidden \\\n#include <cmath>\n#include <cstdint>",
        "// hidden ??/\n#include <cmath>\n#include <cstdint>",
        "/* seen *\\\n/ \n#if 0\n/* */ #include <cmath>\n/* */\n#endif\n#include <cstdint>",
        "#ifdef NEVER\n#include <cmath>\n#endif\n#include <cstdint>",
        "#define sqrt root_of\n#include <cmath>\n#include <cstdint>",
    ],
    ids=["backslash", "trigraph", "closed across lines", "condition", "definition"],
)
def test_headers_that_a_source_does_not_begin_with_are_never_laid_before_it(build, headers):
    build(HEADERS, "-std=c++14")
    outcomes = build(headers, "-std=c++14")
    assert [outcome.product for outcome in outcomes] == [None] * 3
    assert outcomes[0].log == outcomes[2].log


def test_a_header_that_is_not_there_is_told_every_time(build):
    for outcome in build("#include <no_such_header.h>\n#include <cmath>"):
        assert outcome.product is None
        assert "no_such_header.h" in outcome.log


def test_a_damaged_precompiled_header_is_made_anew(build, referee):
    before = build(HEADERS, "-O2")
    for path in precompiled(referee):
        path.write_bytes(b"no header")
    after = referee.host.builds.build(
        {"language": "cpp", "flags": ["-O2"], "name": ""}, KERNEL.replace("{headers}", HEADERS) + "\n\n\n\n"
    )
    assert after.product == before[0].product
    assert any(path.stat().st_size > 1_000_000 for path in precompiled(referee))


CUDA = """
#include <stdint.h>
#include <cmath>
#include <cfloat>
#include <cuda_fp16.h>
constexpr float largest = INFINITY;
template <int N> __global__ void fill(float* y, int64_t n) {
  uint32_t i = threadIdx.x;
  y[i] = i == 0 ? NAN : i == 1 ? -largest : i == 2 ? FLT_MAX : sqrtf(M_PI * N) + INT_MAX * (float)n;
}
"""
FOR_NVCC_ALONE = """
#include <cuda/std/limits>
#include <utility>
template <int N> __global__ void fill(float* y, long n) { y[0] = N * cuda::std::numeric_limits<float>::max(); }
"""


@pytest.fixture(params=["NVRTC", "nvcc"])
def without(request, monkeypatch):
    """The compiler's name, with the other one away."""
    _cuda_compiler.cuda_compiler.cache_clear()
    other = "find_nvcc" if request.param == "NVRTC" else "find_nvrtc"
    monkeypatch.setattr(_cuda_compiler, other, lambda: None)
    if request.param == "nvcc" and _cuda_compiler.find_nvcc() is None:
        pytest.skip("no nvcc here")
    yield request.param
    _cuda_compiler.cuda_compiler.cache_clear()


def test_either_compiler_takes_what_kernels_use_of_the_c_library(referee, tmp_path, without):
    builds = BuildService(referee.host.sandbox, tmp_path, timeout_s=300.0, memory_bytes=4 << 30, architecture="sm_90a")
    built = builds.build({"language": "cuda", "flags": ["-lineinfo"], "name": "fill<3>"}, CUDA)
    assert built.product is not None, built.log
    assert b".text._Z4fillILi3EEvPfl" in built.product or b".text._Z4fillILi3EEvPfx" in built.product
    assert "registers" in built.log
    wrong = builds.build({"language": "cuda", "flags": [], "name": "fill<3>"}, CUDA.replace("threadIdx", "nowhere"))
    assert wrong.product is None
    assert '"nowhere" is undefined' in wrong.log


def test_nvcc_has_the_last_word_on_what_nvrtc_refuses(referee, tmp_path):
    if _cuda_compiler.find_nvcc() is None:
        pytest.skip("no nvcc here")
    builds = BuildService(referee.host.sandbox, tmp_path, timeout_s=300.0, memory_bytes=4 << 30, architecture="sm_90a")
    built = builds.build({"language": "cuda", "flags": [], "name": "fill<3>"}, FOR_NVCC_ALONE)
    assert built.product is not None, built.log
    assert b".text._Z4fillILi3EEvPfl" in built.product


def test_equal_cuda_sources_are_built_once(referee):
    request = {"language": "cuda", "flags": ["-DN=3"], "name": "fill"}
    source = 'extern "C" __global__ void fill(float* y) { y[threadIdx.x] = N; }'
    first, second = (referee.host.builds.build(request, source) for _ in range(2))
    assert first.product is not None, first.log
    assert (first.cached, second.cached) == (False, True)
    assert second.product == first.product
    assert "registers" in second.log
    other = referee.host.builds.build({**request, "flags": ["-DN=4"]}, source)
    assert other.product != first.product


def test_what_was_only_asked_for_is_forgotten_like_products(tmp_path):
    cache = ProductCache(tmp_path, 1 << 30)
    assert cache.is_first_request("asked")
    assert not cache.is_first_request("asked")
    cache.keep("kept", b"x" * 5000, "log")
    (asked,) = (folder for folder in tmp_path.iterdir() if not any(folder.iterdir()))
    os.utime(asked, (0, 0))  # long ago
    again = ProductCache(tmp_path, 6000)
    assert again.load("kept") == (b"x" * 5000, "log")
    assert again.is_first_request("asked")


def test_what_was_built_for_another_processor_is_not_there(tmp_path, monkeypatch):
    cache = ProductCache(tmp_path, 1 << 30)
    cache.keep("kernel", b"for this one", "")
    assert cache.load("kernel") == (b"for this one", "")
    monkeypatch.setattr(toolchain, "processor", lambda: "flags: none of these")
    assert cache.load("kernel") is None
    cache.keep("kernel", b"for the other", "")
    monkeypatch.undo()
    assert cache.load("kernel") == (b"for this one", "")


def test_a_full_disk_costs_a_build_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(old, new):
        raise OSError(28, "No space left on device")

    cache = ProductCache(tmp_path, 1 << 30)
    monkeypatch.setattr(os, "replace", fail)
    cache.keep("kernel", b"product", "log")
    monkeypatch.undo()
    assert cache.load("kernel") is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    cache.keep("kernel", b"product", "log")
    assert cache.load("kernel") == (b"product", "log")


def test_the_compiler_is_asked_for_flags_without_a_build():
    assert compiler_takes("-mavx2 -mfma")
    assert not compiler_takes("-mavx2 -mno-such-vectors")
