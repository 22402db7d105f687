"""Compiles CUDA source to machine code by NVRTC, as a program of its own.

    python -m kernelwright.inline._nvrtc SOURCE OUT ARCHITECTURE NAME [OPTION...]

NVRTC comes with the package nvidia-cuda-nvrtc or with CUDA's toolkit. Writes the cubin to OUT and what the compiler
says to standard error; ends with 1 where the source does not compile. The arguments of NVRTC's functions are those of
its manual (https://docs.nvidia.com/cuda/nvrtc/).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelwright.inline._cuda_compiler import find_nvrtc, header_folders


class _Nvrtc:
    """One program of NVRTC."""

    def __init__(self, library: ctypes.CDLL, source: bytes, name: str) -> None:
        self._library = library
        self._program = ctypes.c_void_p()
        self._expression = name.encode() if "<" in name else b""
        made = library.nvrtcCreateProgram(ctypes.byref(self._program), source, b"kernel.cu", 0, None, None)
        if made:
            raise RuntimeError(f"NVRTC cannot make a program (error {made})")
        if self._expression:
            library.nvrtcAddNameExpression(self._program, self._expression)

    def compile(self, options: Sequence[str]) -> tuple[bool, str]:
        """Whether it compiles, and what NVRTC says."""
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


def main(arguments: Sequence[str]) -> int:
    """See the module's text."""
    source, out, architecture, name, *options = arguments
    path = find_nvrtc()
    if path is None:
        sys.stderr.write("NVRTC is missing: pip install nvidia-cuda-nvrtc\n")
        return 127
    program = _Nvrtc(ctypes.CDLL(path), Path(source).read_bytes(), name)
    includes = [f"-I{folder}" for folder in header_folders()]
    right, log = program.compile([f"--gpu-architecture={architecture}", "--std=c++17", *includes, *options])
    sys.stderr.write(log.strip("\0"))
    if right:
        Path(out).write_bytes(program.cubin())
    return int(not right)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
