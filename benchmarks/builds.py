"""How long builds of candidates take, in the builder's sandbox, beside the same sources with all of torch's headers.

    python benchmarks/builds.py --output benchmarks/results/MACHINE/builds.json

No GPU is needed: kernels for a device are built for ``--architecture``. Every build has a text of its own, so that none
comes out of the cache; the ways take turns within each repetition, and medians are given. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kernelwright import inline
from kernelwright.evaluator.builds.builder import BuildService
from kernelwright.evaluator.host.environment import environment
from kernelwright.inline import cuda_toolchain, requests
from kernelwright.sandbox import Limits, Sandbox, open_sandbox

C_ABI = """#include <cmath>
#include <cstdint>
extern "C" void gelu(const float* x, float* y, int64_t n) {
  #pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678f));
}
"""
EXTENSION = """#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x, double factor) {
  TORCH_CHECK(x.is_contiguous() && x.scalar_type() == torch::kFloat32, "contiguous float32");
  auto y = torch::empty_like(x);
  for (int64_t i = 0; i < x.numel(); i++) y.data_ptr<float>()[i] = factor * x.data_ptr<float>()[i];
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", torch::wrap_pybind_function(scaled), "scaled"); }
"""
KERNEL = 'extern "C" __global__ void scaled(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }\n'
HOST = """#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", torch::wrap_pybind_function(scaled), "scaled"); }
"""
LAUNCHER = """#include <torch/types.h>
#include <cuda_runtime.h>
template <typename T> __global__ void kernel(const T* x, T* y, int64_t n) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i] + x[i];
}
torch::Tensor scaled(torch::Tensor x) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scaled", [&] {
    kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  });
  return y;
}
"""
LIMITS = Limits(wall_s=600, output_bytes=64 << 20, memory_bytes=8 << 30, allow_exec=True)


def main() -> int:
    """Measure all ways, print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--architecture", default="sm_90a")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_sandbox("auto") as sandbox:
        ways = ways_of(sandbox, Path(folder), arguments.architecture)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-2, arguments.repetitions):  # twice before it counts: then headers are precompiled
            for name, build in ways.items():
                if number < 0 and name.endswith("all headers"):
                    continue
                started = time.monotonic()
                if not build(f"// {name} {number}\n"):
                    raise SystemExit(f"{name} does not build here")
                if number >= 0:
                    seconds[name].append(round(time.monotonic() - started, 3))
                    print(f"{name}: {seconds[name][-1]:.2f} s", file=sys.stderr)
    report = {
        "environment": environment(1).model_dump(mode="json"),
        "compiler of CUDA": cuda_toolchain.cuda_compiler(),
        "architecture": arguments.architecture,
        "median_s": {name: round(statistics.median(times), 2) for name, times in seconds.items()},
        "seconds": seconds,
    }
    text = json.dumps(report, indent=1, sort_keys=True)
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text + "\n")
    return 0


def ways_of(sandbox: Sandbox, folder: Path, architecture: str) -> dict[str, Callable[[str], bool]]:
    """Each way of building, by name; it is given a text to put behind its source, and says whether that was built."""
    service = BuildService(sandbox, folder, timeout_s=150, memory_bytes=4 << 30, architecture=architecture)

    def serve(language: str, name: str, source: str) -> Callable[[str], bool]:
        request = {"language": language, "flags": [], "name": name}
        return lambda end: service.build(request, source + end).product is not None

    def run(command: list[str], files: dict[str, str], end: str) -> bool:
        texts = {name: (text + end).encode() for name, text in files.items()}
        return sandbox.run(["/bin/sh", "-c", shlex.join(command)], files=texts, limits=LIMITS).returncode == 0

    def extension(end: str) -> bool:
        request = inline.BuildRequest("torch_extension", EXTENSION, (), "ext")
        return run(inline.compile_command(request, "/job/out.so", "/in/kernel.cpp"), {"kernel.cpp": EXTENSION}, end)

    def device_extension(end: str) -> bool:
        sources = ("/in/main.cpp", "/in/kernel.cu")
        command = cuda_toolchain.extension_command(architecture, (), "ext", sources, "/job/out.so")
        return run(command, {"main.cpp": HOST, "kernel.cu": LAUNCHER}, end)

    return {
        "inline.cpp": serve("cpp", "", C_ABI),
        "inline.cuda": serve("cuda", "scaled", KERNEL),
        "load_inline, C++": serve("torch_extension", "ext", EXTENSION),
        "load_inline, C++, all headers": extension,
        "load_inline, CUDA": serve("torch_cuda_extension", "ext", requests.extension_source_of(HOST, LAUNCHER)),
        "load_inline, CUDA, all headers": device_extension,
    }


if __name__ == "__main__":
    sys.exit(main())
