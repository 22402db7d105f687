"""The known licences of suites' references, by the name of the suite."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["LICENCES", "UNKNOWN", "licence_of"]

UNKNOWN: Final = "unknown"
# SPDX names, as the projects' own licence files and dataset cards have them.
LICENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kernelwright": "Apache-2.0",
        "KernelBench": "MIT",
        "MultiKernelBench": "MIT",
        "robust-kbench": "Apache-2.0",
        "flashinfer-trace": "Apache-2.0",
    }
)


def licence_of(suite: str) -> str:
    """The SPDX name of a suite's licence; :data:`UNKNOWN` if it is not known, as for single files."""
    return LICENCES.get(suite, UNKNOWN)
