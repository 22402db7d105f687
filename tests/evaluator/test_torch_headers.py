"""Extensions that include torch's headers: built with few of them, precompiled, and with all where these do not do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kernelwright import inline
from kernelwright.errors import SandboxError
from kernelwright.evaluator.builds import builder as _build
from kernelwright.evaluator.builds import torch_headers
from kernelwright.evaluator.builds.builder import BuildService
from kernelwright.evaluator.builds.torch_headers import PREAMBLE
from kernelwright.inline import cuda_toolchain, options, requests
from kernelwright.inline.options import fewer_headers
from kernelwright.sandbox import Completed

pytestmark = pytest.mark.untimed
SOURCE = """#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) { return x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", torch::wrap_pybind_function(twice), ""); }
"""
OURS = f"-I{fewer_headers('cpp')}"


class Compiler:
    """Stands for a sandbox with a compiler in it: notes what it is asked to do, and does it as it is told."""

    name = "bwrap"

    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []  # what it was, and its command line
        self.cpus: list[tuple[int, ...] | None] = []
        self.errors: dict[str, str] = {}  # what it says of a source, by the headers that it is compiled with

    def run(self, argv, *, mounts=(), cpus=None, **options):
        self.cpus.append(cpus)
        command = " ".join(argv)
        if "c++-header" in command and not mounts:  # of system headers
            kind = "header"
        elif "c++-header" in command:
            kind = "header"
            (Path(mounts[0].source) / "preamble.h.gch").write_bytes(b"precompiled")
            assert mounts[0].writable
        else:
            kind = "few" if OURS in command else "all"
            assert (PREAMBLE in command) == bool(mounts)
            assert not any(mount.writable for mount in mounts)
            assert all((Path(mount.source) / "preamble.h.gch").exists() for mount in mounts)
            kind += " after the preamble" if mounts else ""
        self.runs.append((kind, command))
        error = self.errors.get(kind.split()[0], "")
        return Completed(1 if error else 0, b"product", error.encode(), "", None, 0.1)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.runs]


@pytest.fixture
def compiler():
    return Compiler()


@pytest.fixture
def build(compiler, tmp_path):
    service = BuildService(compiler, tmp_path, timeout_s=60, memory_bytes=1 << 30)

    def build(source=SOURCE, *flags):
        return service.build({"language": "torch_extension", "flags": list(flags), "name": "ext"}, source)

    return build


def variants(count: int) -> list[str]:
    return [f"{SOURCE}// {number}\n" for number in range(count)]


def test_the_second_build_with_the_same_options_has_the_headers_made_that_the_third_uses(build, compiler):
    for source in variants(4):
        assert build(source).product == b"product"
    assert compiler.kinds[0] == "few"
    assert sorted(compiler.kinds[1:3]) == ["few", "header"]
    assert compiler.kinds[3:] == ["few after the preamble"] * 2
    assert f"-include {PREAMBLE}" in compiler.runs[-1][1]


def test_usual_options_have_headers_of_their_own_and_macros_play_no_part(build, compiler):
    first, second, third, fourth = variants(4)
    build(first, "-O2")
    build(second, "-O3")
    assert "header" not in compiler.kinds
    build(third, "-O2", "-DN=3")
    assert compiler.kinds.count("header") == 1
    assert "-DN" not in dict(compiler.runs)["header"]
    build(fourth, "-O2", "-DN=4", "-march=native")
    assert compiler.kinds[-1] == "few after the preamble"


def test_unusual_options_have_none_since_anybody_can_think_of_many(build, compiler):
    for source in variants(4):
        build(source, "-O2", "-fno-math-errno")
    assert compiler.kinds == ["few"] * 4


def test_all_that_is_compiled_stays_on_the_processors_that_are_given(compiler, tmp_path):
    service = BuildService(compiler, tmp_path, timeout_s=60, memory_bytes=1 << 30, cpus=(1, 2))
    for number, source in enumerate(variants(3)):
        service.build({"language": "torch_extension", "flags": [], "name": "ext"}, source)
        service.build({"language": "cpp", "flags": [], "name": ""}, f"#include <cmath>\nint f() {{ return {number}; }}")
    assert compiler.kinds.count("header") == 2
    assert set(compiler.cpus) == {(1, 2)}


def test_a_source_that_does_not_begin_with_torchs_header_is_never_read_after_it(build, compiler):
    for source in variants(4):
        build(f"#define Tensor Tenser\n{source}")
    assert compiler.kinds == ["few"] * 4


def test_what_does_not_compile_with_few_headers_is_compiled_with_all(build, compiler):
    compiler.errors["few"] = "kernel.cpp:2: error: 'nn' is not a member of 'torch'"
    assert build().product == b"product"
    assert compiler.kinds == ["few", "all"]


def test_errors_are_told_as_a_compiler_of_the_whole_source_tells_them(build, compiler):
    compiler.errors = {
        "few": "/in/kernel.cpp:3:1: error: expected ';'\n/in/kernel.cpp:9:1: error: expected '}'",
        "all": "/in/kernel.cpp:3:1: error: expected ';'\ncompilation terminated due to -Wfatal-errors.",
    }
    assert build().log == compiler.errors["few"]
    compiler.errors["few"] = "/in/kernel.cpp:2:1: error: 'nn' is not a member of 'torch'"
    failed = build(SOURCE + "//")
    assert failed.product is None
    assert failed.log == compiler.errors["all"]


def test_headers_that_cannot_be_precompiled_are_not_tried_again(build, compiler):
    compiler.errors["header"] = "torch/types.h:1: error: not with these options"
    for source in variants(4):
        assert build(source).product == b"product"
    assert sorted(compiler.kinds) == ["few", "few", "few", "few", "header"]


def test_headers_are_made_later_where_the_disk_was_full(build, compiler, tmp_path):
    compiler.errors["header"] = "fatal error: No space left on device"
    for source in variants(3):
        assert build(source).product == b"product"
    assert not [entry for entry in (tmp_path / "torch_headers").iterdir() if entry.is_dir()]
    del compiler.errors["header"]
    for source in variants(5)[3:]:
        build(source)
    assert compiler.kinds[-1] == "few after the preamble"
    assert compiler.kinds.count("header") == 3


def test_those_used_longest_ago_are_forgotten(build, compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(torch_headers, "_MOST_KEPT", 2)
    texts, seen = iter(variants(20)), set()
    for version in "0123":
        monkeypatch.setattr(_build.inline, "torch_version", lambda now=version: now)
        build(next(texts))
        build(next(texts))
        kept = {folder for folder in (tmp_path / "torch_headers").iterdir() if folder.is_dir()}
        (made,) = kept - seen
        os.utime(made, (int(version), int(version)))
        seen |= kept
    assert len(kept) == 2
    monkeypatch.setattr(_build.inline, "torch_version", lambda: "0")
    build(next(texts))
    build(next(texts))
    assert compiler.kinds.count("header") == 5


def test_where_no_folder_can_be_shown_there_are_few_headers_all_the_same(build, compiler):
    compiler.name = "process"
    for source in variants(3):
        build(source)
    assert compiler.kinds == ["few"] * 3


def test_other_headers_of_ours_have_products_of_their_own(build, monkeypatch):
    assert [build().cached, build().cached] == [False, True]
    monkeypatch.setattr(_build, "headers_digest", lambda: "changed")
    assert not build().cached


def test_headers_that_cannot_be_made_or_shown_cost_nothing_but_time(build, compiler, monkeypatch):
    run = compiler.run

    def refuse(argv, *, mounts=(), **options):
        if mounts:
            raise SandboxError("no such folder")
        return run(argv, mounts=mounts, **options)

    first, second, third, fourth, fifth = variants(5)
    monkeypatch.setattr(compiler, "run", refuse)
    assert build(first).product == build(second).product == b"product"
    monkeypatch.undo()
    assert build(third).product == build(fourth).product == b"product"
    monkeypatch.setattr(compiler, "run", refuse)
    assert build(fifth).product == b"product"
    assert compiler.kinds[-1] == "few"


def test_a_torch_of_another_version_has_products_of_its_own(build, compiler, monkeypatch):
    assert [build().cached, build().cached] == [False, True]
    monkeypatch.setattr(_build.inline, "torch_version", lambda: "9.9")
    assert not build().cached


@pytest.fixture
def build_for_device(compiler, tmp_path):
    try:
        cuda_toolchain.cuda_compiler()
    except inline.BuildError as error:
        pytest.skip(error.message)
    service = BuildService(compiler, tmp_path, timeout_s=60, memory_bytes=1 << 30, architecture="sm_90a")
    kernels = "#include <torch/types.h>\n__global__ void twice() {}\n"

    def build(host=SOURCE):
        source = requests.extension_source_of(host, kernels)
        return service.build({"language": "torch_cuda_extension", "flags": ["-O3"], "name": "ext"}, source)

    return build


def test_an_extension_for_a_device_has_both_its_parts_built_with_few_headers(build_for_device, compiler):
    for source in variants(3):
        assert build_for_device(source).product == b"product"
    assert compiler.kinds[-1] == "few after the preamble"
    host, device = compiler.runs[-1][1].split(" & ")[:2]
    assert f"-include {PREAMBLE}" in host
    assert OURS in host
    assert f"-I{fewer_headers('cuda')}" in device
    assert "arch=compute_90a,code=sm_90a" in device
    assert build_for_device(variants(3)[0]).cached


def test_an_extension_for_a_device_falls_back_to_all_headers(build_for_device, compiler):
    compiler.errors["few"] = "kernel.cu(2): error: namespace torch has no member nn"
    assert build_for_device().product == b"product"
    assert compiler.kinds == ["few", "all"]
    assert "torch_headers" not in compiler.runs[-1][1]


LAUNCHER = """
#include <torch/extension.h>
#include <torch/types.h>
#include <ATen/ATen.h>
template <typename T> void launch(const T* x, T* y, int64_t n) { std::copy(x, x + n, y); }
torch::Tensor go(torch::Tensor x, torch::optional<torch::Tensor> bias, double scale) {
  TORCH_CHECK(x.is_contiguous() && x.dim() == 2, "two dimensions, not ", x.dim());
  torch::NoGradGuard guard;
  auto options = torch::TensorOptions().dtype(torch::kFloat32).device(x.device());
  auto y = torch::empty({x.size(0), x.size(1)}, options), z = torch::zeros_like(x), w = at::empty_like(x);
  auto rows = torch::full({x.size(0)}, 3, x.options().dtype(torch::kInt64));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "go", [&] {
    launch<scalar_t>(x.data_ptr<scalar_t>(), w.data_ptr<scalar_t>(), x.numel());
  });
  auto view = x.packed_accessor32<float, 2, torch::DefaultPtrTraits>();
  if (bias.has_value()) y += *bias * scale + view[0][0];
  return at::matmul(y.t().contiguous(), w.view({x.size(0), -1})).sum(0).to(at::kFloat) + rows.size(0);
}
"""


def test_factories_are_torchs_own_and_not_those_below_them(tmp_path):
    """``torch::zeros`` keeps ``requires_grad``; ``at::zeros`` of the same text loses it without an error."""
    preprocessed = subprocess.run(
        ["g++", "-std=c++20", "-E", "-P", f"-I{fewer_headers('cuda')}", "-DAT_PER_OPERATOR_HEADERS", "-x", "c++", "-"]
        + [f"-isystem{folder}" for folder in options.torch_header_folders()],
        input="#include <torch/extension.h>\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    last = preprocessed.rindex("at::Tensor zeros(at::IntArrayRef size, at::TensorOptions options")  # torch's hides at's
    in_torch = preprocessed[last:]
    assert "make_variable" in in_torch[:600]


def test_the_few_headers_for_launchers_have_what_launchers_use(tmp_path):
    (tmp_path / "launcher.cpp").write_text(LAUNCHER)
    ours = [f"-I{fewer_headers('cuda')}", "-DAT_PER_OPERATOR_HEADERS"]
    torchs = [f"-isystem{folder}" for folder in options.torch_header_folders()]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-H", *ours, *torchs, str(tmp_path / "launcher.cpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ATen/Functions.h" not in done.stderr  # what all headers are slow for


@pytest.mark.slow
def test_a_product_is_the_same_to_the_byte_with_precompiled_headers(referee):
    """Half a minute each way: the real compiler, the real headers."""
    request = {"language": "torch_extension", "flags": ["-O1"], "name": "ext"}
    products = [referee.host.builds.build(request, source).product for source in variants(3)]
    assert products[0] is not None
    assert products[0] == products[1] == products[2]
