"""``torch.utils.cpp_extension.load_inline`` for candidates: the same call, built by the same builder as ``cpp``."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from kernelwright.inline._library import float_environment_kept
from kernelwright.inline.emulation import emulated_module, is_emulated
from kernelwright.inline.options import check_flags, cuda_flags
from kernelwright.inline.requests import BuildRequest, ProductProvider, build, extension_source_of, only_builds
from kernelwright.inline.toolchain import BuildError

__all__ = ["extension_source", "load_inline", "patch_load_inline"]


def extension_source(
    cpp_sources: str | Sequence[str],
    functions: str | Sequence[str] | Mapping[str, str] | None,
    *,
    headers: bool = True,
    error_handling: bool = True,
) -> str:
    """The one C++ file that torch would compile: header, sources, and the pybind11 definitions of ``functions``."""
    sources = [cpp_sources] if isinstance(cpp_sources, str) else list(cpp_sources)
    lines = ["#include <torch/extension.h>", *sources] if headers else sources
    if functions is not None:
        names = [functions] if isinstance(functions, str) else functions
        documents = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
        lines.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        for name, document in documents.items():
            entry = f"torch::wrap_pybind_function({name})" if error_handling else name
            lines.append(f'  m.def("{name}", {entry}, "{document}");')
        lines.append("}")
    return "\n".join(lines) + "\n"


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
) -> ModuleType:
    """Build an extension. Takes the arguments of torch's function, but callers cannot choose where and how to build.

    Raises:
        BuildError: SYCL sources, include paths, a module that is not Python, or an option that is not allowed.
    """
    if sycl_sources or with_sycl:
        raise BuildError("SYCL sources are not supported: give C++ or CUDA sources")
    if extra_include_paths:
        raise BuildError("extra_include_paths is not allowed: put what the kernel needs into its source")
    if not is_python_module:
        raise BuildError("is_python_module=False is not supported: bind the functions with functions=[...]")
    flags = (*(extra_cflags or ()), *(extra_ldflags or ()))
    if cuda_sources:
        return _load_cuda(
            name, cpp_sources, cuda_sources, functions, flags, extra_cuda_cflags or (), headers=not no_implicit_headers
        )
    check_flags(flags)
    source = extension_source(
        cpp_sources, functions, headers=not no_implicit_headers, error_handling=with_pytorch_error_handling
    )
    return _import_extension(name, build(BuildRequest("torch_extension", source, flags, name)))


def _load_cuda(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str],
    functions: str | Sequence[str] | Mapping[str, str] | None,
    flags: Sequence[str],
    device_flags: Sequence[str],
    *,
    headers: bool,
) -> ModuleType:
    """A module with CUDA sources. Only the CUDA compiler's options and macros are kept: the C++ part only launches."""
    if not name.isidentifier():
        raise BuildError(f"the extension's name {name!r} is not an identifier")
    options = (*device_flags, *(flag for flag in flags if flag.startswith("-D")))
    cuda_flags(options)
    sources = [cuda_sources] if isinstance(cuda_sources, str) else list(cuda_sources)
    included = ["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>"] if headers else []
    cpp_part = extension_source(cpp_sources, functions, headers=headers)
    source = extension_source_of(cpp_part, "\n".join([*included, *sources]) + "\n")
    path = build(BuildRequest("torch_cuda_extension", source, options, name))
    if only_builds():
        return _NotLoaded(name)
    return emulated_module(name, path) if is_emulated(path) else _import_extension(name, path)


class _NotLoaded(ModuleType):
    """Stand-in for an extension that is built but not loaded. Its functions can be looked up, but not called."""

    def __getattr__(self, function: str) -> Any:
        if function.startswith("__"):
            raise AttributeError(function)

        def call(*arguments: Any, **named: Any) -> Any:
            raise BuildError(f"{self.__name__}.{function}: this process builds kernels and runs none")

        return call


def _import_extension(name: str, path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise BuildError(f"the extension {name!r} at {path} cannot be imported")
    with float_environment_kept():
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    sys.modules.setdefault(name, module)
    return module


def patch_load_inline(provider: ProductProvider | None) -> None:
    """Make ``torch.utils.cpp_extension.load_inline`` build through ``provider`` (None: here, with our cache).

    For the worker that is about to import a candidate; the change lasts as long as the process.
    """
    import torch.utils.cpp_extension as extension

    from kernelwright.inline.requests import set_product_provider

    set_product_provider(provider)
    patched: Any = extension
    patched.load_inline = load_inline
