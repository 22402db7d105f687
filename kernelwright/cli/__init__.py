"""The command line. ``main`` is the console script; ``cli`` is the Click group, for tests and for completion.

``optimize`` is :func:`kernelwright.campaign.optimize` with a run's progress on standard error.
"""

from __future__ import annotations

from kernelwright.cli._app import cli, main
from kernelwright.cli._interactive import optimize

__all__ = ["cli", "main", "optimize"]
