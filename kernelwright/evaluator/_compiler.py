"""The worker of a torch.compile baseline: the same runner, with the compiler's modules imported beforehand.

A warm sandbox imports this module once and forks from there, which saves some three seconds of each such worker.
"""

from __future__ import annotations

import contextlib
import importlib
import socket

from kernelwright.evaluator._worker import Runner

# What a first torch.compile imports; private names, so whichever of them a version lacks is left out.
_COMPILER_MODULES = (
    "setuptools",
    "torch._dynamo",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._export.passes.collect_tracepoints_pass",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._inductor.codegen.cpp_wrapper_cpu_array_ref",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.halide",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
)
for _name in _COMPILER_MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit or goes away."""
    Runner(sock).serve()
