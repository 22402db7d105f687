"""Operators with honest variants and cheats, for the calibration of the error budget. All tensors are float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Op = Callable[..., Tensor]


class Case(NamedTuple):
    shapes: tuple[tuple[int, ...], ...]
    reference: Op
    honest: dict[str, Op]
    cheats: dict[str, Op]


def tf32(x: Tensor) -> Tensor:
    """Round to ten mantissa bits."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def fp16(x: Tensor) -> Tensor:
    return x.half().float()


def lane_sum(x: Tensor, lanes: int) -> Tensor:
    """Sum the last dimension as a vector unit does: one running sum a lane, lanes combined in the end."""
    steps = x.reshape(*x.shape[:-1], -1, lanes)
    total = torch.zeros(*x.shape[:-1], lanes)
    for i in range(steps.shape[-2]):
        total = total + steps[..., i, :]
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    return total[..., 0]


def chain_sum(x: Tensor) -> Tensor:
    """Sum the last dimension as a plain loop does, in float32 (numpy's running sum; torch's is in float64)."""
    return torch.from_numpy(np.cumsum(x.numpy(), axis=-1, dtype=np.float32)[..., -1].copy())


def blocked_matmul(a: Tensor, b: Tensor, block: int = 64) -> Tensor:
    """Accumulate over blocks of the inner dimension."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], block):
        total += a[:, start : start + block] @ b[start : start + block]
    return total


def lane_matmul(a: Tensor, b: Tensor, lanes: int = 8) -> Tensor:
    """Accumulate lanes of rank-one updates."""
    totals = [torch.zeros(a.shape[0], b.shape[1]) for _ in range(lanes)]
    for k in range(a.shape[1]):
        totals[k % lanes] = torch.addcmul(totals[k % lanes], a[:, k : k + 1], b[k : k + 1])
    return torch.stack(totals).sum(0)


def exp2_based(x: Tensor) -> Tensor:
    return torch.exp2(x * math.log2(math.e))


def _total(x: Tensor, lanes: int) -> Tensor:
    return chain_sum(x) if lanes == 1 else lane_sum(x, lanes)


def softmax_by(x: Tensor, lanes: int, exp: Op = torch.exp) -> Tensor:
    p = exp(x - x.amax(-1, keepdim=True))
    return p * (1.0 / _total(p, lanes))[..., None]


def layer_norm_by(x: Tensor, lanes: int) -> Tensor:
    centred = x - (_total(x, lanes) / x.shape[-1])[..., None]
    variance = _total(centred * centred, lanes) / x.shape[-1]
    return centred * torch.rsqrt(variance + 1e-5)[..., None]


def variance_by(x: Tensor, lanes: int) -> Tensor:
    centred = x - (_total(x, lanes) / x.shape[-1])[..., None]
    return _total(centred * centred, lanes) / (x.shape[-1] - 1)


def layer_norm_one_pass(x: Tensor) -> Tensor:
    mean = lane_sum(x, 16) / x.shape[-1]
    variance = lane_sum(x * x, 16) / x.shape[-1] - mean * mean
    return (x - mean[..., None]) * torch.rsqrt(variance + 1e-5)[..., None]


def layer_norm_bf16_statistics(x: Tensor) -> Tensor:
    y = bf16(x)
    return (x - y.mean(-1, keepdim=True)) * torch.rsqrt(y.var(-1, keepdim=True, unbiased=False) + 1e-5)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def attention_blockwise(q: Tensor, k: Tensor, v: Tensor, block: int = 32) -> Tensor:
    """Online softmax over blocks of keys."""
    top = torch.full((*q.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.shape[-2], block):
        scores = q @ k[..., start : start + block, :].transpose(-1, -2) / math.sqrt(q.shape[-1])
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        p, shrink = torch.exp(scores - new_top), torch.exp(top - new_top)
        total = total * shrink + p.sum(-1, keepdim=True)
        out = out * shrink + p @ v[..., start : start + block, :]
        top = new_top
    return out / total


def attention_deferred(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    p = exp2_based(scores - scores.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)


def attention_rounded_p(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return tf32(torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)) @ v


def conv(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1)


def conv_by_columns(x: Tensor, w: Tensor) -> Tensor:
    columns = F.unfold(x, 3, padding=1)
    return (w.reshape(w.shape[0], -1) @ columns).reshape(x.shape[0], w.shape[0], *x.shape[2:])


def log_sum_exp_by(x: Tensor, lanes: int) -> Tensor:
    top = x.amax(-1)
    return top + torch.log(_total(torch.exp(x - top[..., None]), lanes))


CHAINS: dict[str, tuple[Op, Op]] = {
    "softmax": (lambda x: torch.softmax(x, -1), lambda x: softmax_by(x, 1)),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: layer_norm_by(x, 1)),
    "variance": (lambda x: x.var(-1), lambda x: variance_by(x, 1)),
    "mean_square": (lambda x: x.square().mean(-1), lambda x: chain_sum(x.square()) / x.shape[-1]),
    "sum": (lambda x: x.sum(-1), chain_sum),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda x: log_sum_exp_by(x, 1)),
    "rms_norm": (
        lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
        lambda x: x * torch.rsqrt(chain_sum(x.square()) / x.shape[-1] + 1e-6)[..., None],
    ),
    "matmul": (lambda x: x @ x[:8].T, lambda x: chain_sum(x[:, None] * x[None, :8])),
}
"""Reductions over the last dimension, each with a kernel that adds all terms in one chain."""


def rounded_inputs(reference: Op) -> dict[str, Op]:
    def rounding(to: Op) -> Op:
        return lambda *inputs: reference(*[to(x) for x in inputs])

    return {"tf32": rounding(tf32), "bf16": rounding(bf16), "fp16": rounding(fp16)}


def partial_work(reference: Op) -> dict[str, Op]:
    """Cheats that fit any operator."""

    def half_of_the_rows(*inputs: Tensor) -> Tensor:
        y, rounded = reference(*inputs), reference(*[tf32(x) for x in inputs])
        flat, rounded_flat = y.flatten(), rounded.flatten()
        half = flat.numel() // 2
        return torch.cat([flat[:half], rounded_flat[half:]]).reshape(y.shape)

    def one_percent_wrong(*inputs: Tensor) -> Tensor:
        y = reference(*inputs).clone()
        y.view(-1)[::100] *= 1.001
        return y

    return {
        "half rows tf32": half_of_the_rows,
        "1% wrong": one_percent_wrong,
        "zeros": lambda *inputs: torch.zeros_like(reference(*inputs)),
        "bf16 output": lambda *inputs: bf16(reference(*inputs)),
    }


def cheats_of(reference: Op, **more: Op) -> dict[str, Op]:
    return {**rounded_inputs(reference), **partial_work(reference), **more}


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def _log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def on_matrix_units(a: Tensor, b: Tensor, narrow: Op, parts: int, block: int) -> Tensor:
    """A float32 product that adds up products of narrow parts, without the smallest of these.

    Matrix units align what they add to its largest term, with one more digit than float32 has, and cut off the rest.
    Each ``block`` of the depth starts from zero in them, with the smallest products; their sums are added in float32.
    """
    left, right = _in_parts(a, narrow, parts), _in_parts(b, narrow, parts)
    pairs = sorted(((i, j) for i in range(parts) for j in range(parts - i)), key=lambda pair: -sum(pair))
    together = 8 if narrow is tf32 else 16  # terms that the units add at once
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], block):
        inside = torch.zeros_like(total, dtype=torch.float64)
        for i, j in pairs:
            for k in range(start, min(start + block, a.shape[1]), together):
                end = min(k + together, start + block)
                terms = left[i][:, None, k:end] * right[j].T[None, :, k:end]
                inside = _cut_sum(torch.cat([terms, inside[..., None]], -1))
        total = total + inside.float()
    return total


def on_scaled_units(a: Tensor, b: Tensor, block: int) -> Tensor:
    """The same with two float16 parts, of rows and columns that powers of two bring into float16's range."""
    left, right = (
        torch.exp2(14 - x.abs().amax(d, keepdim=True).clamp_min(1e-30).log2().floor()) for d, x in enumerate((b, a))
    )
    return on_matrix_units(a * right, b * left, fp16, 2, block) / right / left


def _in_parts(x: Tensor, narrow: Op, parts: int) -> list[Tensor]:
    found = []
    for _ in range(parts):
        found.append(narrow(x).double())
        x = x - narrow(x)
    return found


def _cut_sum(terms: Tensor) -> Tensor:
    """The sum over the last dim as matrix units give it."""
    _, exponent = torch.frexp(terms.abs().amax(-1, keepdim=True))
    aligned = torch.ldexp(torch.ldexp(terms, 25 - exponent).trunc(), exponent - 25)
    mantissa, exponent = torch.frexp(aligned.sum(-1))
    return torch.ldexp(torch.ldexp(mantissa, torch.tensor(24)).trunc(), exponent - 24)


CASES: dict[str, Case] = {
    "softmax": Case(
        ((64, 1024),),
        _softmax,
        {
            "16 lanes": lambda x: softmax_by(x, 16),
            "8 lanes": lambda x: softmax_by(x, 8),
            "exp2": lambda x: softmax_by(x, 16, exp2_based),
            "reversed": lambda x: torch.softmax(x.flip(-1), -1).flip(-1),
        },
        cheats_of(
            _softmax,
            **{
                "constant below atol": lambda x: torch.full_like(x, 1.0 / x.shape[-1]),
                "tf32 numerators": lambda x: (lambda p: p / p.sum(-1, keepdim=True))(
                    tf32(torch.exp(x - x.amax(-1, keepdim=True)))
                ),
            },
        ),
    ),
    "layer_norm": Case(
        ((64, 1024),),
        _layer_norm,
        {
            "16 lanes": lambda x: layer_norm_by(x, 16),
            "8 lanes": lambda x: layer_norm_by(x, 8),
            "one pass": layer_norm_one_pass,
        },
        cheats_of(_layer_norm, **{"bf16 statistics": layer_norm_bf16_statistics}),
    ),
    "gemm": Case(
        ((64, 512), (512, 64)),
        torch.matmul,
        {
            "blocks": blocked_matmul,
            "8 lanes": lane_matmul,
            "3xTF32": lambda a, b: tf32(a) @ tf32(b) + tf32(a - tf32(a)) @ tf32(b) + tf32(a) @ tf32(b - tf32(b)),
            "3xTF32 on matrix units": lambda a, b: on_matrix_units(a, b, tf32, 2, 32),
            "6xBF16 on matrix units": lambda a, b: on_matrix_units(a, b, bf16, 3, 32),
            "3xFP16 on matrix units": lambda a, b: on_scaled_units(a, b, 64),
        },
        cheats_of(
            torch.matmul,
            **{
                "2xBF16": lambda a, b: bf16(a) @ bf16(b) + bf16(a - bf16(a)) @ bf16(b) + bf16(a) @ bf16(b - bf16(b)),
                "tf32 weights": lambda a, b: a @ tf32(b),
                "half of K tf32": lambda a, b: a[:, :256] @ b[:256] + tf32(a[:, 256:]) @ tf32(b[256:]),
            },
        ),
    ),
    "conv": Case(
        ((2, 16, 16, 16), (32, 16, 3, 3)),
        conv,
        {
            "im2col": conv_by_columns,
            "one by one": lambda x, w: torch.cat([conv(x[i : i + 1], w) for i in range(x.shape[0])]),
            "channel blocks": lambda x, w: conv(x[:, :8], w[:, :8]) + conv(x[:, 8:], w[:, 8:]),
        },
        cheats_of(conv),
    ),
    "attention": Case(
        ((2, 128, 64), (2, 128, 64), (2, 128, 64)),
        attention,
        {"blockwise": attention_blockwise, "deferred": attention_deferred},
        cheats_of(
            attention,
            **{
                "tf32 in P V": attention_rounded_p,
                "tf32 keys": lambda q, k, v: attention(q, tf32(k), v),
            },
        ),
    ),
    "gelu": Case(
        ((128, 512),),
        F.gelu,
        {
            "explicit": lambda x: 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5))),
            "erfc": lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)),
        },
        cheats_of(
            F.gelu,
            tanh=lambda x: F.gelu(x, approximate="tanh"),
            sigmoid=lambda x: x * torch.sigmoid(1.702 * x),
        ),
    ),
    "sum": Case(
        ((64, 4096),),
        _sum,
        {"8 lanes": lambda x: lane_sum(x, 8), "64 lanes": lambda x: lane_sum(x, 64)},
        cheats_of(_sum, **{"drops 1%": lambda x: x[:, 41:].sum(-1)}),
    ),
    "logsumexp": Case(
        ((64, 1024),),
        _log_sum_exp,
        {"8 lanes": lambda x: log_sum_exp_by(x, 8), "16 lanes": lambda x: log_sum_exp_by(x, 16)},
        cheats_of(_log_sum_exp),
    ),
}
