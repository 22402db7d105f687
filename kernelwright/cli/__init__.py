"""The command line. ``main`` is the console script; ``cli`` is the Click group, for tests and for completion."""

from __future__ import annotations

from kernelwright.cli._app import cli, main

__all__ = ["cli", "main"]
