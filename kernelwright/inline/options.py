"""Compiler options for kernels: the allowed ones, and those that torch needs."""

from __future__ import annotations

import functools
import importlib.util
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from kernelwright.inline.toolchain import BuildError

_ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        r"-O[0-3sg]?|-Ofast",
        r"-fPIC|-f[a-z][a-z0-9-]*(=[a-z0-9.+-]+)?",
        r"-m[a-z0-9][a-z0-9.+-]*(=[a-z0-9.,+-]+)?",
        r"-D[A-Za-z_]\w*(=[^\0\n]{0,4096})?",
        r"-std=(c|gnu)\+\+[0-9a-z]{2}",
        r"-l(m|mvec|gomp)",
        r"-W[a-z][a-z0-9+-]*(=[0-9]+)?|-w|-pedantic|-pthread|-g[0-3]?",
    )
)
# Options of an allowed form that are refused: they load code, read or write files, or need a runtime no worker has.
_REFUSED = re.compile(
    r"-f(plugin|dump|profile|sanitize|use-ld|module|pch|opt-info|offload|callgraph|stack-usage|save-)"
)
# Options of CUDA's compiler whose value may be joined to them or follow as the next word.
_WITH_VALUE = re.compile(
    r"-Xptxas|--ptxas-options|-Xcompiler|--compiler-options|-gencode|--generate-code|-arch|--gpu-architecture|-code|"
    r"--gpu-code|-Xcudafe|-diag-suppress|--diag-suppress|--?std|--?maxrregcount|--?threads|-t|-D|-U|-O|--optimize"
)
_ONLY_TELLS = re.compile(
    r"-v|--verbose|-w|--disable-warnings|-W[a-z][a-z0-9=+-]*|-g|-lineinfo|--generate-line-info|"
    r"-res-usage|--resource-usage|(-Xptxas|--ptxas-options)=(-v|--verbose|-w|--?warn-[a-z-]+)|"
    r"(-Xcudafe|-diag-suppress|--diag-suppress)=[a-z0-9_=,-]+"
)
_OF_DEVICE = re.compile(
    r"(-arch|--gpu-architecture|-gencode|--generate-code|-code|--gpu-code)=[A-Za-z0-9_=,\[\]\"' -]+"
)
_ALLOWED_FOR_CUDA = tuple(
    re.compile(pattern)
    for pattern in (
        r"-O=?[0-3]|-G",
        r"--?use_fast_math|--?ftz=(true|false)|--?prec-(div|sqrt)=(true|false)|--?fmad=(true|false)",
        r"--?maxrregcount=[0-9]+|--expt-relaxed-constexpr|--expt-extended-lambda|--extra-device-vectorization",
        r"--?std=c\+\+[0-9]{2}|--?threads=?[0-9]+|-t=?[0-9]+",
        r"-D[A-Za-z_]\w*(=[^\0\n]{0,4096})?|-U[A-Za-z_]\w*",
        r"(-Xptxas|--ptxas-options)=?-(O[0-3]|dlcm=c[agsv]|-?allow-expensive-optimizations=(true|false))",
    )
)
_TORCH_FLAGS = ("-std=c++20", "-O3", "-march=native", "-fopenmp", "-fPIC")
_TORCH_MACROS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "-DTORCH_API_INCLUDE_EXTENSION_H")


def cuda_flags(flags: Sequence[str]) -> CudaFlags:
    """Sort the options of CUDA's compiler.

    Raises:
        BuildError: one of them reaches outside of the kernel, or is unknown.
    """
    kept, told, replaced = [], [], []
    for flag in _joined(flags):
        if _ONLY_TELLS.fullmatch(flag) or _tunes_host_code(flag):
            told.append(flag)
        elif _OF_DEVICE.fullmatch(flag):
            replaced.append(flag)
        elif any(form.fullmatch(flag) for form in _ALLOWED_FOR_CUDA):
            kept.append(flag)
        else:
            raise BuildError(
                f"option {flag!r} of the CUDA compiler is not allowed: use -O, -D, -std, -use_fast_math, "
                "-maxrregcount, --expt-relaxed-constexpr, --expt-extended-lambda and the like"
            )
    return CudaFlags(*(tuple(dict.fromkeys(found)) for found in (kept, told, replaced)))


def torch_options(flags: Sequence[str], *, fewer: bool) -> list[str]:
    """The C++ compiler and its options for code that includes torch's headers; see :func:`compile_command`."""
    options = [flag for flag in flags if not flag.startswith("-l")]
    ours = [f"-I{fewer_headers('cpp')}"] if fewer else []
    folders = [f"-isystem{path}" for path in torch_header_folders()]
    return ["g++", *_TORCH_FLAGS, *options, *_TORCH_MACROS, *ours, *folders]


def fewer_headers(kind: Literal["cpp", "cuda"]) -> Path:
    """The folder of our own headers that replace torch's, in C++ or in CUDA sources."""
    return Path(__file__).with_name("torch_headers") / kind


def torch_header_folders() -> list[str]:
    """Folders with torch's headers and Python's. Raises BuildError if torch is missing."""
    root = torch_root()
    return [f"{root}/include", f"{root}/include/torch/csrc/api/include", sysconfig.get_paths()["include"]]


@functools.lru_cache(maxsize=1)
def torch_root() -> str:
    """The folder of the torch package. Raises BuildError if it is missing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("torch is not installed in this interpreter, so its headers are missing: pip install torch")
    return spec.submodule_search_locations[0]


def check_flags(flags: Sequence[str]) -> None:
    """Raise BuildError unless all options only tune code, warn, define macros or link the maths or OpenMP library."""
    for flag in flags:
        if not isinstance(flag, str) or not any(form.fullmatch(flag) for form in _ALLOWED) or _REFUSED.match(flag):
            raise BuildError(
                f"compiler option {flag!r} is not allowed: use -O, -f, -m, -D, -std, -W options and -lm, -lmvec, -lgomp"
            )


class CudaFlags(NamedTuple):
    """Options of CUDA's compiler, sorted by how they are treated.

    Attributes:
        kept: options that tune code generation or define a macro.
        told: options that only print, warn, add debugging information, or tune the host code (which only launches).
            They are left out.
        replaced: options that name a device. The referee's own device replaces it.
    """

    kept: tuple[str, ...]
    told: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


def _tunes_host_code(flag: str) -> bool:
    head, _, options = flag.partition("=")
    if head not in ("-Xcompiler", "--compiler-options") or not options:
        return False
    try:
        check_flags(options.strip("\"'").split(","))
    except BuildError:
        return False
    return True


def _joined(flags: Sequence[str]) -> list[str]:
    """The options one by one, each joined to its value: ``-Xptxas -v`` is ``-Xptxas=-v``."""
    words: list[str] = []
    for flag in flags:
        if not isinstance(flag, str):
            raise BuildError(f"option {flag!r} of the CUDA compiler is not text")
        words += [flag] if flag.startswith("-D") and len(flag) > 2 else flag.split()
    found: list[str] = []
    while words:
        word = words.pop(0)
        if words and _WITH_VALUE.fullmatch(word):
            word += ("" if word in ("-D", "-U") else "=") + words.pop(0)
        found.append(word)
    return found
