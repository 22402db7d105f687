"""A shared library with a C ABI whose functions take tensors and numbers.

Every argument is checked against the function's C declaration. So a wrong dtype or a strided tensor gives an error that
names the argument, never a wrong result. torch is imported when a function is first looked up.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import keyword
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kernelwright.inline._declarations import Parameter, Signature

__all__ = [
    "SCALARS",
    "ArgumentError",
    "Library",
    "ObservedCall",
    "call_observers",
    "convert",
    "dtypes_of",
    "float_environment_kept",
]


class ArgumentError(TypeError):
    """A kernel was called with an argument that its C declaration does not allow; the message names the argument."""


class ObservedCall(NamedTuple):
    """One call of a library's function, before its arguments are checked.

    ``built_from`` is the library's source and its compiler options. ``signature`` is None if no declaration was seen.
    """

    built_from: tuple[str, tuple[str, ...]]
    function: str
    signature: Signature | None
    values: tuple[Any, ...]


call_observers: list[Callable[[ObservedCall], None]] = []  # called at every call; empty unless calls are observed


SCALARS: dict[str, Any] = {f"int{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)}
SCALARS |= {f"uint{bits}": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)}
SCALARS |= {"float": ctypes.c_float, "double": ctypes.c_double, "bool": ctypes.c_bool, "char": ctypes.c_int8}
_TENSORS: dict[str, tuple[str, ...]] = {
    "float": ("float32",),
    "double": ("float64",),
    "bool": ("bool",),
    "char": ("int8", "uint8", "bool"),
    "int8": ("int8", "float8_e4m3fn", "float8_e5m2"),
    "uint8": ("uint8", "bool", "float8_e4m3fn", "float8_e5m2"),
    "int16": ("int16",),
    "uint16": ("uint16", "bfloat16", "float16", "int16"),
    "int32": ("int32",),
    "uint32": ("uint32", "int32"),
    "int64": ("int64",),
    "uint64": ("uint64", "int64"),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "complex64": ("complex64",),
    "complex128": ("complex128",),
}


def _range(kind: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(u?)int(\d+)|(char)", kind)
    if match is None:
        return None
    bits = int(match[2] or 8)
    return (0, 2**bits - 1) if match[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def dtypes_of(parameter: Parameter) -> tuple[Any, ...]:
    """The torch dtypes that a pointer may take; empty if any dtype is allowed (``void*`` and unknown types)."""
    import torch

    return tuple(getattr(torch, name) for name in _TENSORS.get(parameter.type, ()))


def convert(
    function: str, parameter: Parameter, dtypes: tuple[Any, ...], value: Any, *, device: Literal["cpu", "cuda"] = "cpu"
) -> Any:
    """One argument as ctypes takes it; every fault is an ArgumentError that names the argument."""
    import torch

    where = f"{function}(): argument {parameter.name!r}"
    if isinstance(value, torch.Tensor):
        if not parameter.pointer:
            raise ArgumentError(f"{where} is {parameter.type} in C, but a tensor was given: pass a number (.item())")
        if value.device.type != device:
            raise ArgumentError(f"{where} must be on the {device}, but is on {value.device}")
        if dtypes and value.dtype not in dtypes:
            wanted = " or ".join(str(dtype) for dtype in dtypes)
            raise ArgumentError(f"{where} is {parameter.type}* in C and takes {wanted}, but is {value.dtype}")
        if not value.is_contiguous():
            raise ArgumentError(
                f"{where} is not contiguous (shape {tuple(value.shape)}, strides {value.stride()}): "
                "call .contiguous() first"
            )
        return value.data_ptr()
    if parameter.pointer:
        if value is None or isinstance(value, (ctypes.c_void_p, ctypes.Array)) or type(value) is int:
            return value
        if isinstance(value, (ctypes._Pointer, type(ctypes.byref(ctypes.c_int())))):
            return value
        raise ArgumentError(f"{where} is a pointer in C: pass a tensor or None, not {type(value).__name__}")
    return _convert_number(where, parameter, value.value if isinstance(value, ctypes._SimpleCData) else value)


def _convert_number(where: str, parameter: Parameter, value: Any) -> Any:
    if parameter.type in ("float", "double") and hasattr(value, "__float__"):
        return float(value)
    limits = _range(parameter.type)
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{where} is {parameter.type} in C, but a {type(value).__name__} was given") from None
    if limits is None:
        return bool(number)
    if not limits[0] <= number <= limits[1]:
        raise ArgumentError(f"{where} is {parameter.type} in C, which cannot hold {number}")
    return number


def _bind(entry: Any, signature: Signature, report: Callable[[tuple[Any, ...]], None]) -> Callable[..., Any]:
    """A Python function for one C function, specialised for its signature: a call costs about 2 us.

    ``report`` gets the arguments of every call while calls are observed.
    """
    for parameter in signature.parameters:
        if not parameter.pointer and parameter.type not in SCALARS:
            raise ArgumentError(
                f"{signature.name}(): parameter {parameter.name!r} has the C type {parameter.type!r}, which cannot be "
                "passed by value: use an integer, float, double, bool or a pointer"
            )
    if signature.returns not in (*SCALARS, "void"):
        raise ArgumentError(f"{signature.name}() returns {signature.returns!r}: return void, an integer or a float")
    entry.restype = None if signature.returns == "void" else SCALARS[signature.returns]
    entry.argtypes = [ctypes.c_void_p if p.pointer else SCALARS[p.type] for p in signature.parameters]
    dtypes = [dtypes_of(parameter) if parameter.pointer else () for parameter in signature.parameters]

    def checked(*values: Any) -> Any:
        rows = zip(signature.parameters, dtypes, values, strict=True)
        return entry(*(convert(signature.name, parameter, allowed, value) for parameter, allowed, value in rows))

    namespace: dict[str, Any] = {"_entry": entry, "_checked": checked, "_report": report, "_observers": call_observers}
    namespace |= {"_int": int, "_float": float, "_bool": bool, "_type": type}
    namespace |= {f"_dtype{i}": allowed[0] if len(allowed) == 1 else allowed for i, allowed in enumerate(dtypes)}
    exec(_fast_path(signature, dtypes), namespace)
    bound: Callable[..., Any] = namespace["bound"]
    bound.__name__ = bound.__qualname__ = signature.name
    return bound


def _fast_path(signature: Signature, dtypes: Sequence[tuple[Any, ...]]) -> str:
    """Source of a function that tests all arguments in one expression, and calls ``_checked`` if a test fails."""
    names: list[str] = []
    tests: list[str] = []
    values: list[str] = []
    for i, (parameter, allowed) in enumerate(zip(signature.parameters, dtypes, strict=True)):
        name = parameter.name
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in names:
            name = f"_a{i}"
        names.append(name)
        values.append(f"{name}.data_ptr()" if parameter.pointer else name)
        limits = _range(parameter.type)
        if parameter.pointer:
            tests += [f"{name}.dtype {'is' if len(allowed) == 1 else 'in'} _dtype{i}"] if allowed else []
            tests += [f"{name}.is_cpu", f"{name}.is_contiguous()"]
        elif limits is not None:
            tests.append(f"_type({name}) is _int and {limits[0]} <= {name} <= {limits[1]}")
        else:
            tests.append(f"_type({name}) is {'_bool' if parameter.type == 'bool' else '_float'}")
    arguments = ", ".join(names)
    return (
        f"def bound({arguments}{', /' if names else ''}):\n"
        f"    if _observers:\n        _report(({arguments}{',' if names else ''}))\n"
        f"    try:\n        plain = {' and '.join(tests) or 'True'}\n"
        f"    except AttributeError:\n        plain = False\n"
        f"    if plain:\n        return _entry({', '.join(values)})\n"
        f"    return _checked({arguments})\n"
    )


def _bind_untyped(entry: Any, name: str, report: Callable[[tuple[Any, ...]], None]) -> Callable[..., Any]:
    """Bind a function without a known declaration: tensor to address, int to int64_t, float to float, no result."""
    entry.restype = None

    def bound(*values: Any) -> None:
        if call_observers:
            report(values)
        arguments = []
        for i, value in enumerate(values):
            if isinstance(value, (ctypes._SimpleCData, ctypes.Array, ctypes._Pointer)):
                arguments.append(value)
            elif isinstance(value, int):
                arguments.append(ctypes.c_int64(value))
            elif isinstance(value, float):
                arguments.append(ctypes.c_float(value))
            else:
                arguments.append(ctypes.c_void_p(convert(name, Parameter(f"#{i}", "void", True), (), value)))
        entry(*arguments)

    return bound


class Library:
    """A loaded shared library; each ``extern "C"`` function is an attribute that takes tensors and numbers."""

    def __init__(
        self,
        path: str,
        signatures: Mapping[str, Signature | None],
        built_from: tuple[str, tuple[str, ...]] = ("", ()),
    ) -> None:
        """``built_from``: source and compiler options, for the observers of calls."""
        self._path = path
        self._signatures = dict(signatures)
        self._built_from = built_from
        with float_environment_kept():
            self._handle = ctypes.CDLL(path)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            entry = self._handle[name]
        except AttributeError:
            raise AttributeError(self._missing(name)) from None
        signature = self._signatures.get(name)
        built_from = self._built_from

        def report(values: tuple[Any, ...]) -> None:
            for observe in tuple(call_observers):
                observe(ObservedCall(built_from, name, signature, values))

        bound = _bind_untyped(entry, name, report) if signature is None else _bind(entry, signature, report)
        self.__dict__[name] = bound
        return bound

    def _missing(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._signatures, n=3)
        if near:
            return f"the library has no function {name!r}; did you mean {', '.join(near)}?"
        known = ", ".join(sorted(self._signatures)) or 'none: declare functions extern "C"'
        return f"the library has no function {name!r}; its functions: {known}"

    def __dir__(self) -> list[str]:
        return sorted(self._signatures)

    def __repr__(self) -> str:
        return f"<Library {', '.join(sorted(self._signatures))}>"


@contextlib.contextmanager
def float_environment_kept() -> Iterator[None]:
    """Undo what loading a library does to the thread's rounding and denormal modes.

    GCC before 13 links crtfastmath.o into shared libraries built with -ffast-math; its constructor makes the thread
    that loads the library flush denormals to zero (GCC bug 55522).
    """
    libm = ctypes.CDLL(None)
    saved = ctypes.create_string_buffer(64)  # fenv_t: 32 bytes on x86-64, 8 on aarch64
    kept = hasattr(libm, "fegetenv") and libm.fegetenv(saved) == 0
    try:
        yield
    finally:
        if kept:
            libm.fesetenv(saved)
