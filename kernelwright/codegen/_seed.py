"""TorchInductor's own kernels for a problem, as a candidate file (worker-side half: ``_inductor.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._generate import Generated
from kernelwright.codegen._graph import Graph


def inductor_seed(graph: Graph, payload: Mapping[str, Any]) -> Generated | None:
    return None
