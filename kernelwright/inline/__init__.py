"""What a candidate imports to build its kernels, and what the referee needs to build them for it.

``cpp(SOURCE)`` compiles C++ with a C ABI and returns a library whose functions take tensors and numbers;
``cuda(SOURCE, "kernel")`` compiles CUDA and returns a kernel to launch. Importing this room costs a few milliseconds
and does not import torch.
"""

from __future__ import annotations

from kernelwright.inline._build import (
    BuildRequest,
    build,
    compile_command,
    extension_parts,
    extension_source_of,
    only_build,
    set_product_provider,
    torch_preamble,
    torch_preamble_command,
    torch_version,
)
from kernelwright.inline._cpp import cpp
from kernelwright.inline._cuda import CudaKernel, cuda, make_idle
from kernelwright.inline._cuda_compiler import (
    cubin_command,
    cubin_source,
    cuda_compiler,
    extension_command,
    extension_cubin_command,
    header_folders,
)
from kernelwright.inline._cuda_driver import driver_kernel, reset_persisting_cache
from kernelwright.inline._declarations import Parameter, Signature, parse_signatures
from kernelwright.inline._emulation import (
    EmulationError,
    count_launches,
    next_order,
    seen_launches,
    set_emulator,
)
from kernelwright.inline._knobs import apply_knobs, declared_knobs, knob_settings
from kernelwright.inline._library import ArgumentError, Library
from kernelwright.inline._load_inline import patch_load_inline
from kernelwright.inline._options import CudaFlags, check_flags, cuda_flags, fewer_headers, torch_header_folders
from kernelwright.inline._recording import ArgumentSpan, record_calls, tell_of_calls
from kernelwright.inline._toolchain import BuildError, compiler_version, header_command, processor

__all__ = [
    "ArgumentError",
    "ArgumentSpan",
    "BuildError",
    "BuildRequest",
    "CudaFlags",
    "CudaKernel",
    "EmulationError",
    "Library",
    "Parameter",
    "Signature",
    "apply_knobs",
    "build",
    "check_flags",
    "compile_command",
    "compiler_version",
    "count_launches",
    "cpp",
    "cubin_command",
    "cubin_source",
    "cuda",
    "cuda_compiler",
    "cuda_flags",
    "declared_knobs",
    "driver_kernel",
    "extension_command",
    "extension_cubin_command",
    "extension_parts",
    "extension_source_of",
    "fewer_headers",
    "header_command",
    "header_folders",
    "knob_settings",
    "make_idle",
    "next_order",
    "only_build",
    "parse_signatures",
    "patch_load_inline",
    "processor",
    "record_calls",
    "reset_persisting_cache",
    "seen_launches",
    "set_emulator",
    "set_product_provider",
    "tell_of_calls",
    "torch_header_folders",
    "torch_preamble",
    "torch_preamble_command",
    "torch_version",
]
