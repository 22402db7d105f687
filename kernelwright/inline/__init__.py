"""What a candidate imports to build its kernels, and what the referee needs to build them for it.

``cpp(SOURCE)`` compiles C++ with a C ABI and returns a library whose functions take tensors and numbers. Importing this
room costs a few milliseconds and does not import torch.
"""

from __future__ import annotations

from kernelwright.inline._build import BuildRequest, build, check_flags, compile_command, set_product_provider
from kernelwright.inline._cpp import cpp, cuda
from kernelwright.inline._declarations import Parameter, Signature, parse_signatures
from kernelwright.inline._knobs import apply_knobs
from kernelwright.inline._library import ArgumentError, Library
from kernelwright.inline._load_inline import patch_load_inline
from kernelwright.inline._recording import record_calls
from kernelwright.inline._toolchain import BuildError, compiler_version, header_command

__all__ = [
    "ArgumentError",
    "BuildError",
    "BuildRequest",
    "Library",
    "Parameter",
    "Signature",
    "apply_knobs",
    "build",
    "check_flags",
    "compile_command",
    "compiler_version",
    "cpp",
    "cuda",
    "header_command",
    "parse_signatures",
    "patch_load_inline",
    "record_calls",
    "set_product_provider",
]
