"""Causal attention in bfloat16 through tensor descriptors, autotuned.

problem: attention
features: bf16-dot, descriptor, autotune
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(
    configs=[triton.Config({"BM": 16, "BN": 16}), triton.Config({"BM": 64, "BN": 32}, num_warps=8, num_stages=2)],
    key=["tokens"],
)
@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, tokens, scale, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    first = tl.program_id(0) * BM
    head = tl.program_id(1).to(tl.int64) * tokens * WIDTH
    q_rows = tl.make_tensor_descriptor(q_ptr + head, [tokens, WIDTH], [WIDTH, 1], [BM, WIDTH])
    k_rows = tl.make_tensor_descriptor(k_ptr + head, [tokens, WIDTH], [WIDTH, 1], [BN, WIDTH])
    v_rows = tl.make_tensor_descriptor(v_ptr + head, [tokens, WIDTH], [WIDTH, 1], [BN, WIDTH])
    o_rows = tl.make_tensor_descriptor(o_ptr + head, [tokens, WIDTH], [WIDTH, 1], [BM, WIDTH])
    q = q_rows.load([first, 0])
    row = first + tl.arange(0, BM)
    largest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.full([BM], 0.0, tl.float32)
    acc = tl.zeros([BM, WIDTH], tl.float32)
    for start in range(0, first + BM, BN):
        col = start + tl.arange(0, BN)
        scores = tl.dot(q, k_rows.load([start, 0]).T) * scale
        scores = tl.where(row[:, None] >= col[None, :], scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp(scores - higher[:, None])
        correction = tl.exp(largest - higher)
        total = tl.fma(total, correction, tl.sum(p, 1))
        acc = tl.dot(p.to(tl.bfloat16), v_rows.load([start, 0]), acc * correction[:, None])
        largest = higher
    o_rows.store([first, 0], (acc / total[:, None]).to(tl.bfloat16))


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        batch, heads, tokens, width = q.shape
        out = torch.empty_like(q)
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=q.device, dtype=torch.int8))
        attention_kernel[lambda meta: (triton.cdiv(tokens, meta["BM"]), batch * heads)](
            q, k, v, out, tokens, width**-0.5, WIDTH=width
        )
        return out
