"""``cpp`` and ``cuda``: the calls by which a candidate gets its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from kernelwright.inline._build import BuildRequest, build, check_flags, product_provider
from kernelwright.inline._library import Library
from kernelwright.inline._toolchain import BuildError
from kernelwright.inline._toolchain import cpp as build_and_load


def cpp(
    source: str, *, defines: Mapping[str, int | float | str | bool] | None = None, flags: Sequence[str] = ()
) -> Library:
    """Build C++ source (C++17, ``-O3 -march=native -fopenmp``) and load its ``extern "C"`` functions.

    A function is called with tensors (the address of their data goes over), numbers, ``None`` (a null pointer) and
    ctypes values; each argument is checked against the function's C declaration.

    Args:
        source: C++ text with functions declared ``extern "C"``.
        defines: macros; True and False become 1 and 0.
        flags: more compiler options, out of those that only tune code (``-ffast-math``, ``-mprefer-vector-width=512``).

    Raises:
        BuildError: an option is not allowed, or the compiler failed.
    """
    return build_and_load(source, defines=defines, flags=flags, build=_build_cpp)


def _build_cpp(source: str, flags: tuple[str, ...]) -> str:
    return build(BuildRequest("cpp", source, flags))


def cuda(source: str, name: str, *, flags: Sequence[str] = ()) -> NoReturn:
    """Ask for a CUDA kernel. This version has no CUDA build, so the request is recorded and then refused.

    Raises:
        BuildError: always.
    """
    check_flags(flags)
    provider = product_provider()
    if provider is not None:
        provider(BuildRequest("cuda", source, tuple(flags), name))
    raise BuildError(
        f"cannot build the CUDA kernel {name!r}: there is no CUDA device here, and this version has no build for one; "
        "write the kernel in C++ (kernelwright.inline.cpp) or Triton"
    )
