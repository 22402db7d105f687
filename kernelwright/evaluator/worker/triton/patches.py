"""Corrections to Triton 3.7.1's interpreter, so that what it computes is what the device would compute.

Shipped as it is, the interpreter works on the raw bits of bfloat16 and fp8 values (sums, products and comparisons come
out silently wrong), truncates where the device rounds, knows no libdevice, cannot autotune without a driver, and ends
the process on an access out of bounds. Import this module only after TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as engine
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.errors import InterpreterError

from kernelwright.evaluator.worker.triton import formats, programs, quick
from kernelwright.evaluator.worker.triton import libdevice as table
from kernelwright.evaluator.worker.triton.bounds import Allocations
from kernelwright.evaluator.worker.triton.faults import NotCheckable, OutOfBounds

FORMATS = {
    tl.bfloat16: formats.BFLOAT16,
    tl.float8e4nv: formats.FP8_E4M3FN,
    tl.float8e5: formats.FP8_E5M2,
}
BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)
Handle = engine.TensorHandle
Builder = engine.InterpreterBuilder
launch = SimpleNamespace(allocations=Allocations(), made_pointers=False)


def apply(*, round_tf32: bool) -> None:
    """Install every correction; once in a process."""
    quick.apply()
    _arithmetic()
    _conversions()
    _products(round_tf32)
    _reductions()
    _memory()
    _libdevice()
    _launches()
    _indices()
    _autotuning()


# ------------------------------------------------------------------------------------- values of narrow formats


def narrow(*handles: Any) -> bool:
    """True where any handle holds bits of a narrow format; NotCheckable for the formats that we cannot decode."""
    found = False
    for handle in handles:
        kind = handle.dtype.scalar
        if kind in FORMATS:
            found = True
        elif not kind.is_ptr() and kind.is_fp8():
            raise NotCheckable(f"arithmetic in {kind} is not checkable in the interpreter")
    return found


def real(handle: Any) -> Any:
    """A handle's values as numpy numbers (narrow formats as float32)."""
    kind = handle.dtype.scalar
    return FORMATS[kind].decode(handle.data) if kind in FORMATS else handle.data


def pack(values: Any, kind: Any) -> Any:
    """A handle of scalar type ``kind`` with ``values`` rounded to it."""
    if kind in FORMATS:
        return Handle(FORMATS[kind].encode(values), kind)
    return Handle(np.asarray(values).astype(engine._get_np_dtype(kind)), kind)


def _arithmetic() -> None:
    binary, unary, ternary = Builder.binary_op, Builder.unary_op, Builder.ternary_op

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if op in BITWISE or not narrow(lhs, rhs):
            return binary(self, lhs, rhs, op)
        values = np.asarray(op(real(lhs), real(rhs)))
        return Handle(values, tl.int1) if values.dtype == bool else pack(values, lhs.dtype.scalar)

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        return pack(op(real(arg)), arg.dtype.scalar) if narrow(arg) else unary(self, arg, op)

    def ternary_op(self: Any, first: Any, second: Any, other: Any, op: Any) -> Any:
        if op is np.where or not narrow(first, second, other):
            return ternary(self, first, second, other, op)
        return pack(op(real(first), real(second), real(other)), other.dtype.scalar)

    def clampf(self: Any, arg: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        if propagate_nans == ir.PROPAGATE_NAN.ALL:
            return self.ternary_op(arg, low, high, np.clip)
        return self.ternary_op(arg, low, high, lambda x, a, b: np.fmin(np.fmax(x, a), b))

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        wide = [real(handle).astype(np.float64) for handle in (x, y, z)]
        return pack(wide[0] * wide[1] + wide[2], z.dtype.scalar)

    def erf(self: Any, arg: Any) -> Any:
        return pack(table.evaluate("__nv_erf", [real(arg)], np.dtype(np.float64)), arg.dtype.scalar)

    Builder.binary_op, Builder.unary_op, Builder.ternary_op = binary_op, unary_op, ternary_op
    Builder.create_clampf, Builder.create_fma, Builder.create_erf = clampf, fma, erf
    # PTX's max and min return the other operand where one is NaN, unless told to propagate it.
    Builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    Builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    Builder.get_bf16 = lambda self, value: pack(np.array([value]), tl.bfloat16)


def _conversions() -> None:
    cast, fp_to_fp = Builder.cast_impl, Builder.create_fp_to_fp

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        target = dst_type.scalar
        if narrow(src) or target in FORMATS:
            return pack(real(src), target)
        return cast(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        target = dst_type.scalar
        if rounding == ir.ROUNDING_MODE.RTZ:
            if target == tl.bfloat16:
                return Handle(formats.truncate_bfloat16(real(src)), target)
            if narrow(src) or target in FORMATS:
                raise NotCheckable(f"rounding toward zero to {target} is not checkable in the interpreter")
            return fp_to_fp(self, src, dst_type, rounding)
        if target.is_fp8() and target not in FORMATS:
            raise NotCheckable(f"conversion to {target} is not checkable in the interpreter")
        return cast_impl(self, src, dst_type)

    Builder.cast_impl, Builder.create_fp_to_fp = cast_impl, create_fp_to_fp


def _products(round_tf32: bool) -> None:
    plain = Builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, max_imprecise: Any) -> Any:
        if narrow(a, b):
            return Handle(np.matmul(real(a), real(b)).astype(d.data.dtype) + d.data, d.dtype.scalar)
        tf32 = precision == ir.INPUT_PRECISION.TF32 and a.dtype.scalar == tl.float32 == b.dtype.scalar
        if tf32 and round_tf32:
            a, b = (Handle(formats.round_tf32(handle.data), tl.float32) for handle in (a, b))
        return plain(self, a, b, d, precision, max_imprecise)

    def refuse(what: str) -> Callable[..., Any]:
        def raiser(*args: Any, **kwargs: Any) -> Any:
            raise NotCheckable(f"{what} is not checkable in the interpreter")

        return raiser

    Builder.create_dot = create_dot
    TritonSemantic.dot_scaled = refuse("tl.dot_scaled")
    Builder.create_inline_asm = refuse("inline assembly")


def _reductions() -> None:
    reduce_sum, reduce_min_max = engine.ReduceOps.sum, engine.ReduceOps.min_max
    scans = {"cumsum": np.cumsum, "cumprod": np.cumprod}
    # The device's max and min skip NaN; numpy's nanmax warns where all are NaN.
    quiet = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}

    def widened(tensor: Any) -> Any:
        return tl.core.tensor(Handle(real(tensor.handle), tl.float32), tensor.type)

    def total(self: Any, tensor: Any) -> Any:
        if not narrow(tensor.handle):
            return reduce_sum(self, tensor)
        return rounded(self, np.sum(real(tensor.handle), axis=self.axis, keepdims=self.keep_dims), tensor.dtype)

    def rounded(self: Any, values: Any, kind: Any) -> Any:
        return self.to_tensor(FORMATS[kind.scalar].encode(values), kind)

    def min_max(self: Any, tensor: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor
        val_reduce_op = quiet.get(val_reduce_op, val_reduce_op)
        if not narrow(tensor.handle):
            return reduce_min_max(self, tensor, val_reduce_op, idx_reduce_op)
        values = real(tensor.handle)
        best = rounded(self, val_reduce_op(values, axis=self.axis, keepdims=self.keep_dims), tensor.dtype)
        if idx_reduce_op is None:
            return best
        return best, self.to_tensor(idx_reduce_op(values, axis=self.axis, keepdims=self.keep_dims), tl.int32)

    engine.ReduceOps.sum, engine.ReduceOps.min_max = total, min_max
    for name, function in scans.items():
        original = getattr(engine.ScanOps, name)

        def scan(self: Any, tensor: Any, original: Any = original, function: Any = function) -> Any:
            if not narrow(tensor.handle):
                return original(self, tensor)
            return [rounded(self, function(real(tensor.handle), axis=self.axis), tensor.dtype)]

        setattr(engine.ScanOps, name, scan)


# ------------------------------------------------------------------------------------------------------- memory


def _check(pointers: Any, mask: Any, what: str) -> None:
    """OutOfBounds where an active lane leaves the tensors that the kernel was given."""
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    fault = launch.allocations.fault(pointers.data, mask, size)
    if fault is None:
        return
    if launch.made_pointers:
        raise NotCheckable("the kernel makes pointers from integers, whose targets the interpreter does not know")
    raise OutOfBounds(f"{what} out of bounds: {fault}, program {tuple(engine.interpreter_builder.grid_idx)}")


def _memory() -> None:
    load, store = Builder.create_masked_load, Builder.create_masked_store
    rmw, cas, make_pointer = Builder.create_atomic_rmw, Builder.create_atomic_cas, Builder.create_int_to_ptr

    def masked_load(
        self: Any, ptrs: Any, mask: Any, other: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: bool
    ) -> Any:
        _check(ptrs, mask.data, "load")
        found = load(self, ptrs, mask, other, cache_modifier, eviction_policy, is_volatile)
        if is_volatile:
            programs.polled(ptrs.data, found.data, changed=False)
        return found

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _check(ptrs, mask.data, "store")
        return store(self, ptrs, value, mask, *rest, **named)

    def atomic_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _check(ptr, mask.data, "atomic")
        if narrow(value):
            raise NotCheckable(f"atomics on {value.dtype.scalar} are not checkable in the interpreter")
        found = rmw(self, op, ptr, value, mask, *rest)
        if np.any(mask.data):
            programs.polled(ptr.data, found.data, changed=bool(np.any(value.data != 0)))
        return found

    def atomic_cas(self: Any, ptr: Any, compared: Any, value: Any, *rest: Any) -> Any:
        _check(ptr, np.ones_like(ptr.data, dtype=bool), "atomic")
        found = cas(self, ptr, compared, value, *rest)
        swapped = (found.data == compared.data) & (found.data != value.data)
        programs.polled(ptr.data, found.data, changed=bool(np.any(swapped)))
        return found

    def int_to_ptr(self: Any, *args: Any) -> Any:
        launch.made_pointers = True
        return make_pointer(self, *args)

    Builder.create_masked_load, Builder.create_masked_store = masked_load, masked_store
    Builder.create_atomic_rmw, Builder.create_atomic_cas = atomic_rmw, atomic_cas
    Builder.create_int_to_ptr = int_to_ptr


# ----------------------------------------------------------------------------------------------------- libdevice


def _libdevice() -> None:
    def extern(self: Any, lib: str, path: str, symbol: str, handles: Any, result: Any, pure: bool) -> Any:
        kind = result.scalar
        values = table.evaluate(symbol, [real(handle) for handle in handles], engine._get_np_dtype(kind))
        if values is None:
            raise NotCheckable(f"the device function {symbol} is not checkable in the interpreter")
        return Handle(values, kind)

    Builder.create_extern_elementwise = extern
    for name in [name for name in dir(libdevice) if not name.startswith("_") and hasattr(cuda_libdevice, name)]:
        bound = _with_semantic(getattr(cuda_libdevice, name))
        setattr(libdevice, name, bound)
        setattr(cuda_libdevice, name, bound)


def _with_semantic(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, _semantic: Any = None, **named: Any) -> Any:
        return function(*args, _semantic=engine.interpreter_semantic, **named)

    return call


# ------------------------------------------------------------------------------------------------------ launches


def _launches() -> None:
    to_host = engine.GridExecutor._init_args_hst

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        hosted = to_host(self, args, kwargs)
        named = [*zip(self.arg_names, hosted[0], strict=False), *hosted[1].items()]
        launch.allocations = Allocations(named)
        launch.made_pointers = False
        return hosted

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            with np.errstate(all="ignore"):
                programs.run_programs(self, args, kwargs)
        except InterpreterError as error:
            raise _cause(error) from error

    def missing(self: Any, name: str) -> Any:
        raise _MissingOperation(f"the operation behind {name} is not checkable in the interpreter")

    engine.GridExecutor._init_args_hst, engine.GridExecutor.__call__ = init_args, call
    Builder.__getattr__ = missing


def _indices() -> None:
    """Make indices of arrays of one element, which newer versions of numpy refuse to Triton before 3.7."""
    patch = engine._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    engine._patch_lang_tensor = patched


class _MissingOperation(NotCheckable, AttributeError):
    """An operation that the interpreter does not have; still an AttributeError for those who only probe for it."""


def _cause(error: BaseException) -> BaseException:
    """The report inside an InterpreterError, which wraps once per call level; the error itself where there is none."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, _MissingOperation):
            return NotCheckable(str(inner))
        if isinstance(inner, OutOfBounds | NotCheckable):
            return inner
        unknown = isinstance(inner, ValueError) and "_semantic" in str(inner)  # a builtin that it never replaced
        if unknown or isinstance(inner, NotImplementedError):
            return NotCheckable(f"not checkable in the interpreter: {inner}")
        inner = inner.__cause__
    return error


def _autotuning() -> None:
    def first_wins(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        return [0.0, 0.0, 0.0]

    Autotuner._bench = first_wins
    driver.set_active(_PretendedDriver())


class _PretendedDriver(DriverBase):  # type: ignore[misc]
    """What kernels ask a driver for while they are launched: the properties of an H100, and no timing."""

    utils = SimpleNamespace(
        get_device_properties=lambda device=0: {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
        }
    )

    @staticmethod
    def is_active() -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotCheckable("the interpreter compiles nothing")

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda call, quantiles=None, **rest: [0.0, 0.0, 0.0]
