"""Winners as files: one Python module per kernel that needs torch and a C++ compiler, and nothing of kernelwright."""

from __future__ import annotations

from kernelwright.export._dispatch import Measured, Route, assign_routes, export_dispatch
from kernelwright.export._file import export_module

__all__ = ["Measured", "Route", "assign_routes", "export_dispatch", "export_module"]
