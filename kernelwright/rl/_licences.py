"""Under which licence the references of a suite are, by its name, as far as that is known."""

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
    """The SPDX name of a suite's licence; :data:`UNKNOWN` where nobody said, such as for single files."""
    return LICENCES.get(suite, UNKNOWN)
