"""The worker of a torch.compile baseline: the same runner, with the compiler's modules imported beforehand.

A warm sandbox imports this module once and forks workers from there. That saves each worker some four seconds: the
imports, and half a second in which the compiler hashes its own files for the keys of its caches.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from typing import Any

from kernelwright.evaluator.builds.referee_code import compiler_takes
from kernelwright.evaluator.worker.device_runner import DeviceRunner
from kernelwright.evaluator.worker.runner import Runner

# The modules that a first torch.compile imports. Their names are private; those that a version lacks are left out.
_COMPILER_MODULES = (
    "setuptools",
    "torch._dynamo",
    "torch._dynamo.backends.cudagraphs",
    "torch._dynamo.backends.distributed",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.backends.onnxrt",
    "torch._dynamo.backends.tensorrt",
    "torch._dynamo.backends.torchxla",
    "torch._dynamo.backends.tvm",
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._export.passes.collect_tracepoints_pass",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.codegen.cpp_wrapper_cpu_array_ref",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.halide",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.mps",
    "torch._inductor.codegen.pallas",
    "torch._inductor.codegen.python_wrapper_mtia",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.codegen.xpu.xpu_combined_scheduling",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch._inductor.hooks",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
)
_ASKS_THE_DRIVER = "torch.utils.cpp_extension"  # for its devices, where there are some: then no fork could use them
for _name in _COMPILER_MODULES:
    if _name == _ASKS_THE_DRIVER and "PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ:
        continue
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)


def hash_files() -> None:
    """Let the compiler hash its own files and Triton's now. It keeps the hashes, and forks inherit them."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        from torch._inductor import codecache

        codecache.torch_key()
        codecache.triton_key()


def ask_for_flags() -> None:
    """Replace Inductor's trial builds for instruction sets, 0.4 s each. It asks the processor before them anyway."""
    with contextlib.suppress(ImportError, AttributeError):
        from torch._inductor import cpu_vec_isa

        def check_build(isa: Any, _code: str) -> bool:
            return compiler_takes(isa.build_arch_flags())

        cpu_vec_isa.VecISA.check_build = check_build


hash_files()


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit or goes away."""
    ask_for_flags()
    Runner(sock).serve()


def main_on_device(sock: socket.socket) -> None:
    """As :func:`main`, for a worker that computes on a device."""
    ask_for_flags()
    DeviceRunner(sock).serve()
