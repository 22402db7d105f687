"""``cpp``: builds the C++ kernels of a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelwright.inline._library import Library
from kernelwright.inline.requests import BuildRequest, build
from kernelwright.inline.toolchain import cpp as build_and_load


def cpp(
    source: str, *, defines: Mapping[str, int | float | str | bool] | None = None, flags: Sequence[str] = ()
) -> Library:
    """Build C++ source (C++17, ``-O3 -march=native -fopenmp``) and load its ``extern "C"`` functions.

    A function is called with tensors (passed as the address of their data), numbers, ``None`` (a null pointer) and
    ctypes values. Each argument is checked against the function's C declaration.

    Args:
        source: C++ text with functions declared ``extern "C"``.
        defines: macros; True and False become 1 and 0.
        flags: more compiler options; only those that tune code (``-ffast-math``, ``-mprefer-vector-width=512``).

    Raises:
        BuildError: an option is not allowed, or the compiler failed.
    """
    return build_and_load(source, defines=defines, flags=flags, build=_build_cpp)


def _build_cpp(source: str, flags: tuple[str, ...]) -> str:
    return build(BuildRequest("cpp", source, flags))
