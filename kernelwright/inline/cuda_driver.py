"""Machine code for a CUDA device, loaded and launched through CUDA's driver on torch's current stream."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from kernelwright.inline.toolchain import BuildError

__all__ = [
    "driver_kernel",
    "has_loaded",
    "idle_on_device",
    "kernel_symbol",
    "kernel_symbols",
    "symbol_among",
    "tensor_device",
    "use_stand_in",
]

_LIBRARY = "libcuda.so.1"
_library = _LIBRARY
_loaded = False
_idle = False
_kept: list[Any] | None = None  # tensors of launches that a stand-in's stream may still have to do
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def idle_on_device() -> None:
    """From now on, launches of candidates' kernels do nothing."""
    global _idle
    _idle = True


def use_stand_in(path: str, kept: list[Any]) -> None:
    """Load and launch through a stand-in for CUDA's driver from now on, in the thread's context, on its first stream.

    Torch knows nothing of it, and would free memory that a pending launch uses: tensors of launches are added to
    ``kept``, in every thread. Only the referee's tests have a stand-in.
    """
    global _library, _kept
    _library, _kept = path, kept


def tensor_device() -> Literal["cpu", "cuda"]:
    """The type of device that a kernel's tensors lie on, by torch's name."""
    return "cuda" if _library == _LIBRARY else "cpu"


def has_loaded() -> bool:
    """Whether this process has loaded a kernel."""
    return _loaded


def driver_kernel(path: str, name: str) -> Callable[[Sequence[int], int, Sequence[Any], Sequence[Any]], None]:
    """A function that launches the kernel ``name`` of a cubin: (grid and block), shared bytes, ctypes values, tensors.

    Raises:
        BuildError: there is no device, the code is for another device, or it has no such kernel.
    """
    global _loaded
    beside_torch = _library == _LIBRARY
    _loaded = True
    if beside_torch:
        _open_by_torch(name)
    driver = _driver()
    with open(path, "rb") as file:
        image = file.read()
    symbol = kernel_symbol(image, name)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver, driver.cuModuleLoadData(ctypes.byref(module), image), f"loading {name}")
    _check(driver, driver.cuModuleGetFunction(ctypes.byref(function), module, symbol.encode()), f"finding {name}")
    granted = 0  # dynamic shared memory: a kernel has less than 48 KB by default if it has static memory too
    context = ctypes.c_void_p()
    _check(driver, driver.cuCtxGetCurrent(ctypes.byref(context)), "asking for the context")

    def launch(shape: Sequence[int], shared: int, values: Sequence[Any], tensors: Sequence[Any]) -> None:
        nonlocal granted
        if _idle:
            return
        current = ctypes.c_void_p()
        _check(driver, driver.cuCtxGetCurrent(ctypes.byref(current)), "asking for the context")
        if not current.value:  # as in autograd's threads
            _check(driver, driver.cuCtxSetCurrent(context), "entering the context")
        if shared > granted:
            _check(driver, driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared), f"granting {name} memory")
            granted = shared
        if _kept is not None:
            _kept.extend(tensors)
        packed = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(_torch_stream() if beside_torch else 0)
        _check(driver, driver.cuLaunchKernel(function, *shape, shared, stream, packed, None), f"launching {name}")

    return launch


def _open_by_torch(name: str) -> None:
    """Let torch make its context current in this thread."""
    import torch

    if not torch.cuda.is_available():
        raise BuildError(f"the CUDA kernel {name!r} is built, but torch sees no CUDA device here to run it on")
    torch.cuda.init()
    torch.cuda.current_stream()
    torch.zeros(1, device="cuda")


def _torch_stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


def kernel_symbols(image: bytes) -> list[str]:
    """Names of the kernels in a cubin, from its code sections (``.text.<name>``)."""
    return sorted({match.decode() for match in re.findall(rb"\0\.text\.([A-Za-z_$][\w$.]*)(?=\0)", image)})


def kernel_symbol(image: bytes, name: str) -> str:
    """The symbol of a kernel: its C++ name if it has C linkage, else the mangled name that contains the C++ name.

    Raises:
        BuildError: the image has no such kernel, or several.
    """
    return symbol_among(kernel_symbols(image), name)


def symbol_among(symbols: Sequence[str], name: str) -> str:
    """As :func:`kernel_symbol`, among an image's symbols."""
    if name in symbols:
        return name
    plain = name.partition("<")[0].strip().rpartition("::")[2]
    mangled = [symbol for symbol in symbols if re.match(rf"_Z.*?(?<!\d){len(plain)}{re.escape(plain)}", symbol)]
    if len(mangled) == 1:
        return mangled[0]
    raise BuildError(f"the source has no kernel {name!r}; its kernels: {', '.join(symbols) or 'none'}")


@functools.lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL(_library)
    except OSError as error:
        raise BuildError(f"CUDA's driver ({_library}) is missing") from error
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
