"""A product in bfloat16 by programs that stay and take tile after tile.

problem: matmul
features: bf16-dot
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def tile_of(tile, blocks_m, blocks_n, GROUP: tl.constexpr):
    in_group = GROUP * blocks_n
    first = (tile // in_group) * GROUP
    size = tl.minimum(blocks_m - first, GROUP)
    return first + tile % size, (tile % in_group) // size


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    blocks_m, blocks_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), blocks_m * blocks_n, PROGRAMS, flatten=True):
        pid_m, pid_n = tile_of(tile, blocks_m, blocks_n, 1)
        rows = pid_m * BM + tl.arange(0, BM)
        cols = pid_n * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            inner = k * BK + tl.arange(0, BK)
            a_mask = (rows[:, None] < M) & (inner[None, :] < K)
            b_mask = (inner[:, None] < K) & (cols[None, :] < N)
            a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=a_mask, other=0.0)
            b = tl.load(b_ptr + inner[:, None] * N + cols[None, :], mask=b_mask, other=0.0)
            acc = tl.dot(a, b, acc)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty), mask=mask)


class ModelNew(nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty(M, N, device=a.device, dtype=a.dtype)
        tiles = triton.cdiv(M, 16) * triton.cdiv(N, 16)
        programs = min(tiles, torch.cuda.get_device_properties(0).multi_processor_count)
        matmul_kernel[(programs,)](a, b, c, M, N, K, PROGRAMS=programs, BM=16, BN=16, BK=32)
        return c
