"""Triton kernels checked without a GPU: the interpreter, corrected, and ``cuda`` mapped to the CPU.

Worker side only. Call ``install()`` before anything imports Triton, then import and run the candidate inside
``cuda_as_cpu()``. What is checked is the result, for the shapes given and the first autotune configuration. Programs
run one after another, in an order that changes from call to call; how fast anything is cannot be seen here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from kernelwright.evaluator.worker.triton.faults import NotCheckable, OutOfBounds

__all__ = ["NotCheckable", "OutOfBounds", "count_launches", "cuda_as_cpu", "idle", "install", "next_order"]

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
    from kernelwright.evaluator.worker.triton import patches

    patches.apply(round_tf32=round_tf32)
    _installed = True


@contextlib.contextmanager
def cuda_as_cpu() -> Iterator[None]:
    """Within it, code written for a CUDA device runs on CPU tensors: device arguments, ``.cuda()``, ``torch.cuda``."""
    from kernelwright.datasets.runtime import pretended_device

    with pretended_device():
        yield


@contextlib.contextmanager
def count_launches() -> Iterator[list[int]]:
    """While active, the first number of the list that this yields is how many kernels were launched."""
    from triton.runtime import interpreter as engine

    count, launch = [0], engine.GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return launch(self, *args, **kwargs)

    engine.GridExecutor.__call__ = counted
    try:
        yield count
    finally:
        engine.GridExecutor.__call__ = launch


def next_order() -> None:
    """Programs run in another order from now on: ascending, descending and shuffled ones, in turn."""
    from kernelwright.evaluator.worker.triton import programs

    programs.next_order()


def idle() -> None:
    """From now on a launch does nothing: what a candidate answers then, it owes to something else."""
    from triton.runtime import interpreter as engine

    engine.GridExecutor.__call__ = lambda self, *args, **kwargs: None
