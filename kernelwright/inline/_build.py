"""What a candidate asks to have built, the hook that answers, and the compiler commands that the referee runs.

A candidate that runs in a contestant has no compiler: the worker sets a product provider there, which hands out
libraries that a builder made beforehand. Without a provider everything is built on the spot and cached.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.inline._toolchain import BuildError, build_cached, build_locally, cpp_command

__all__ = ["BuildRequest", "ProductProvider", "build", "check_flags", "compile_command", "set_product_provider"]

Language = Literal["cpp", "cuda", "torch_extension"]

_ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        r"-O[0-3sg]?|-Ofast",
        r"-f[a-z][a-z0-9-]*(=[a-z0-9.+-]+)?",
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
_TORCH_FLAGS = ("-std=c++20", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")


@dataclass(frozen=True)
class BuildRequest:
    """One build: the exact source, and the options beyond the language's own.

    ``name`` is the CUDA kernel's or the extension module's name; it is empty for "cpp".
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


def set_product_provider(provider: ProductProvider | None) -> None:
    """From now on ask ``provider`` for every library (it returns a path); None goes back to building on the spot."""
    global _provider
    _provider = provider


def product_provider() -> ProductProvider | None:
    """The provider in force, or None."""
    return _provider


def build(request: BuildRequest) -> str:
    """Path of the library for ``request``: from the provider where one is set, else built here.

    Raises:
        BuildError: an option is not allowed, or the compiler failed; ``log`` holds its output.
    """
    check_flags(request.flags)
    if _provider is not None:
        return _provider(request)
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


def compile_command(request: BuildRequest, out_path: str, source_path: str) -> list[str]:
    """The compiler's argument list for a request; needs neither torch imported nor any part of the candidate run.

    Raises:
        BuildError: an option is not allowed, the extension's name is no identifier, or the language needs a device.
    """
    check_flags(request.flags)
    if request.language == "cpp":
        return cpp_command("g++", request.flags, source_path, out_path)
    if request.language == "cuda":
        raise BuildError("CUDA sources need a device and its toolkit, which this version does not drive")
    if not request.name.isidentifier():
        raise BuildError(f"the extension's name {request.name!r} is not an identifier")
    root = _torch_root()
    includes = [f"{root}/include", f"{root}/include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    options = [flag for flag in request.flags if not flag.startswith("-l")]
    libraries = [flag for flag in request.flags if flag.startswith("-l")]
    return [
        *("g++", *_TORCH_FLAGS, *options, "-D_GLIBCXX_USE_CXX11_ABI=1", "-DTORCH_API_INCLUDE_EXTENSION_H"),
        f"-DTORCH_EXTENSION_NAME={request.name}",
        *(f"-isystem{path}" for path in includes),
        *("-o", out_path, source_path, f"-L{root}/lib", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        *libraries,
    ]


@functools.lru_cache(maxsize=1)
def _torch_root() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("torch is not installed in this interpreter, so its headers are missing: pip install torch")
    return spec.submodule_search_locations[0]
