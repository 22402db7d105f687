"""Kernels without a language model: captured graph in, fused C++ or Triton candidate out.

The capture (``_capture.py``) and TorchInductor's sources (``_inductor.py``) are worker-side entries: they import torch
and run the problem's code, so they are named to the sandbox as ``kernelwright.codegen._capture:capture_entry`` and
``kernelwright.codegen._inductor:inductor_entry``. All the rest reads plain data and never imports torch.
"""

from __future__ import annotations

from kernelwright.codegen._backends import default_schedule, generate, schedule_space
from kernelwright.codegen._cost import cost
from kernelwright.codegen._file import Generated
from kernelwright.codegen._graph import CodegenError, Graph
from kernelwright.codegen._seed import inductor_seed

CAPTURE_ENTRY = "kernelwright.codegen._capture:capture_entry"
INDUCTOR_ENTRY = "kernelwright.codegen._inductor:inductor_entry"

__all__ = [
    "CAPTURE_ENTRY",
    "INDUCTOR_ENTRY",
    "CodegenError",
    "Generated",
    "Graph",
    "cost",
    "default_schedule",
    "generate",
    "inductor_seed",
    "schedule_space",
]
