"""Where kernels of a GPU are checked without one: Triton's interpreter, and an emulator for CUDA."""

from __future__ import annotations

from kernelwright.evaluator.backends._cuda_emulation import (
    MAX_SOURCE_BYTES,
    EmulatorLibrary,
    cubin_commands,
    cuda_part,
    disassembly,
    emulated_source,
    emulator_command,
    emulator_version,
)
from kernelwright.evaluator.backends._gpu_resources import (
    ARCHITECTURES,
    Launch,
    parse_machine_code,
    parse_ptxas,
    resources,
)

__all__ = [
    "ARCHITECTURES",
    "MAX_SOURCE_BYTES",
    "EmulatorLibrary",
    "Launch",
    "cubin_commands",
    "cuda_part",
    "disassembly",
    "emulated_source",
    "emulator_command",
    "emulator_version",
    "parse_machine_code",
    "parse_ptxas",
    "resources",
]
