"""Machine code for a CUDA device, loaded and launched through CUDA's driver on torch's current stream."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from kernelwright.inline.toolchain import BuildError

__all__ = ["driver_kernel", "idle_on_device", "kernel_symbol", "kernel_symbols", "reset_persisting_cache"]

_DEFAULT_SHARED_BYTES = 48 << 10
_idle = False
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def idle_on_device() -> None:
    """From now on, launches of candidates' kernels do nothing."""
    global _idle
    _idle = True


def driver_kernel(
    path: str, name: str, *, ours: bool = False
) -> Callable[[Sequence[int], int, Sequence[Any], Sequence[Any]], None]:
    """A function that launches the kernel ``name`` of a cubin: (grid and block), shared bytes, ctypes values, tensors.

    ``ours`` is True for a kernel that is not a candidate's: :func:`idle_on_device` does not affect it.

    Raises:
        BuildError: there is no device, the code is for another device, or it has no such kernel.
    """
    import torch

    if not torch.cuda.is_available():
        raise BuildError(f"the CUDA kernel {name!r} is built, but torch sees no CUDA device here to run it on")
    torch.cuda.init()
    torch.cuda.current_stream()
    driver = _driver()
    with open(path, "rb") as file:
        image = file.read()
    symbol = kernel_symbol(image, name)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    torch.zeros(1, device="cuda")  # makes the device's context current in this thread
    _check(driver, driver.cuModuleLoadData(ctypes.byref(module), image), f"loading {name}")
    _check(driver, driver.cuModuleGetFunction(ctypes.byref(function), module, symbol.encode()), f"finding {name}")
    granted = _DEFAULT_SHARED_BYTES

    def launch(shape: Sequence[int], shared: int, values: Sequence[Any], tensors: Sequence[Any]) -> None:
        nonlocal granted
        if _idle and not ours:
            return
        if shared > granted:
            _check(driver, driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared), f"granting {name} memory")
            granted = shared
        packed = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(driver, driver.cuLaunchKernel(function, *shape, shared, stream, packed, None), f"launching {name}")

    return launch


def reset_persisting_cache() -> None:
    """Release the lines that kernels asked the L2 cache to keep. No effect on devices without that feature."""
    _driver().cuCtxResetPersistingL2Cache()


def kernel_symbols(image: bytes) -> list[str]:
    """Names of the kernels in a cubin, from its code sections (``.text.<name>``)."""
    return sorted({match.decode() for match in re.findall(rb"\0\.text\.([A-Za-z_$][\w$.]*)(?=\0)", image)})


def kernel_symbol(image: bytes, name: str) -> str:
    """The symbol of a kernel: its C++ name if it has C linkage, else the mangled name that contains the C++ name.

    Raises:
        BuildError: the image has no such kernel, or several.
    """
    symbols = kernel_symbols(image)
    if name in symbols:
        return name
    plain = name.partition("<")[0].strip().rpartition("::")[2]
    mangled = [symbol for symbol in symbols if re.match(rf"_Z.*?{len(plain)}{re.escape(plain)}(?![a-z])", symbol)]
    if len(mangled) == 1:
        return mangled[0]
    raise BuildError(f"the source has no kernel {name!r}; its kernels: {', '.join(symbols) or 'none'}")


@functools.lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BuildError("CUDA's driver (libcuda.so.1) is missing") from error
    driver.cuLaunchKernel.argtypes = [
        ctypes.c_void_p,
        *[ctypes.c_uint] * 7,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
    ]
    return driver


def _check(driver: ctypes.CDLL, code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {(text.value or b'error').decode()} (CUDA error {code})")
