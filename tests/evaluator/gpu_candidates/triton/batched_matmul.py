"""Products of many matrices in float16, on a grid of three dimensions.

problem: batched_matmul
features: autotune
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(
    configs=[triton.Config({"BM": 16, "BN": 16, "BK": 32}), triton.Config({"BM": 64, "BN": 64, "BK": 32}, num_warps=8)],
    key=["M", "N", "K"],
)
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def bmm_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN_K: tl.constexpr):
    batch = tl.program_id(2)
    a += batch * M * K
    b += batch * K * N
    c += batch * M * N
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, K, BK):
        inner = start + tl.arange(0, BK)
        if EVEN_K:
            left = tl.load(a + rows[:, None] * K + inner[None, :], mask=rows[:, None] < M, other=0.0)
            right = tl.load(b + inner[:, None] * N + cols[None, :], mask=cols[None, :] < N, other=0.0)
        else:
            left_mask = (rows[:, None] < M) & (inner[None, :] < K)
            right_mask = (inner[:, None] < K) & (cols[None, :] < N)
            left = tl.load(a + rows[:, None] * K + inner[None, :], mask=left_mask, other=0.0)
            right = tl.load(b + inner[:, None] * N + cols[None, :], mask=right_mask, other=0.0)
        acc += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + cols[None, :], acc.to(tl.float16), mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (batch, M, K), N = a.shape, b.shape[2]
        c = torch.empty(batch, M, N, device=a.device, dtype=a.dtype)
        bmm_kernel[lambda meta: (triton.cdiv(M, meta["BM"]), triton.cdiv(N, meta["BN"]), batch)](a, b, c, M, N, K)
        return c
