"""Problems: the contract of a problem file, its lint, the built-in suites, and the capture of any ``nn.Module``.

The trusted process only parses problem files (``ast``). Sandboxed workers run them, with
``kernelwright.datasets.runtime``. Names load on first use, so that a worker does not import the trusted side.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.datasets._capture import capture_module, problem_from_module
    from kernelwright.datasets._contract import parse_problem
    from kernelwright.datasets._findings import LintFinding
    from kernelwright.datasets._fit import fitted, smaller_sizes
    from kernelwright.datasets._hub import HUB_REPOSITORY, fetch_kernelbench
    from kernelwright.datasets._lint import lint, lint_rules, lint_static, lint_summary
    from kernelwright.datasets._lint_records import LintRecords
    from kernelwright.datasets._operators import operator_category, operators_of
    from kernelwright.datasets._sizes import parse_sizes, with_sizes
    from kernelwright.datasets._suites import Suite, UnreadableProblem, find_problem, load_suite, suites
    from kernelwright.datasets._values import ITEM_BYTES, MAX_DIMENSIONS, MAX_OUTPUTS
    from kernelwright.datasets._variants import choose_variant, every_variant, no_variant
    from kernelwright.datasets.loaders import workload_of

__all__ = [
    "HUB_REPOSITORY",
    "ITEM_BYTES",
    "MAX_DIMENSIONS",
    "MAX_OUTPUTS",
    "TOO_SMALL",
    "LintFinding",
    "LintRecords",
    "Suite",
    "UnreadableProblem",
    "capture_module",
    "choose_variant",
    "every_variant",
    "fetch_kernelbench",
    "find_problem",
    "fitted",
    "lint",
    "lint_rules",
    "lint_static",
    "lint_summary",
    "load_suite",
    "no_variant",
    "operator_category",
    "operators_of",
    "parse_problem",
    "parse_sizes",
    "problem_from_module",
    "smaller_sizes",
    "suites",
    "with_sizes",
    "workload_of",
]

_HOMES = {
    "_capture": (
        "capture_module",
        "problem_from_module",
    ),
    "_contract": ("parse_problem",),
    "_findings": (
        "TOO_SMALL",
        "LintFinding",
    ),
    "_fit": (
        "fitted",
        "smaller_sizes",
    ),
    "_hub": (
        "HUB_REPOSITORY",
        "fetch_kernelbench",
    ),
    "_lint": (
        "lint",
        "lint_rules",
        "lint_static",
        "lint_summary",
    ),
    "_lint_records": ("LintRecords",),
    "_operators": (
        "operator_category",
        "operators_of",
    ),
    "_sizes": (
        "parse_sizes",
        "with_sizes",
    ),
    "_suites": (
        "Suite",
        "UnreadableProblem",
        "find_problem",
        "load_suite",
        "suites",
    ),
    "_values": (
        "MAX_DIMENSIONS",
        "MAX_OUTPUTS",
        "ITEM_BYTES",
    ),
    "_variants": (
        "choose_variant",
        "every_variant",
        "no_variant",
    ),
    "loaders": ("workload_of",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
