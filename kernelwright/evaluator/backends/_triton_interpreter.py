"""Triton kernels checked without a GPU: the interpreter, corrected, and ``cuda`` mapped to the CPU.

Worker side only. Call ``install()`` before anything imports Triton, then import and run the candidate inside
``cuda_as_cpu()``. What is checked is the result, for the shapes given and the first autotune configuration; races
between programs, and how fast anything is, cannot be seen here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from kernelwright.evaluator.backends._triton_faults import NotCheckable, OutOfBounds

__all__ = ["NotCheckable", "OutOfBounds", "cuda_as_cpu", "idle", "install"]

_installed = False


def install(*, round_tf32: bool = True) -> None:
    """Switch Triton to the interpreter and correct it. Calling it again changes nothing.

    Args:
        round_tf32: compute ``tl.dot`` on float32 as the device does where a kernel does not ask for
            ``input_precision="ieee"``: with operands rounded to TF32.

    Raises:
        RuntimeError: Triton was imported before, so its own library functions are compiled ones already.
    """
    global _installed
    if _installed:
        return
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("install() must come before triton is imported: start a fresh process")
    os.environ["TRITON_INTERPRET"] = "1"
    from kernelwright.evaluator.backends import _triton_patches

    _triton_patches.apply(round_tf32=round_tf32)
    _installed = True


@contextlib.contextmanager
def cuda_as_cpu() -> Iterator[None]:
    """Within it, code written for a CUDA device runs on CPU tensors: device arguments, ``.cuda()``, ``torch.cuda``."""
    from kernelwright.evaluator.backends._triton_device import pretended_device

    with pretended_device():
        yield


def idle() -> None:
    """From now on a launch does nothing: what a candidate answers then, it owes to something else."""
    from triton.runtime import interpreter as engine

    engine.GridExecutor.__call__ = lambda self, *args, **kwargs: None
