"""Kernels without a language model: captured graph in, fused C++, Triton or CUDA candidate out.

The capture (``_capture.py``) and TorchInductor's sources (``_inductor.py``, ``_inductor_triton.py``) are worker-side
entries. They import torch and run the problem's code, so the sandbox gets only their names, the constants below. All
other modules read plain data and never import torch.
"""

from __future__ import annotations

from kernelwright.codegen._backends import default_schedule, generate, schedule_space
from kernelwright.codegen._cost import cost
from kernelwright.codegen._file import Generated
from kernelwright.codegen._graph import MOST_OPERATORS, CodegenError, Graph
from kernelwright.codegen._seed import inductor_seed
from kernelwright.codegen._triton_seed import triton_seed

CAPTURE_ENTRY = "kernelwright.codegen._capture:capture_entry"
INDUCTOR_ENTRY = "kernelwright.codegen._inductor:inductor_entry"
INDUCTOR_TRITON_ENTRY = "kernelwright.codegen._inductor_triton:inductor_triton_entry"

__all__ = [
    "CAPTURE_ENTRY",
    "INDUCTOR_ENTRY",
    "INDUCTOR_TRITON_ENTRY",
    "MOST_OPERATORS",
    "CodegenError",
    "Generated",
    "Graph",
    "cost",
    "default_schedule",
    "generate",
    "inductor_seed",
    "schedule_space",
    "triton_seed",
]
