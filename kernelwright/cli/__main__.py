"""``python -m kernelwright.cli``."""

from __future__ import annotations

from kernelwright.cli._app import main

main()
