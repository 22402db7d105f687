"""Chooses the emitter and the schedule space of a backend."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.codegen import _cuda_schedule, _schedule, _triton_schedule
from kernelwright.codegen._cuda_generate import generate_cuda
from kernelwright.codegen._file import Generated
from kernelwright.codegen._generate import generate_cpp
from kernelwright.codegen._graph import CodegenError, Graph
from kernelwright.codegen._triton_generate import generate_triton
from kernelwright.records import KnobValue

_EMITTERS = {"cpp": generate_cpp, "triton": generate_triton, "cuda": generate_cuda}
_SCHEDULES = {"cpp": _schedule, "triton": _triton_schedule, "cuda": _cuda_schedule}


def generate(graph: Graph, schedule: Mapping[str, KnobValue] | None = None, *, backend: str = "cpp") -> Generated:
    """Write a candidate file.

    Args:
        graph: the captured problem. Kernels are made for the captured shapes. So a Triton or CUDA candidate needs a
            graph with the problem's ``gpu`` and ``interpreter`` variants.
        schedule: choices from :func:`schedule_space`. A missing choice has its default.
        backend: ``cpp``, ``triton`` or ``cuda``.

    Raises:
        CodegenError: the schedule has an unknown choice, the graph has no candidate, or there is no such backend.
    """
    return _EMITTERS[_known(backend)](graph, schedule)


def schedule_space(graph: Graph, *, backend: str = "cpp") -> dict[str, list[KnobValue]]:
    """The choices of a graph and their values, the default first in each."""
    schedule = _SCHEDULES[_known(backend)]
    choices = schedule.choices(graph)
    return {name: list(choices[name]) for name in schedule.relevant(graph)}


def default_schedule(graph: Graph, *, backend: str = "cpp") -> dict[str, KnobValue]:
    """The first schedule to try."""
    return {name: values[0] for name, values in schedule_space(graph, backend=backend).items()}


def _known(backend: str) -> str:
    if backend not in _EMITTERS:
        raise CodegenError(f"no generator for {backend}", hint=f"there is one for {' and '.join(_EMITTERS)}")
    return backend
