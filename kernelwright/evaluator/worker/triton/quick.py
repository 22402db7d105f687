"""Triton's interpreter without what it computes for nothing. The results are the same; a program takes a third as long.

Import this module only after TRITON_INTERPRET=1 is set. What Triton 3.7.1 does for each operation, and this does not:

- For each sum, difference and product of integers it looks whether they overflow, and reads the answer only in a debug
  mode that the interpreter does not have.
- It works out anew what a type's shape and numpy's name for it are.
- It looks for the functions of ``triton.language`` that it must replace, and replaces them, again for each function
  that a kernel calls; and it leaves them so.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

__all__ = ["apply", "patched"]

_MOST: Final = 10_000  # shapes that are remembered
_ADDRESS: Final = np.dtype(np.uint64)
_PLAIN: Final = (int, bool)
_launch = SimpleNamespace(scopes=[], done=set())


def apply() -> None:
    """Install all of it; once in a process."""
    options = engine.interpreter_builder.options
    if not options.debug and hasattr(options, "sanitize_overflow"):
        engine.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    _numpy_types()
    _blocks()
    _tensors()
    _builtins()
    engine.InterpretedFunction.__call__ = _device_function


def _numpy_types() -> None:
    find = engine._get_np_dtype
    known: dict[str, Any] = {}

    def found(kind: Any) -> Any:
        scalar = kind.element_ty if kind.is_block() else kind
        if scalar.is_ptr():
            return _ADDRESS
        if scalar.name not in known:
            known[scalar.name] = find(scalar)
        return known[scalar.name]

    engine._get_np_dtype = found


def _blocks() -> None:
    """Remember what a block's type holds besides the type of its elements."""
    begin = tl.core.block_type.__init__
    known: dict[Any, tuple[Any, Any, str]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, tl.core.constexpr) else size for size in shape])
        key = element_ty.name, sizes
        if key in known:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known[key]
            return
        begin(self, element_ty, shape)
        if len(known) < _MOST and all(type(size) is int for size in sizes):
            known[key] = self.shape, self.numel, self.name

    if _sets(begin, (tl.float32, [1]), tl.core.block_type, {"element_ty", "shape", "numel", "name"}):
        tl.core.block_type.__init__ = init


def _tensors() -> None:
    """Remember a tensor's shape and number of elements by the shape of its type."""
    begin = tl.core.tensor.__init__
    known: dict[Any, tuple[Any, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes in known:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known[sizes]
            return
        begin(self, handle, type)
        if len(known) < _MOST:
            known[sizes] = self.shape, self.numel

    if _sets(begin, (None, tl.float32), tl.core.tensor, {"handle", "type", "dtype", "shape", "numel"}):
        tl.core.tensor.__init__ = init


def _builtins() -> None:
    """Remember which functions of a module or class are the compiler's."""
    known: dict[Any, list[tuple[str, Any]]] = {}

    def patch(holder: Any, builder: Any, scope: Any) -> None:
        if holder not in known:
            known[holder] = inspect.getmembers(holder, tl.core.is_builtin)
        for name, member in known[holder]:
            if getattr(holder, name, None) is member:  # else it is replaced already
                engine._patch_attr(holder, name, member, builder, scope)

    engine._patch_builtin = patch


def _sets(begin: Callable[..., None], arguments: tuple[Any, ...], kind: Any, names: set[str]) -> bool:
    """Whether a constructor sets exactly these attributes. That of Triton 3.7.1 does."""
    made = kind.__new__(kind)
    begin(made, *arguments)
    return set(vars(made)) == names


# ------------------------------------------------------------------------------------- functions that kernels call


def patched(function: Any) -> Callable[[], None]:
    """Let a kernel and all that it calls work on the interpreter's values; what this returns takes that back."""
    _launch.scopes, _launch.done = [engine._patch_lang(function)], {id(function.__globals__)}

    def restore() -> None:
        while _launch.scopes:
            _launch.scopes.pop().restore()
        _launch.done = set()

    return restore


def _device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of one function of a kernel by another."""
    if id(self.fn.__globals__) not in _launch.done:
        _launch.scopes.append(engine._patch_lang(self.fn))
        _launch.done.add(id(self.fn.__globals__))
    function = self.rewrite()
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise engine.InterpreterError(repr(error)) from error
