"""Entries of sandboxed workers that run a problem.

Their imports happen after a worker is forked, not in the process that forks it. They include Triton, which decides at
import whether it interprets.
"""

from __future__ import annotations

from typing import Any


def lint(payload: dict[str, Any]) -> dict[str, Any]:
    """Run the problem and look for weaknesses; see ``_lint_worker``."""
    from kernelwright.datasets import _lint_worker

    return _lint_worker.lint(payload)


def fit(payload: dict[str, Any]) -> dict[str, Any]:
    """Find smaller sizes for a problem; see ``_fit_worker``."""
    from kernelwright.datasets import _fit_worker

    return _fit_worker.fit(payload)
