"""Other ways to compute what a model computes: honest kernels and lower-precision cheats, one operator at a time.

A treatment runs a model in float32 with its operators replaced: sums and products in another order, other formulas for
the same functions, or roundings that nobody asked for. The operators of the built-in suite are known here; of any other
torch's own is taken, so :attr:`Kernels.replaced` says how many calls ran another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelwright.datasets.runtime import DispatchMode
from kernelwright.evaluator.worker.monte_carlo import bound_arguments, is_view, operator_name
from kernelwright.evaluator.worker.operators import is_exact

Op = Callable[..., Tensor]
UNIT_ROUNDOFF = 2.0**-24


# ------------------------------------------------------------------------------------------------ roundings


def tf32(x: Tensor) -> Tensor:
    """Round to ten mantissa bits, away from zero at ties."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def truncated_tf32(x: Tensor) -> Tensor:
    """Cut to ten mantissa bits, as tensor cores do with what they are given."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def fp16(x: Tensor) -> Tensor:
    return x.half().float()


ROUNDINGS: Mapping[str, Op] = {"tf32": tf32, "bf16": bf16, "fp16": fp16}


# ------------------------------------------------------------------------------------------- sums of the last dimension


def plain_total(x: Tensor) -> Tensor:
    return x.sum(-1)


def reversed_total(x: Tensor) -> Tensor:
    return x.flip(-1).sum(-1)


def permuted_total(x: Tensor) -> Tensor:
    return x[..., _permutation(x.shape[-1])].sum(-1)


def double_total(x: Tensor) -> Tensor:
    return x.double().sum(-1).float()


def lanes_total(lanes: int) -> Op:
    """One running sum a lane, as a vector unit keeps them; lanes are added pairwise in the end."""

    def total(x: Tensor) -> Tensor:
        steps = _padded(x, lanes).unflatten(-1, (-1, lanes))
        sums = steps[..., 0, :]
        for i in range(1, steps.shape[-2]):
            sums = sums + steps[..., i, :]
        while sums.shape[-1] > 1:
            sums = sums[..., 0::2] + sums[..., 1::2]
        return sums[..., 0]

    return total


def blocks_total(block: int) -> Op:
    """Blocks are summed as torch does, and their sums one after the other."""

    def total(x: Tensor) -> Tensor:
        parts = _padded(x, block).unflatten(-1, (-1, block)).sum(-1)
        sums = parts[..., 0]
        for i in range(1, parts.shape[-1]):
            sums = sums + parts[..., i]
        return sums

    return total


def tree_total(x: Tensor) -> Tensor:
    """Halves are added until one element is left, as in a reduction over the threads of a block."""
    while x.shape[-1] > 1:
        x = _padded(x, 2)
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def rounded_total(rounding: Op, block: int = 16) -> Op:
    """Running sums that are rounded after every block."""

    def total(x: Tensor) -> Tensor:
        sums = torch.zeros(x.shape[:-1])
        for part in x.split(block, -1):
            sums = rounding(sums + part.sum(-1))
        return sums

    return total


def _padded(x: Tensor, multiple: int) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % multiple))


def _permutation(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(n))


# ------------------------------------------------------------------------------------------------ matrix products


def plain_dot(a: Tensor, b: Tensor) -> Tensor:
    """a: (batch, m, k), b: (batch, k, n) -> (batch, m, n); so all of them."""
    return torch.bmm(a, b)


def reversed_dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a.flip(-1), b.flip(-2))


def permuted_dot(a: Tensor, b: Tensor) -> Tensor:
    order = _permutation(a.shape[-1])
    return torch.bmm(a[..., order], b[:, order])


def double_dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a.double(), b.double()).float()


def blocks_dot(block: int) -> Op:
    """Blocks of the inner dimension one after the other."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        out = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
        for left, right in zip(a.split(block, -1), b.split(block, -2), strict=True):
            out = torch.baddbmm(out, left, right)
        return out

    return dot


def split_k_dot(parts: int) -> Op:
    """Several products over shares of the inner dimension, added in the end."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        share = -(-a.shape[-1] // parts)
        pairs = zip(a.split(share, -1), b.split(share, -2), strict=True)
        return torch.stack([torch.bmm(left, right) for left, right in pairs]).sum(0)

    return dot


def lanes_dot(lanes: int) -> Op:
    """One accumulator a lane; with a single lane, the chain of a plain loop."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        sums = [torch.zeros(a.shape[0], a.shape[1], b.shape[2]) for _ in range(min(lanes, a.shape[-1]))]
        for k in range(a.shape[-1]):
            sums[k % lanes] = torch.addcmul(sums[k % lanes], a[..., k : k + 1], b[:, k : k + 1])
        return torch.stack(sums).sum(0)

    return dot


def rounded_dot(left: Op | None, right: Op | None, then: Op = plain_dot) -> Op:
    """Operands rounded first; None leaves one alone."""
    return lambda a, b: then(left(a) if left else a, right(b) if right else b)


def split_dot(rounding: Op) -> Op:
    """Three products of high and low parts: nearly full precision from TF32, 16 bits from bfloat16."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        high_a, high_b = rounding(a), rounding(b)
        low_a, low_b = rounding(a - high_a), rounding(b - high_b)
        return torch.bmm(high_a, high_b) + (torch.bmm(low_a, high_b) + torch.bmm(high_a, low_b))

    return dot


def rounded_sums_dot(rounding: Op, block: int = 16) -> Op:
    """Accumulators that are rounded after every block of the inner dimension."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        out = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
        for left, right in zip(a.split(block, -1), b.split(block, -2), strict=True):
            out = rounding(torch.baddbmm(out, left, right))
        return out

    return dot


def half_rows_dot(rounding: Op) -> Op:
    """Every other row of the left operand rounded."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        left = a.clone()
        left[:, ::2] = rounding(a[:, ::2])
        return torch.bmm(left, b)

    return dot


# ---------------------------------------------------------------------------------------------- mean and variance


def two_pass(total: Op) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = total(x) / x.shape[-1]
        centred = x - mean[..., None]
        return mean, total(centred * centred) / x.shape[-1]

    return moments


def one_pass(total: Op) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """E[x^2] - E[x]^2."""

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = total(x) / x.shape[-1]
        return mean, (total(x * x) / x.shape[-1] - mean * mean).clamp_min(0.0)

    return moments


def shifted_one_pass(total: Op) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """As one pass, on x minus its first element."""

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = one_pass(total)(x - x[..., :1])
        return mean + x[..., 0], variance

    return moments


def welford(lanes: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Welford's update in lanes, merged after Chan, Golub and LeVeque."""

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        width = math.gcd(lanes, x.shape[-1])
        steps = x.unflatten(-1, (-1, width))
        mean, squares = torch.zeros_like(steps[..., 0, :]), torch.zeros_like(steps[..., 0, :])
        for i in range(steps.shape[-2]):
            delta = steps[..., i, :] - mean
            mean = mean + delta / (i + 1)
            squares = squares + delta * (steps[..., i, :] - mean)
        count = float(steps.shape[-2])
        while mean.shape[-1] > 1 and mean.shape[-1] % 2 == 0:
            delta = mean[..., 1::2] - mean[..., 0::2]
            squares = squares[..., 0::2] + squares[..., 1::2] + delta * delta * (count / 2.0)
            mean, count = mean[..., 0::2] + delta / 2.0, count * 2.0
        return _merged(mean, squares, count)

    return moments


def _merged(mean: Tensor, squares: Tensor, count: float) -> tuple[Tensor, Tensor]:
    """What is left of an odd number of lanes."""
    centre = mean.mean(-1)
    spread = (mean - centre[..., None]).square().mean(-1)
    return centre, squares.sum(-1) / (count * mean.shape[-1]) + spread


# ------------------------------------------------------------------------------------------ elementary functions


def exp2_based(x: Tensor) -> Tensor:
    return torch.exp2(x * math.log2(math.e))


def ulps(function: Op, size: float = 2.0) -> Op:
    """``function`` with an error of up to ``size`` units in the last place, as on GPUs; exact at 0.

    The error depends on the argument alone, as that of a real approximation does.
    """

    def noisy(x: Tensor) -> Tensor:
        mixed = x.contiguous().view(torch.int32).long() * 2_654_435_761
        noise = ((mixed >> 7) & 0xFFFFFF).to(torch.float64) / 2**23 - 1.0
        factor = torch.where(x == 0.0, 1.0, 1.0 + 2.0 * size * UNIT_ROUNDOFF * noise)
        return (function(x.double()) * factor).float()

    return noisy


class Functions(NamedTuple):
    """Formulas for pointwise operators, of float32 tensors."""

    exp: Op = torch.exp
    gelu: Op = F.gelu
    silu: Op = F.silu
    mish: Op = F.mish
    elu: Op = F.elu
    hardswish: Op = F.hardswish
    rsqrt: Op = torch.rsqrt
    divide: Op = torch.div
    log: Op = torch.log


def _mish_by_exp(x: Tensor) -> Tensor:
    e = torch.exp(x.clamp_max(20.0))
    n = e * (e + 2.0)
    return torch.where(x > 20.0, x, x * (n / (n + 2.0)))


BY_FORMULA = Functions(
    exp=exp2_based,
    gelu=lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)),
    silu=lambda x: x / (1.0 + torch.exp(-x)),
    mish=_mish_by_exp,
    elu=lambda x: torch.where(x > 0.0, x, torch.exp(x.clamp_max(0.0)) - 1.0),
    hardswish=lambda x: x * (1.0 / 6.0) * (x + 3.0).clamp(0.0, 6.0),
    rsqrt=lambda x: 1.0 / x.sqrt(),
    divide=lambda a, b: a * (1.0 / b),
)
FEW_ULPS = Functions(
    exp=ulps(torch.exp),
    gelu=lambda x: 0.5 * x * (1.0 + ulps(torch.erf)(x * math.sqrt(0.5))),
    silu=lambda x: x * ulps(torch.sigmoid)(x),
    mish=lambda x: x * ulps(torch.tanh)(ulps(F.softplus)(x)),
    elu=lambda x: torch.where(x > 0.0, x, ulps(torch.expm1)(x.clamp_max(0.0))),
    rsqrt=ulps(torch.rsqrt),
    divide=lambda a, b: a * ulps(torch.reciprocal)(b),
    log=ulps(torch.log),
)


# -------------------------------------------------------------------------------------------------------- operators


class Arithmetic(NamedTuple):
    """How one treatment computes. result: applied to what every operator that rounds has made."""

    total: Op = plain_total
    dot: Op = plain_dot
    moments: Callable[[Tensor], tuple[Tensor, Tensor]] = two_pass(plain_total)
    functions: Functions = Functions()
    numerators: Op = lambda x: x  # of softmax
    online: int = 0  # block of an online softmax
    scan_block: int = 0  # of a blocked running sum
    contract: bool = False  # products and sums as one fused multiply-add
    fold: bool = False  # batch normalisation folded into the convolution before it
    result: Op | None = None


class Kernels(DispatchMode):
    """Replaces operators while it is entered; counts the calls in ``replaced``."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.by = arithmetic
        self.replaced = 0
        self._products: dict[int, tuple[Tensor, Any, Any]] = {}  # by id of a product, kept alive: itself, its factors
        self._convolutions: dict[int, tuple[Tensor, dict[str, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, bound = operator_name(func), bound_arguments(func, args, kwargs or {})
        handler = getattr(self, f"on_{name.lstrip('_')}", None)
        done = handler(bound) if handler is not None else None
        if done is None:
            done = func(*args, **(kwargs or {}))
        else:
            self.replaced += 1
        if self.by.result is None or is_exact(name) or is_view(func):
            return done
        if isinstance(done, tuple):
            return tuple(self.by.result(y) if y.is_floating_point() else y for y in done)
        return self.by.result(done) if isinstance(done, Tensor) and done.is_floating_point() else done

    # ---------------------------------------------------------------------------------------- products

    def on_mm(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.dot(given["self"][None], given["mat2"][None])[0]

    def on_addmm(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.dot(given["mat1"][None], given["mat2"][None])[0] + given["self"]

    def on_bmm(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.dot(given["self"], given["mat2"])

    def on_convolution(self, given: dict[str, Any]) -> Tensor:
        out = self._convolve(given["input"], given["weight"], given["bias"], given)
        if self.by.fold:
            self._convolutions[id(out)] = (out, given)
        return out

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, given: Mapping[str, Any]) -> Tensor:
        """By columns: (1, out, in * kernel) times (batch, in * kernel, pixels). One group only."""
        kernel, (pad, stride) = weight.shape[2:], (given["padding"], given["stride"])
        columns = F.unfold(x, kernel, padding=pad, stride=stride)
        out = self.by.dot(weight.reshape(1, weight.shape[0], -1).expand(len(x), -1, -1), columns)
        height = (x.shape[2] + 2 * pad[0] - kernel[0]) // stride[0] + 1
        out = out.unflatten(-1, (height, -1))
        return out if bias is None else out + bias[:, None, None]

    # -------------------------------------------------------------------------------------- reductions

    def _total_over(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        dims = sorted(d % x.ndim for d in dims) or list(range(x.ndim))
        kept = [d for d in range(x.ndim) if d not in dims]
        total = self.by.total(x.permute(*kept, *dims).flatten(len(kept)))
        return total.reshape([1 if d in dims else x.shape[d] for d in range(x.ndim)]) if keepdim else total

    def on_sum(self, given: Mapping[str, Any]) -> Tensor:
        return self._total_over(given["self"], given.get("dim") or (), given.get("keepdim", False))

    def on_mean(self, given: Mapping[str, Any]) -> Tensor:
        x, dims = given["self"], given.get("dim") or range(given["self"].ndim)
        n = math.prod(x.shape[d] for d in dims)
        return self._total_over(x, list(dims), given.get("keepdim", False)) / n

    def on_linalg_vector_norm(self, given: Mapping[str, Any]) -> Tensor:
        x = given["self"]
        return self._total_over(x * x, given.get("dim") or (), given.get("keepdim", False)).sqrt()

    def on_cumsum(self, given: Mapping[str, Any]) -> Tensor | None:
        if not self.by.scan_block or given["dim"] % given["self"].ndim != given["self"].ndim - 1:
            return None
        x = given["self"]
        inner = _padded(x, self.by.scan_block).unflatten(-1, (-1, self.by.scan_block)).cumsum(-1)
        before = F.pad(inner[..., -1].cumsum(-1), (1, -1))
        return (inner + before[..., None]).flatten(-2)[..., : x.shape[-1]]

    def on_native_layer_norm(self, given: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        x, count = given["input"], len(given["normalized_shape"])
        mean, inverse = self._standard(x.flatten(-count), given["eps"])
        y = (x - _like(mean, x)) * _like(inverse, x)
        return self._affine(y, given["weight"], given["bias"]), mean, inverse

    def on_native_group_norm(self, given: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        x, groups = given["input"], given["group"]
        flat = x.reshape(len(x), groups, -1)
        mean, inverse = self._standard(flat, given["eps"])
        y = ((flat - mean[..., None]) * inverse[..., None]).reshape(x.shape)
        shape = (-1, *[1] * (x.ndim - 2))
        affine = [None if p is None else p.reshape(shape) for p in (given["weight"], given["bias"])]
        return self._affine(y, *affine), mean, inverse

    def _standard(self, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        mean, variance = self.by.moments(x)
        return mean, self.by.functions.rsqrt(variance + eps)

    def _affine(self, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def on_native_batch_norm(self, given: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor] | None:
        """In eval mode: one multiply-add a channel, or none where it is folded into the convolution before."""
        if given["training"]:
            return None
        x = given["input"]
        scale = given["weight"] * self.by.functions.rsqrt(given["running_var"] + given["eps"])
        shift = given["bias"] - given["running_mean"] * scale
        shape = (-1, *[1] * (x.ndim - 2))
        if id(x) in self._convolutions:
            before = self._convolutions[id(x)][1]
            bias = shift if before["bias"] is None else shift + before["bias"] * scale
            y = self._convolve(before["input"], before["weight"] * scale.reshape(-1, 1, 1, 1), bias, before)
        else:
            y = x * scale.reshape(shape) + shift.reshape(shape)
        return y, torch.empty(0), torch.empty(0)

    def on_softmax(self, given: Mapping[str, Any]) -> Tensor:
        x = given["self"].movedim(given["dim"], -1)
        top = x.amax(-1, keepdim=True)
        p = self.by.numerators(self.by.functions.exp(x - top))
        denominator = self._online(x) if self.by.online else self.by.total(p)
        return self.by.functions.divide(p, denominator[..., None]).movedim(-1, given["dim"])

    def on_log_softmax(self, given: Mapping[str, Any]) -> Tensor:
        x = given["self"].movedim(given["dim"], -1)
        top = x.amax(-1, keepdim=True)
        p = self.by.numerators(self.by.functions.exp(x - top))
        denominator = self._online(x) if self.by.online else self.by.total(p)
        return (x - top - self.by.functions.log(denominator)[..., None]).movedim(-1, given["dim"])

    def _online(self, x: Tensor) -> Tensor:
        """Sum of exp(x - max x) in one pass over blocks, with a running maximum."""
        top, total = torch.full(x.shape[:-1], -math.inf), torch.zeros(x.shape[:-1])
        for part in x.split(self.by.online, -1):
            new = torch.maximum(top, part.amax(-1))
            base = torch.where(new.isinf(), 0.0, new)  # nothing but masked elements so far
            total = total * self.by.functions.exp(top - base)
            total = total + self.by.total(self.by.numerators(self.by.functions.exp(part - base[..., None])))
            top = new
        return total

    def on_nll_loss_forward(self, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        picked = given["self"].gather(1, given["target"][:, None])[:, 0]
        return -self.by.total(picked) / len(picked), torch.tensor(float(len(picked)))

    def on_smooth_l1_loss(self, given: Mapping[str, Any]) -> Tensor:
        away, beta = (given["self"] - given["target"]).abs(), given["beta"]
        loss = torch.where(away < beta, 0.5 * away * away / beta, away - 0.5 * beta)
        return self.by.total(loss.flatten()) / loss.numel()

    # --------------------------------------------------------------------------------------- pointwise

    def on_gelu(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.functions.gelu(given["self"])

    def on_silu(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.functions.silu(given["self"])

    def on_mish(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.functions.mish(given["self"])

    def on_elu(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.functions.elu(given["self"])

    def on_hardswish(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.functions.hardswish(given["self"])

    def on_rsqrt(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.functions.rsqrt(given["self"])

    def on_div(self, given: Mapping[str, Any]) -> Tensor:
        return self.by.functions.divide(given["self"], given["other"])

    def on_mul(self, given: Mapping[str, Any]) -> Tensor | None:
        if not self.by.contract:
            return None
        out = given["self"] * given["other"]
        self._products[id(out)] = (out, given["self"], given["other"])
        return out

    def on_add(self, given: Mapping[str, Any]) -> Tensor | None:
        """A sum with a product just made is rounded once. (Products that are views of one are left alone.)"""
        for product, other in ((given["self"], given["other"]), (given["other"], given["self"])):
            if id(product) in self._products and given.get("alpha", 1) == 1:
                _, left, right = self._products[id(product)]
                exact = _double(left) * _double(right) + _double(other)
                return exact.float()
        return None


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) else value


def _like(statistic: Tensor, x: Tensor) -> Tensor:
    return statistic.reshape(*statistic.shape, *[1] * (x.ndim - statistic.ndim))


# -------------------------------------------------------------------------------------------------------- treatments


def ways(total: Op, dot: Op, **more: Any) -> Arithmetic:
    """One order for sums and products alike."""
    return Arithmetic(total=total, dot=dot, **{"moments": two_pass(total), **more})


HONEST: Mapping[str, Arithmetic] = {
    "reversed": ways(reversed_total, reversed_dot),
    "permuted": ways(permuted_total, permuted_dot),
    "float64 sums": ways(double_total, double_dot),
    "16 lanes": ways(lanes_total(16), lanes_dot(16), scan_block=16),
    "8 lanes": ways(lanes_total(8), lanes_dot(8)),
    "4 lanes": ways(lanes_total(4), lanes_dot(4)),
    "one chain": ways(lanes_total(1), lanes_dot(1)),
    "64 lanes": ways(lanes_total(64), lanes_dot(64)),
    "chain of products": ways(lanes_total(8), lanes_dot(1)),
    "blocks of 8": ways(blocks_total(8), blocks_dot(8)),
    "blocks of 16": ways(blocks_total(16), blocks_dot(16), scan_block=16),
    "blocks of 64": ways(blocks_total(64), blocks_dot(64), scan_block=64),
    "tree, split K": ways(tree_total, split_k_dot(4)),
    "online, Welford": ways(lanes_total(16), blocks_dot(32), moments=welford(8), online=32),
    "one pass": Arithmetic(moments=one_pass(plain_total), online=64),
    "shifted one pass": Arithmetic(moments=shifted_one_pass(lanes_total(8)), online=16),
    "other formulas": Arithmetic(functions=BY_FORMULA),
    "few ulps": Arithmetic(functions=FEW_ULPS),
    "contracted, folded": Arithmetic(contract=True, fold=True),
    "3xTF32": Arithmetic(dot=split_dot(tf32)),
    "GPU-like": ways(tree_total, lanes_dot(1), functions=FEW_ULPS, contract=True, online=32),
    "CPU-like": ways(lanes_total(8), lanes_dot(1), functions=BY_FORMULA, contract=True, fold=True),
}


def _lower(name: str, rounding: Op) -> dict[str, Arithmetic]:
    """Lower precision inside of operators. (That of inputs and outputs is not an operator's.)"""
    return {
        f"{name} operands": Arithmetic(dot=rounded_dot(rounding, rounding)),
        f"{name} left operands": Arithmetic(dot=rounded_dot(rounding, None)),
        f"{name} right operands": Arithmetic(dot=rounded_dot(None, rounding)),
        f"{name} operands, half of the rows": Arithmetic(dot=half_rows_dot(rounding)),
        f"{name} accumulators": ways(rounded_total(rounding), rounded_sums_dot(rounding)),
        f"{name} intermediates": Arithmetic(result=rounding),
        f"{name} statistics": Arithmetic(moments=lambda x: two_pass(plain_total)(rounding(x)), numerators=rounding),
    }


CHEATS: Mapping[str, Arithmetic] = {
    **{key: value for name, rounding in ROUNDINGS.items() for key, value in _lower(name, rounding).items()},
    "truncated tf32 operands": Arithmetic(dot=rounded_dot(truncated_tf32, truncated_tf32)),
    "2xBF16": Arithmetic(dot=split_dot(bf16)),
}
