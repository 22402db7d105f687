"""Kernels as people write them for GPUs: what they show, and that wrong ones are found where there is no GPU.

``test_gpu_coverage_triton.py`` and ``test_gpu_coverage_cuda.py`` judge the right ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from evaluator_gpu_kernels import KERNELS, of

from kernelwright.records import Status

pytestmark = pytest.mark.untimed
# What a header may say that a candidate has, and how its text shows it: what is hard to check without a device first.
HARD = {
    "triton": {
        "bf16-dot": r"tl\.dot\((?s:.)*bfloat16|bfloat16(?s:.)*tl\.dot\(",
        "fp8-dot": r"float8\w+(?s:.)*tl\.dot\(",
        "descriptor": r"tl\.make_tensor_descriptor\(|TensorDescriptor\.from_tensor\(",
        "scan": r"tl\.(?:associative_scan|cumsum)\(",
        "atomics": r"tl\.atomic_\w+\(",
        "autotune": r"@triton\.autotune\(",
    },
    "cuda": {
        "launcher": r"torch::Tensor \w+\((?:const )?torch::Tensor|> \w+\(torch::Tensor",
        "template": r"template <[^>]*(?:typename|int|bool)",
        "warp": r"__shfl_\w+sync\(|cg::reduce\(|\.shfl_\w+\(",
        "dynamic": r"extern __shared__",
        "cooperative": r"cooperative_groups",
    },
}
OTHER = {
    "libdevice": r"libdevice\.\w+\(",
    "random": r"tl\.rand\(",
    "reduction": r"tl\.(?:reduce|argmax|max)\(",
    "sort": r"tl\.sort\(",
}


def test_the_kernels_show_what_is_hard_to_check():
    assert len(of("triton")) >= 40
    assert len(of("cuda")) >= 20
    for backend, features in HARD.items():
        hard = [kernel for kernel in of(backend) if kernel.features & set(features)]
        assert len(hard) >= len(of(backend)) / 2
        assert set(features) <= {name for kernel in hard for name in kernel.features}


@pytest.mark.parametrize("name", KERNELS)
def test_a_header_tells_the_truth(name):
    kernel = KERNELS[name]
    for feature in kernel.features:
        assert re.search((HARD[kernel.backend] | OTHER)[feature], kernel.source), feature


# ------------------------------------------------------------------------------------------------- wrong kernels


@dataclass(frozen=True)
class Fault:
    """A right kernel with one thing changed: ``(old, new)`` pairs, how it ends, and what the reason says."""

    what: str
    kernel: str
    changes: tuple[tuple[str, str], ...]
    status: Status
    words: str = ""

    @property
    def source(self) -> str:
        source = KERNELS[self.kernel].source
        for old, new in self.changes:
            assert old in source, old
            source = source.replace(old, new)
        return source


def fault(what: str, kernel: str, *changes: tuple[str, str], status: Status, words: str = "") -> Fault:
    return Fault(what, kernel, changes, status, words)


WRONG_VALUES, CRASH = Status.INCORRECT_NUMERICAL, Status.RUNTIME_ERROR
FAULTS = (
    fault(
        "a load without its mask",
        "triton/softmax_rows",
        ('+ at, mask=at < cols, other=-float("inf"))', "+ at)"),
        status=CRASH,
        words="past the end of x",
    ),
    fault(
        "a mask that is off by one",
        "triton/argmax_pairs",
        ("(at < cols), other", "(at <= cols), other"),
        status=CRASH,
        words="load out of bounds",
    ),
    fault(
        "columns beyond the row in a sum of squares",
        "triton/layer_norm_rows",
        ("tl.where(inside, values - mean, 0.0)", "values - mean"),
        status=WRONG_VALUES,
    ),
    fault(
        "an accumulator in bfloat16",
        "triton/total_last_program",
        ("dtype=tl.float32)", "dtype=tl.bfloat16)"),
        (
            "total += tl.load(x + start + at, mask=start + at < n, other=0.0)",
            "total = (total + tl.load(x + start + at, mask=start + at < n, other=0.0)).to(tl.bfloat16)",
        ),
        status=WRONG_VALUES,
    ),
    fault(
        "sums that start with whatever lies there",
        "triton/matmul_split_k",
        ("torch.zeros(M, N", "torch.empty(M, N"),
        status=WRONG_VALUES,
    ),
    fault(
        "a stride of the input for the output",
        "triton/transpose_tiles",
        ("y_ptr + at_row * rows + at_col", "y_ptr + at_row * cols + at_col"),
        status=WRONG_VALUES,
    ),
    fault(
        "columns that no program writes",
        "triton/embedding_rows",
        ("triton.cdiv(width, 32))]", "1)]"),
        status=WRONG_VALUES,
    ),
    fault(
        "additions without atomics",
        "triton/segment_sum_atomics",
        (
            "tl.atomic_add(y + low[:, None] * cols + at[None, :], values, mask=mask)",
            "at = y + low[:, None] * cols + at[None, :]\n    tl.store(at, tl.load(at, mask=mask) + values, mask=mask)",
        ),
        status=WRONG_VALUES,
    ),
    fault(
        "the last program taken for the one that ends last",
        "triton/total_last_program",
        ("if before == tl.num_programs(0) - 1", "if pid == tl.num_programs(0) - 1"),
        status=WRONG_VALUES,
    ),
    fault(
        "the first program taken for the one that begins first",
        "triton/column_sum_locked",
        ("if count == 0", "if tl.program_id(0) == 0"),
        status=WRONG_VALUES,
    ),
    fault(
        "a tile that no device can hold",
        "triton/matmul_persistent",
        ("BM=16, BN=16, BK=32", "BM=256, BN=256, BK=128, num_stages=4"),
        status=Status.COMPILE_ERROR,
        words="matmul_kernel",
    ),
    fault(
        "a tile overwritten while it is read",
        "cuda/matmul_dynamic_shared",
        ("threadIdx.x];\n    __syncthreads();", "threadIdx.x];"),
        status=CRASH,
        words="__syncthreads() is missing",
    ),
    fault(
        "counts in shared memory without atomics",
        "cuda/histogram_shared_atomics",
        ("atomicAdd(&local[values[i]], 1)", "local[values[i]]++"),
        status=CRASH,
        words="Race",
    ),
    fault(
        "storage of a collective used again too soon",
        "cuda/cumsum_block_scan",
        ("carry += total;\n    __syncthreads();", "carry += total;"),
        status=CRASH,
        words="Race",
    ),
    fault(
        "too little dynamic shared memory",
        "cuda/group_norm_shared_values",
        ("(32 + width * pixels) * sizeof", "(width * pixels) * sizeof"),
        status=CRASH,
        words="dynamic shared memory",
    ),
    fault(
        "no barrier of the grid",
        "cuda/total_grid_sync",
        ("grid.sync();", ""),
        status=WRONG_VALUES,
    ),
    fault(
        "a halo that reads beyond the image",
        "cuda/conv2d_shared_halo",
        ("r < side && c >= 0 && c < side", "r <= side && c >= 0 && c < side"),
        status=CRASH,
        words="past the end of",
    ),
    fault(
        "a part of the output that nobody writes",
        "cuda/swiglu_vectors",
        ("<<<4, 64>>>(from, to, rows, half);\n  else", "<<<4, 64>>>(from, to, rows - 1, half);\n  else"),
        status=WRONG_VALUES,
    ),
)


@pytest.mark.parametrize("wrong", FAULTS, ids=[wrong.what for wrong in FAULTS])
def test_a_wrong_kernel_is_found(judge_kernel, wrong):
    profile = wrong.status is Status.COMPILE_ERROR
    verdict = judge_kernel(KERNELS[wrong.kernel], wrong.source, profile=profile)
    assert verdict.status is wrong.status, verdict.reason
    assert wrong.words in verdict.reason


def test_a_configuration_that_cannot_be_launched_is_told_and_the_kernel_passes(judge_kernel):
    kernel = KERNELS["triton/matmul_grouped"]
    source = kernel.source.replace("(128, 256, 64))", "(256, 256, 128))")
    verdict = judge_kernel(kernel, source, profile=True)
    assert verdict.status is Status.PASSED, verdict.reason
    told = [note for note in verdict.profile.notes if "cannot be launched" in note]
    assert told
    assert all("BM=256" in note for note in told)
