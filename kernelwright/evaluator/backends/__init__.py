"""Where kernels of a GPU are checked without one: Triton's interpreter, and an emulator for CUDA."""

from __future__ import annotations

from kernelwright.evaluator.backends._cuda_emulation import (
    MAX_SOURCE_BYTES,
    EmulatorLibrary,
    assembly_command,
    cubin_commands,
    cuda_part,
    disassembly,
    emulated_source,
    emulator_command,
    emulator_version,
)
from kernelwright.evaluator.backends._gpu_resources import (
    ARCHITECTURES,
    Assembled,
    Launch,
    captured_resources,
    fits,
    parse_machine_code,
    parse_ptxas,
    resources,
)

__all__ = [
    "ARCHITECTURES",
    "MAX_SOURCE_BYTES",
    "Assembled",
    "EmulatorLibrary",
    "Launch",
    "assembly_command",
    "captured_resources",
    "cubin_commands",
    "cuda_part",
    "disassembly",
    "emulated_source",
    "emulator_command",
    "emulator_version",
    "fits",
    "parse_machine_code",
    "parse_ptxas",
    "resources",
]
