"""The functions with which a candidate builds its kernels, and those with which the referee builds them for it.

``cpp(SOURCE)`` compiles C++ with a C ABI and returns a library whose functions take tensors and numbers.
``cuda(SOURCE, "kernel")`` compiles CUDA and returns a kernel to launch. Importing this package takes a few milliseconds
and does not import torch.
"""

from __future__ import annotations

from kernelwright.inline._cpp import cpp
from kernelwright.inline._cuda import CudaKernel, Launched, cuda, make_idle, record_launches
from kernelwright.inline._declarations import Parameter, Signature, parse_signatures
from kernelwright.inline._knobs import apply_knobs, declared_knobs, knob_settings
from kernelwright.inline._library import ArgumentError, Library
from kernelwright.inline._load_inline import patch_load_inline
from kernelwright.inline.emulation import EmulationError
from kernelwright.inline.options import check_flags, cuda_flags
from kernelwright.inline.recording import record_calls
from kernelwright.inline.requests import BuildRequest, compile_command, set_product_provider, torch_version
from kernelwright.inline.toolchain import BuildError, compiler_version

__all__ = [
    "ArgumentError",
    "BuildError",
    "BuildRequest",
    "CudaKernel",
    "EmulationError",
    "Launched",
    "Library",
    "Parameter",
    "Signature",
    "apply_knobs",
    "check_flags",
    "compile_command",
    "compiler_version",
    "cpp",
    "cuda",
    "cuda_flags",
    "declared_knobs",
    "knob_settings",
    "make_idle",
    "parse_signatures",
    "patch_load_inline",
    "record_calls",
    "record_launches",
    "set_product_provider",
    "torch_version",
]
