"""Build requests of candidates, the hook that answers them, and the compiler commands that the referee runs.

A candidate that runs in a contestant process has no compiler. There, the worker sets a product provider, which returns
libraries that a builder made beforehand. Without a provider, libraries are built in this process and cached.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.inline.options import check_flags, cuda_flags, torch_options, torch_root
from kernelwright.inline.toolchain import BuildError, build_cached, build_locally, cpp_command

__all__ = [
    "BuildRequest",
    "ProductProvider",
    "build",
    "check_flags",
    "compile_command",
    "cuda_flags",
    "extension_parts",
    "extension_source_of",
    "only_build",
    "set_product_provider",
    "torch_options",
    "torch_preamble",
    "torch_preamble_command",
    "torch_root",
    "torch_version",
]

Language = Literal["cpp", "cuda", "torch_extension", "torch_cuda_extension"]


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
    """From now on, get the path of every library from ``provider``. None restores building in this process."""
    global _provider
    _provider = provider


def only_build() -> None:
    """From now on, build CUDA products without loading them, so that no device is needed. For a worker that builds."""
    global _only_builds
    _only_builds = True


def only_builds() -> bool:
    """Whether this process builds CUDA products without loading them."""
    return _only_builds


def build(request: BuildRequest) -> str:
    """Path of the library for ``request``: from the provider if one is set, else built here.

    Raises:
        BuildError: an option is not allowed, or the compiler failed; ``log`` holds its output.
    """
    (cuda_flags if "cuda" in request.language else check_flags)(request.flags)
    if _provider is not None:
        return _provider(request)
    if request.language == "cuda":
        from kernelwright.inline.cuda_toolchain import build_for_device

        return build_for_device(request.source, request.name, request.flags)
    if request.language == "cpp":
        return build_locally(request.source, request.flags)
    parts = {"language": request.language, "flags": request.flags, "name": request.name}
    return build_cached(parts, request.source, lambda source, out: compile_command(request, out, source))


def extension_source_of(cpp_part: str, cuda_part: str) -> str:
    """The source of a "torch_cuda_extension"."""
    return cpp_part + _CUDA_PART + cuda_part


def extension_parts(source: str) -> tuple[str, str]:
    """The C++ part and the CUDA part of the source of a "torch_cuda_extension"."""
    cpp_part, _, cuda_part = source.partition(_CUDA_PART)
    return cpp_part, cuda_part


def compile_command(request: BuildRequest, out_path: str, source_path: str, *, fewer: bool = False) -> list[str]:
    """The C++ compiler's command line for a request. It neither imports torch nor runs any part of the candidate.

    With ``fewer``, our own ``torch/extension.h`` is included. It has only the headers that most extensions need.

    Raises:
        BuildError: an option is not allowed, the extension's name is no identifier, or the language needs a device.
    """
    if "cuda" in request.language:
        raise BuildError("only the referee builds CUDA extensions this way: elsewhere use torch's own load_inline")
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


def torch_preamble() -> str:
    """The first line of an extension's C++ source; it is precompiled."""
    return "#include <torch/extension.h>\n"


def torch_preamble_command(flags: Sequence[str], header: str, out: str) -> list[str]:
    """The command that precompiles a torch header for sources that include it first and are built with ``flags``."""
    options = [flag for flag in flags if not flag.startswith("-D")]
    return [*torch_options(options, fewer=True), "-x", "c++-header", "-o", out, header]


def torch_version() -> str:
    """The version of torch that is installed, without importing it."""
    return importlib.metadata.version("torch")
