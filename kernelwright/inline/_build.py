"""What a candidate asks to have built, the hook that answers, and the compiler commands that the referee runs.

A candidate that runs in a contestant has no compiler: the worker sets a product provider there, which hands out
libraries that a builder made beforehand. Without a provider everything is built on the spot and cached.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from kernelwright.inline._toolchain import BuildError, build_cached, build_locally, cpp_command

__all__ = [
    "BuildRequest",
    "CudaFlags",
    "ProductProvider",
    "build",
    "check_flags",
    "compile_command",
    "cuda_flags",
    "extension_parts",
    "extension_source_of",
    "fewer_headers",
    "only_build",
    "set_product_provider",
    "torch_header_folders",
    "torch_options",
    "torch_preamble",
    "torch_preamble_command",
    "torch_root",
    "torch_version",
]

Language = Literal["cpp", "cuda", "torch_extension", "torch_cuda_extension"]

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
# Options of an allowed form that load code, read or write files of their own, or need a runtime that a worker lacks.
_REFUSED = re.compile(
    r"-f(plugin|dump|profile|sanitize|use-ld|module|pch|opt-info|offload|callgraph|stack-usage|save-)"
)
# Options of CUDA's compiler that stand before their value as often as they are joined to it.
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

_CUDA_PART = "// -------- the CUDA part --------\n"


@dataclass(frozen=True)
class BuildRequest:
    """One build: the exact source, and the options beyond the language's own.

    ``name`` is the CUDA kernel's or the extension module's name; it is empty for "cpp". The source of a
    "torch_cuda_extension" is a C++ part and a CUDA part; see :func:`extension_source_of` and :func:`extension_parts`.
    """

    language: Language
    source: str
    flags: tuple[str, ...] = ()
    name: str = ""

    @property
    def key(self) -> str:
        """SHA-256 of the request as canonical JSON."""
        content = {"language": self.language, "source": self.source, "flags": self.flags, "name": self.name}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


ProductProvider = Callable[[BuildRequest], str]
_provider: ProductProvider | None = None
_only_builds = False


def set_product_provider(provider: ProductProvider | None) -> None:
    """From now on ask ``provider`` for every library (it returns a path); None goes back to building on the spot."""
    global _provider
    _provider = provider


def only_build() -> None:
    """From now on CUDA products are asked for and not loaded, so that no device is needed. For a worker that builds."""
    global _only_builds
    _only_builds = True


def only_builds() -> bool:
    """Whether CUDA products are only asked for in this process."""
    return _only_builds


def product_provider() -> ProductProvider | None:
    """The provider in force, or None."""
    return _provider


def build(request: BuildRequest) -> str:
    """Path of the library for ``request``: from the provider where one is set, else built here.

    Raises:
        BuildError: an option is not allowed, or the compiler failed; ``log`` holds its output.
    """
    (cuda_flags if "cuda" in request.language else check_flags)(request.flags)
    if _provider is not None:
        return _provider(request)
    if request.language == "cuda":
        from kernelwright.inline._cuda_compiler import build_for_device

        return build_for_device(request.source, request.name, request.flags)
    if request.language == "cpp":
        return build_locally(request.source, request.flags)
    parts = {"language": request.language, "flags": request.flags, "name": request.name}
    return build_cached(parts, request.source, lambda source, out: compile_command(request, out, source))


def check_flags(flags: Sequence[str]) -> None:
    """BuildError unless every option only tunes code generation, warns, defines a macro or links the maths library."""
    for flag in flags:
        if not isinstance(flag, str) or not any(form.fullmatch(flag) for form in _ALLOWED) or _REFUSED.match(flag):
            raise BuildError(
                f"compiler option {flag!r} is not allowed: use -O, -f, -m, -D, -std, -W options and -lm, -lmvec, -lgomp"
            )


def extension_source_of(cpp_part: str, cuda_part: str) -> str:
    """The source of a "torch_cuda_extension"."""
    return cpp_part + _CUDA_PART + cuda_part


def extension_parts(source: str) -> tuple[str, str]:
    """C++ part and CUDA part of such a source."""
    cpp_part, _, cuda_part = source.partition(_CUDA_PART)
    return cpp_part, cuda_part


class CudaFlags(NamedTuple):
    """Options of CUDA's compiler, sorted by what is done with them.

    Attributes:
        kept: those that tune code generation or define a macro.
        told: those that only print, warn, add debugging information or tune the host code, which only launches; they
            are left out.
        replaced: those that name a device; the referee's own counts.
    """

    kept: tuple[str, ...]
    told: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


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
            raise BuildError(f"option {flag!r} of the CUDA compiler is no text")
        words += [flag] if flag.startswith("-D") and len(flag) > 2 else flag.split()
    found: list[str] = []
    while words:
        word = words.pop(0)
        if words and _WITH_VALUE.fullmatch(word):
            word += ("" if word in ("-D", "-U") else "=") + words.pop(0)
        found.append(word)
    return found


def compile_command(request: BuildRequest, out_path: str, source_path: str, *, fewer: bool = False) -> list[str]:
    """The C++ compiler's arguments for a request; needs neither torch imported nor any part of the candidate run.

    ``fewer``: let ``torch/extension.h`` be our own, which takes in what extensions mostly need.

    Raises:
        BuildError: an option is not allowed, the extension's name is no identifier, or the language needs a device.
    """
    if "cuda" in request.language:
        raise BuildError("outside of the referee CUDA sources of an extension are built by torch's own load_inline")
    check_flags(request.flags)
    if request.language == "cpp":
        return cpp_command("g++", request.flags, source_path, out_path)
    if not request.name.isidentifier():
        raise BuildError(f"the extension's name {request.name!r} is not an identifier")
    root = torch_root()
    libraries = [flag for flag in request.flags if flag.startswith("-l")]
    return [
        *torch_options(request.flags, fewer=fewer),
        *("-shared", f"-DTORCH_EXTENSION_NAME={request.name}"),
        *("-o", out_path, source_path, f"-L{root}/lib", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        *libraries,
    ]


def torch_options(flags: Sequence[str], *, fewer: bool) -> list[str]:
    """The C++ compiler and its options for code that includes torch's headers; see :func:`compile_command`."""
    options = [flag for flag in flags if not flag.startswith("-l")]
    ours = [f"-I{fewer_headers('cpp')}"] if fewer else []
    folders = [f"-isystem{path}" for path in torch_header_folders()]
    return ["g++", *_TORCH_FLAGS, *options, *_TORCH_MACROS, *ours, *folders]


def fewer_headers(kind: Literal["cpp", "cuda"]) -> Path:
    """The folder of our own headers that stand for torch's, in C++ or in CUDA sources."""
    return Path(__file__).with_name("torch_headers") / kind


def torch_preamble() -> str:
    """What the C++ source of an extension begins with, and what is precompiled for it."""
    return "#include <torch/extension.h>\n"


def torch_preamble_command(flags: Sequence[str], header: str, out: str) -> list[str]:
    """The command that precompiles a header of torch's for sources with ``flags``, which are to be read after it."""
    options = [flag for flag in flags if not flag.startswith("-D")]
    return [*torch_options(options, fewer=True), "-x", "c++-header", "-o", out, header]


def torch_version() -> str:
    """The version of torch that is installed, without importing it."""
    return importlib.metadata.version("torch")


def torch_header_folders() -> list[str]:
    """Folders with torch's headers and Python's; BuildError where torch is missing."""
    root = torch_root()
    return [f"{root}/include", f"{root}/include/torch/csrc/api/include", sysconfig.get_paths()["include"]]


@functools.lru_cache(maxsize=1)
def torch_root() -> str:
    """The folder of the torch package; BuildError where it is missing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("torch is not installed in this interpreter, so its headers are missing: pip install torch")
    return spec.submodule_search_locations[0]
