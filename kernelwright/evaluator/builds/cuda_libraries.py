"""Which of NVIDIA's libraries a CUDA source needs that this machine lacks: a build that fails for that says nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["lacking_library"]

# By name: the headers that a source includes, and how the names begin that they declare.
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
_ERRORS = 3  # the first of a compiler's log, by which it is told what is missing


def lacking_library(source: str, log: str, folders: Iterable[str]) -> str:
    """Why a failed build says nothing of a source: a library's header is not here, and that is what the compiler says.

    Args:
        log: what the compiler said. ``folders``: where its headers would be.

    Returns:
        The reason in words; empty where the source itself is at fault.
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
