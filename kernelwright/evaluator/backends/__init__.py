"""Where kernels run to be checked, not timed: Triton's interpreter, CUDA's emulator, OpenMP threads that take turns."""

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
from kernelwright.evaluator.backends._cuda_libraries import lacking_library
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
from kernelwright.evaluator.backends._openmp import (
    RUNTIME_OBJECT,
    asks_for_threads,
    lacking,
    runtime_command,
    runtime_files,
    runtime_version,
    unwatched,
    watched_command,
    watched_flags,
)

__all__ = [
    "ARCHITECTURES",
    "MAX_SOURCE_BYTES",
    "RUNTIME_OBJECT",
    "Assembled",
    "EmulatorLibrary",
    "Launch",
    "asks_for_threads",
    "assembly_command",
    "captured_resources",
    "cubin_commands",
    "cuda_part",
    "disassembly",
    "emulated_source",
    "emulator_command",
    "emulator_version",
    "fits",
    "lacking",
    "lacking_library",
    "parse_machine_code",
    "parse_ptxas",
    "resources",
    "runtime_command",
    "runtime_files",
    "runtime_version",
    "unwatched",
    "watched_command",
    "watched_flags",
]
