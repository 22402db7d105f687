"""Finds the NVIDIA library that a failed CUDA build lacks on this machine. The source is then not at fault."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["lacking_library"]

# By name: the library's headers, and the prefixes of the names that they declare.
_LIBRARIES = {
    "cuBLAS": (r"cublas\w*\.h(?:pp)?", "cublas"),
    "cuDNN": (r"cudnn\w*\.h", "cudnn"),
    "CUTLASS": (r"(?:cutlass|cute)/[\w./]+", "cutlass|cute"),
    "cuRAND": (r"curand\w*\.h", "curand"),
    "cuSPARSE": (r"cusparse\w*\.h", "cusparse"),
    "cuSOLVER": (r"cusolver\w*\.h", "cusolver"),
    "cuFFT": (r"cufft\w*\.h", "cufft"),
    "NCCL": (r"nccl\w*\.h", "nccl"),
    "CUB or Thrust": (r"(?:cub|thrust)/[\w./]+", "cub|thrust"),
    "ThunderKittens": (r"kittens\.cuh", "kittens"),
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_ERRORS = 3  # first errors of a compiler's log, which show what is missing


def lacking_library(source: str, log: str, folders: Iterable[str]) -> str:
    """Why a build failed, if the cause is a library whose header this machine lacks.

    Args:
        log: the compiler's messages. ``folders``: where the library's headers would be.

    Returns:
        The reason in words; empty if the source itself is at fault.
    """
    roots = [Path(folder) for folder in folders]
    errors = "\n".join([line for line in log.splitlines() if "error" in line][:_ERRORS])
    for header in _INCLUDE.findall(_COMMENT.sub(" ", source)):
        for library, (headers, names) in _LIBRARIES.items():
            if not re.fullmatch(headers, header) or any((root / header).exists() for root in roots):
                continue
            if header in errors or re.search(rf"\b(?:{names})", errors, re.IGNORECASE):
                return f"it needs {header} ({library}), which this machine lacks"
    return ""
