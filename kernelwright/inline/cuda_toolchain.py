"""Finds the CUDA compiler of this machine, and writes its command lines."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelwright.inline.options import cuda_flags, fewer_headers, torch_header_folders, torch_options, torch_root
from kernelwright.inline.toolchain import BuildError, build_cached

__all__ = [
    "build_for_device",
    "cubin_command",
    "cubin_source",
    "cuda_compiler",
    "extension_command",
    "extension_cubin_command",
    "find_nvcc",
    "header_folders",
]

_DEFAULT_ARCHITECTURE = "sm_90"
_FOR_NVCC_ALONE = ("--threads", "-t", "-Xptxas", "--ptxas-options", "-O")
_VERBOSE = ("-Xptxas", "-v")  # print registers, spills and shared memory to standard error
_TORCH_LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch", "torch_python")
_TOOLKIT = ("/usr/local/cuda", "/opt/cuda")
_PACKAGES = str(Path(__file__).resolve().parents[2])  # in the command: a build may have no PYTHONPATH
_NVRTC = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); "
    "from kernelwright.inline._nvrtc import main; sys.exit(main(sys.argv[1:]))"
)
_NVCC_PLACES = ("/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc")


def find_nvcc() -> str | None:
    """Path of CUDA's compiler driver, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [f"{home}/bin/nvcc"] if home else []
    return shutil.which("nvcc") or next((path for path in [*places, *_NVCC_PLACES] if os.access(path, os.X_OK)), None)


def find_nvrtc() -> str | None:
    """Path of the NVRTC library of the highest version, or None."""
    patterns = [f"{folder}/{rest}" for folder in _nvidia_packages() for rest in ("*/lib/libnvrtc.so.*",)]
    patterns += [f"{root}/{lib}/libnvrtc.so*" for root in _toolkits() for lib in ("lib64", "targets/*/lib")]
    found = sorted({path for pattern in patterns for path in glob.glob(pattern) if "alt" not in Path(path).name})
    return found[-1] if found else None


def header_folders() -> list[str]:
    """Folders with CUDA's headers (cuda_fp16.h and the like, then CUB and libcu++). NVRTC has none by itself."""
    folders = [f"{folder}/{rest}" for folder in _nvidia_packages() for rest in ("*/include", "cuda_runtime/include")]
    found = [path for pattern in folders for path in sorted(glob.glob(pattern))]
    found += [f"{root}/include" for root in _toolkits()]
    found = [path for path in dict.fromkeys(found) if os.path.exists(f"{path}/cuda_fp16.h")]
    return found + [path for path in (f"{folder}/cccl" for folder in found) if os.path.isdir(path)]


def _nvidia_packages() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _toolkits() -> list[str]:
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [root for root in (*named, *_TOOLKIT) if os.path.isdir(root)]


@functools.lru_cache(maxsize=1)
def cuda_compiler() -> str:
    """The compiler of device code on this machine, as one line that changes with its version.

    Raises:
        BuildError: neither NVRTC nor nvcc is installed.
    """
    library = find_nvrtc()
    if library is not None:
        return f"NVRTC {library}"
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("no CUDA compiler: pip install nvidia-cuda-nvrtc, or install CUDA's toolkit")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
    return said[-1] if said else nvcc


def cubin_source(source: str, name: str) -> str:
    """The text to compile for a kernel. For nvcc it also refers to the kernel, since that instantiates a template."""
    return source if find_nvrtc() is not None else source + _referring_to(name)


def _referring_to(name: str) -> str:
    return (
        f"\nnamespace {{ const void* const kw_kernel = reinterpret_cast<const void*>(&{name}); }}\n"
        if "<" in name
        else ""
    )


def extension_cubin_command(
    architecture: str, flags: Sequence[str], includes: Sequence[str], source: str, out: str
) -> list[str]:
    """The command line with which nvcc compiles the device code of a source that also has host code.

    Raises:
        BuildError: nvcc is missing, or an option is not allowed.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("no nvcc, which sources with host code need: install CUDA's toolkit, or use inline.cuda")
    options = cuda_flags(flags).kept
    fixed = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-w", *_VERBOSE)
    folders = [f"-isystem={path}" for path in includes]
    return [nvcc, f"-arch={architecture}", "-cubin", "-x", "cu", *fixed, *options, *folders, "-o", out, source]


def extension_command(
    architecture: str,
    flags: Sequence[str],
    name: str,
    sources: tuple[str, str],
    out: str,
    *,
    fewer: bool = False,
    preamble: str = "",
) -> list[str]:
    """The command that builds the extension ``name`` for a device, from a C++ source and a CUDA source.

    Host code and device code are compiled in parallel, each by its own compiler.

    Args:
        fewer: replace torch's headers by our own, which have only what most launchers of kernels need.
        preamble: a header to read before the C++ source.

    Raises:
        BuildError: nvcc or torch is missing.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("no nvcc, which sources with host code need: install CUDA's toolkit, or use inline.cuda")
    extension = f"-DTORCH_EXTENSION_NAME={name}"
    options = cuda_flags(flags).kept
    host = torch_options([flag for flag in options if flag.startswith("-D")], fewer=fewer)
    host += [*(f"-isystem{folder}" for folder in header_folders()), extension, "-w"]
    host += ["-include", preamble] if preamble else []
    device = [nvcc, "-std=c++20", "-Xcompiler", "-fPIC", "-w", extension, "-DTORCH_API_INCLUDE_EXTENSION_H"]
    device += [f"-I{fewer_headers('cuda')}", "-DAT_PER_OPERATOR_HEADERS"] if fewer else []
    device += [f"-isystem={folder}" for folder in torch_header_folders()]
    device += ["-gencode", f"arch=compute_{architecture.removeprefix('sm_')},code={architecture}"]
    device += ["-O1", *_VERBOSE, "--expt-relaxed-constexpr", "--expt-extended-lambda", *options, "-x", "cu"]
    libraries = [
        f"-l{library}" for library in _TORCH_LIBRARIES if os.path.exists(f"{torch_root()}/lib/lib{library}.so")
    ]
    link = [nvcc, "-shared", "--cudart=shared", "-Xcompiler", "-fopenmp", "-o", out, f"{out}.host.o", f"{out}.device.o"]
    link += [f"-L{torch_root()}/lib", *libraries]
    compile_host = shlex.join([*host, "-c", sources[0], "-o", f"{out}.host.o"])
    compile_device = shlex.join([*device, "-c", sources[1], "-o", f"{out}.device.o"])
    script = f"{compile_host} & other=$!; {compile_device} && wait $other && {shlex.join(link)}"
    return ["/bin/sh", "-c", script]


def cubin_command(architecture: str, name: str, flags: Sequence[str], source: str, out: str) -> list[str]:
    """The command line that compiles device code (no host code) to a cubin.

    Raises:
        BuildError: the compiler is missing, or an option is not allowed.
    """
    cuda_compiler()
    nvcc = find_nvcc()
    for_nvcc = cuda_flags(flags).kept
    by_nvcc = [nvcc or "nvcc", f"-arch={architecture}", "-cubin", "-std=c++17", *_VERBOSE, "-O3", *for_nvcc, "-o", out]
    if find_nvrtc() is None:
        return [*by_nvcc, source]
    options = ["--ptxas-options=-v", *(flag for flag in for_nvcc if not flag.startswith(_FOR_NVCC_ALONE))]
    by_nvrtc = [sys.executable, "-c", _NVRTC, source, out, architecture, name, *options]
    if nvcc is None:
        return by_nvrtc
    # NVRTC takes a quarter of nvcc's time, but knows no host headers. So nvcc tries again what NVRTC refuses.
    log, again = f"{out}.nvrtc", f"{out}.nvcc.cu"
    whole = f"{{ cat {shlex.quote(source)}; printf %s {shlex.quote(_referring_to(name))}; }} > {shlex.quote(again)}"
    script = f"if {shlex.join(by_nvrtc)} 2> {shlex.quote(log)}; then cat {shlex.quote(log)} >&2; "
    script += f"else {whole} && {shlex.join([*by_nvcc, again])}; fi"
    return ["/bin/sh", "-c", script]


def build_for_device(source: str, name: str, flags: tuple[str, ...]) -> str:
    """Compile for this machine's device. Without one, compile for the architecture in ``KERNELWRIGHT_CUDA_ARCH``."""
    architecture = _architecture()
    parts = {"language": "cuda", "flags": flags, "name": name, "architecture": architecture, "with": cuda_compiler()}
    return build_cached(
        parts,
        cubin_source(source, name),
        lambda path, out: cubin_command(architecture, name, flags, path, out),
        suffix="cu",
    )


def _architecture() -> str:
    import torch

    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    return os.environ.get("KERNELWRIGHT_CUDA_ARCH", _DEFAULT_ARCHITECTURE)
