"""Compiles CUDA source to machine code with NVRTC, as a program with the arguments

    SOURCE OUT ARCHITECTURE NAME [OPTION...]

It writes the cubin to OUT and the compiler's log to standard error. It exits with 1 if the source does not compile.
NVRTC comes with the package nvidia-cuda-nvrtc or with CUDA's toolkit. Its manual describes the functions that are
called here (https://docs.nvidia.com/cuda/nvrtc/).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelwright.inline.cuda_toolchain import find_nvrtc, header_folders

# Names that kernels use from headers of the C library, which NVRTC lacks. The types match CUDA's own headers.
_PRELUDE = b"""
#pragma once
#define HUGE_VAL __builtin_bit_cast(double, 0x7ff0000000000000ull)
#define HUGE_VALF __builtin_bit_cast(float, 0x7f800000u)
#define INFINITY HUGE_VALF
#define NAN __builtin_bit_cast(float, 0x7fc00000u)
#define FLT_MAX 3.40282346638528859811704183484516925e+38f
#define FLT_MIN 1.17549435082228750796873653722224568e-38f
#define FLT_EPSILON 1.19209289550781250000000000000000000e-7f
#define DBL_MAX 1.79769313486231570814527423731704357e+308
#define DBL_MIN 2.22507385850720138309023271733240406e-308
#define DBL_EPSILON 2.22044604925031308084726333618164062e-16
#define CHAR_BIT 8
#define INT8_MAX 127
#define INT8_MIN (-128)
#define UINT8_MAX 255
#define INT16_MAX 32767
#define INT16_MIN (-32768)
#define UINT16_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define UINT32_MAX UINT_MAX
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-9223372036854775807ll - 1)
#define ULLONG_MAX 18446744073709551615ull
#define INT64_MAX LLONG_MAX
#define INT64_MIN LLONG_MIN
#define UINT64_MAX ULLONG_MAX
#define M_PI 3.14159265358979323846
#define M_E 2.7182818284590452354
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_LOG2E 1.4426950408889634074
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
"""
_PRELUDE_NAME = "kw_prelude.h"
_C_HEADERS = ("math", "float", "limits", "stdint", "stddef", "stdio", "stdlib", "string")


class _Nvrtc:
    """One program of NVRTC."""

    def __init__(self, library: ctypes.CDLL, source: bytes, name: str) -> None:
        self._library = library
        self._program = ctypes.c_void_p()
        self._expression = name.encode() if "<" in name else b""
        names = [_PRELUDE_NAME, *(f"{name}.h" for name in _C_HEADERS), *(f"c{name}" for name in _C_HEADERS)]
        array = ctypes.c_char_p * len(names)
        texts = array(_PRELUDE, *([b""] * (len(names) - 1)))
        called = array(*(name.encode() for name in names))
        made = library.nvrtcCreateProgram(ctypes.byref(self._program), source, b"kernel.cu", len(names), texts, called)
        if made:
            raise RuntimeError(f"NVRTC cannot make a program (error {made})")
        if self._expression:
            library.nvrtcAddNameExpression(self._program, self._expression)

    def compile(self, options: Sequence[str]) -> tuple[bool, str]:
        """Whether the program compiles, and NVRTC's log."""
        encoded = [option.encode() for option in options]
        failed = self._library.nvrtcCompileProgram(
            self._program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)
        )
        return not failed, self._text("ProgramLog").decode(errors="replace")

    def cubin(self) -> bytes:
        """The machine code."""
        return self._text("CUBIN")

    def _text(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(self._program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value + 1)
        getattr(self._library, f"nvrtcGet{what}")(self._program, buffer)
        return buffer.raw[: size.value]


def _loaded(path: Path) -> ctypes.CDLL:
    """Load NVRTC. Its built-ins are loaded first, since NVRTC asks the loader for them by name alone."""
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*")):
        if ".alt." not in builtins.name:
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def main(arguments: Sequence[str]) -> int:
    """Run the program that the module's docstring describes; returns the exit status."""
    source, out, architecture, name, *options = arguments
    path = find_nvrtc()
    if path is None:
        sys.stderr.write("NVRTC is missing: pip install nvidia-cuda-nvrtc\n")
        return 127
    program = _Nvrtc(_loaded(Path(path)), Path(source).read_bytes(), name)
    includes = [f"-I{folder}" for folder in header_folders()]
    fixed = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        f"--pre-include={_PRELUDE_NAME}",
        "--diag-suppress=47",
    ]
    right, log = program.compile([*fixed, *includes, *options])
    sys.stderr.write(log.strip("\0"))
    if right:
        Path(out).write_bytes(program.cubin())
    return int(not right)
