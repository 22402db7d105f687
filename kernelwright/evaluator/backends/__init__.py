"""Where kernels of a GPU are checked without one: Triton's interpreter, and an emulator for CUDA."""

from __future__ import annotations

from kernelwright.evaluator.backends._cuda_emulation import (
    MAX_SOURCE_BYTES,
    EmulatorLibrary,
    cubin_commands,
    cuda_part,
    emulated_source,
    emulator_command,
    emulator_version,
)

__all__ = [
    "MAX_SOURCE_BYTES",
    "EmulatorLibrary",
    "cubin_commands",
    "cuda_part",
    "emulated_source",
    "emulator_command",
    "emulator_version",
]
