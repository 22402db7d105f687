"""Winners as files: one Python module per kernel that needs torch and a C++ compiler, and nothing of kernelwright."""

from __future__ import annotations

from kernelwright.export._file import export_module

__all__ = ["export_module"]
