"""CUDA checked without a GPU: the text for the C++ compiler, and the runtime that runs its product."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from kernelwright import inline
from kernelwright.evaluator.builds.cuda_rewrite import rewrite
from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.inline import cuda_toolchain, options, requests
from kernelwright.sandbox import product_memfd

__all__ = [
    "MAX_SOURCE_BYTES",
    "EmulatorLibrary",
    "assembly_command",
    "cubin_commands",
    "cuda_part",
    "disassembly",
    "emulated_source",
    "emulator_command",
    "emulator_version",
]

MAX_SOURCE_BYTES = 256 << 10  # of CUDA text that is rewritten
_HERE = Path(__file__).parent
_SMALL_HEADERS = str(_HERE / "torch_shim")  # in place of torch's own
_TORCH_STUBS = str(_HERE / "torch_stubs")  # what torch's own headers need besides CUDA's headers
_FLAGS = (
    *("-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-fno-gnu-unique", "-fPIC", "-fstack-clash-protection"),
    *("-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-U__SANITIZE_THREAD__"),
)
_WATCHED = [f"-Wl,--wrap={name}" for name in ("memcpy", "memmove", "memset")]  # copies that are calls
_KERNEL_HEAD = '#include <cuda_runtime.h>\n#line 1 "kernel.cu"\n'
_ANCHOR = """
extern "C" const void* kw_product_anchor() {
  static thread_local __attribute__((aligned(16))) char shared;
  static char global;
  asm volatile("" : : "r"(&shared) : "memory");
  return &global;
}
"""
_LAUNCHER = """
extern "C" int kw_kernel_launch(const unsigned* s, unsigned long shared, void** arguments) {
  try {
    kw::Configuration shape(dim3(s[0], s[1], s[2]), dim3(s[3], s[4], s[5]), shared);
    kw::launch_granted("NAME", KW_SHARED_MOST, shape, &KERNEL, arguments);
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
"""


class EmulatorLibrary:
    """The compiled runtime, built once for each cache folder and content."""

    def __init__(self, cache_dir: Path) -> None:
        source = _HERE / "emulator" / "runtime.cpp"
        self.data = build_library(source, cache_dir, ("-std=c++17", "-O2", f"-I{source.parent}/include")).read_bytes()

    def memfd(self) -> int:
        """A sealed memory file of the library; the caller closes it."""
        return product_memfd(self.data)


@functools.lru_cache(maxsize=1)
def emulator_version() -> str:
    """A hash of all files that go into emulated products."""
    files = sorted(path for folder in ("emulator", "torch_shim") for path in (_HERE / folder).rglob("*.[ch]*"))
    files.append(_HERE / "cuda_rewrite.py")
    return hashlib.sha256(b"".join(path.read_bytes() for path in (*files, Path(__file__)))).hexdigest()[:16]


def cubin_commands(request: inline.BuildRequest, architecture: str) -> list[list[str]]:
    """Command lines that compile a request's device code, from /in/kernel.cu to /job/product.so. Try them in turn.

    Raises:
        BuildError: no compiler is installed.
    """
    source, out = "/in/kernel.cu", "/job/product.so"
    if request.language == "cuda":
        return [cuda_toolchain.cubin_command(architecture, request.name, request.flags, source, out)]
    folders = [[_SMALL_HEADERS], [_TORCH_STUBS, *options.torch_header_folders()]]
    return [cuda_toolchain.extension_cubin_command(architecture, request.flags, f, source, out) for f in folders]


def assembly_command(architecture: str, ptx: str, out: str) -> str | None:
    """A shell command that assembles PTX for an architecture and lists the result; None without an assembler.

    Triton's own ptxas comes first, because Triton assembles its kernels with it.
    """
    number = int(architecture.removeprefix("sm_"))
    tool = _of_triton("ptxas-blackwell" if number >= 100 else "ptxas") or shutil.which("ptxas")
    if tool is None:
        return None
    exact = f"{architecture}a" if number >= 90 else architecture  # with the features of that architecture alone
    assemble = [tool, "-v", f"--gpu-name={exact}", "--regAllocOptLevel=2", ptx, "-o", out]
    return f"{shlex.join(assemble)} && {disassembly(out)}"


def _of_triton(name: str) -> str | None:
    spec = importlib.util.find_spec("triton")
    path = Path(spec.origin).parent / "backends/nvidia/bin" / name if spec and spec.origin else None
    return str(path) if path is not None and path.exists() else None


def disassembly(cubin: str) -> str:
    """A shell command that replaces a cubin by its machine code as text; by nothing without a disassembler."""
    tool = _of_triton("nvdisasm") or shutil.which("nvdisasm")
    if tool is None:
        return f": > {cubin}"
    return f"{shlex.quote(tool)} -c {cubin} > {cubin}.sass && mv {cubin}.sass {cubin}"


def cuda_part(request: inline.BuildRequest) -> str:
    """The text that holds a request's kernels."""
    return request.source if request.language == "cuda" else requests.extension_parts(request.source)[1]


def emulated_source(request: inline.BuildRequest) -> str:
    """C++ that runs a request's kernels in the emulator."""
    if request.language == "cuda":
        launcher = _LAUNCHER.replace("NAME", re.sub(r"[^\w<>:, ]", "", request.name)).replace("KERNEL", request.name)
        return _KERNEL_HEAD + rewrite(request.source) + '\n#line 1 "launcher"\n' + _ANCHOR + launcher
    cpp_part, kernels = requests.extension_parts(request.source)
    head, module, bindings = cpp_part.rpartition("PYBIND11_MODULE(")
    if not module:
        head, bindings = cpp_part, ""
    # One translation unit: declarations, kernels with their launchers, and last the bindings.
    return f'#line 1 "main.cpp"\n{rewrite(head)}\n#line 1 "cuda.cu"\n{rewrite(kernels)}\n{module}{bindings}\n'


def emulator_command(request: inline.BuildRequest, source: str, out: str) -> list[str]:
    """The C++ compiler's command line for an emulated source."""
    options = inline.cuda_flags(request.flags).kept
    defines = [flag for flag in options if flag.startswith(("-D", "-U"))]
    standard = [flag.replace("--std", "-std") for flag in options if re.match(r"--?std=c\+\+(17|20)", flag)]
    includes = [f"-I{_HERE}/emulator/include", f"-I{_SMALL_HEADERS}"]
    named = [f"-DTORCH_EXTENSION_NAME={request.name}"] if request.language == "torch_cuda_extension" else []
    compile_ = ["g++", *_FLAGS, *standard, *defines, *named, *includes, "-c", "-x", "c++", "-o", f"{out}.o", source]
    link = ["g++", "-shared", "-Wl,-Bsymbolic-functions", *_WATCHED, "-o", out, f"{out}.o"]
    return _both(compile_, link)


def _both(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """One shell command that runs two commands."""
    return ["/bin/sh", "-c", f"{shlex.join(first)} && {shlex.join(second)}"]
