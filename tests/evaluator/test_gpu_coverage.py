"""Kernels as people write them for GPUs, judged where there is none: right ones pass, wrong ones do not.

Each is a candidate of its own in ``gpu_candidates``; ``kernelwright evaluate gpu_candidates/problems/P.py
gpu_candidates/triton/C.py`` judges one of them by hand. Its docstring names the problem and the features that it shows.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.datasets import find_problem
from kernelwright.evaluator import Referee, _profile_static
from kernelwright.inline._cuda_compiler import find_nvcc
from kernelwright.records import Candidate, Stage, Status, Verdict

ROOT = Path(__file__).with_name("gpu_candidates")
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
MOST_UNCHECKED = 0.1
ARCHITECTURE = "sm_90"


@dataclass(frozen=True)
class Kernel:
    """One file of ``gpu_candidates``: ``name`` is ``<backend>/<stem>``."""

    name: str
    backend: str
    problem: str
    features: frozenset[str]
    source: str

    @staticmethod
    def read(path: Path) -> Kernel:
        source = path.read_text()
        header = dict(re.findall(r"^(\w+): (.+)$", ast.get_docstring(ast.parse(source)) or "", re.M))
        features = frozenset(header.get("features", "").split(", ")) - {""}
        return Kernel(f"{path.parent.name}/{path.stem}", path.parent.name, header["problem"], features, source)


KERNELS = {kernel.name: kernel for kernel in map(Kernel.read, sorted(ROOT.glob("[ct]*/*.py")))}
PROFILED = list(KERNELS)[::3]  # compiling all of them as well would take longer than checking them


def of(backend: str) -> list[Kernel]:
    return [kernel for kernel in KERNELS.values() if kernel.backend == backend]


@pytest.fixture(scope="module", autouse=True)
def one_architecture():
    """Of three: what differs between them is tested for single kernels elsewhere."""
    one = {ARCHITECTURE: _profile_static.ARCHITECTURES[ARCHITECTURE]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_profile_static, "ARCHITECTURES", one)
        yield


class Verdicts(dict[str, Verdict]):
    """Verdicts on right kernels by name, each judged when it is asked for first; of PROFILED ones with a profile."""

    def __init__(self, referee: Referee) -> None:
        super().__init__()
        self._referee = referee

    def __missing__(self, name: str) -> Verdict:
        self[name] = judged(self._referee, KERNELS[name], KERNELS[name].source, profile=name in PROFILED)
        return self[name]


def judged(referee: Referee, kernel: Kernel, source: str, **options: bool) -> Verdict:
    if kernel.backend == "cuda" and find_nvcc() is None:
        pytest.skip("no nvcc here: install CUDA's toolkit to run the tests of CUDA candidates")
    problem = find_problem(str(ROOT / f"problems/{kernel.problem}.py"))
    with referee.open(problem, backend=kernel.backend, baselines=("eager",)) as session:
        made = Candidate(problem_id=session.problem.id, source=source, backend=kernel.backend)
        return session.judge(made, **options).verdict


@pytest.fixture(scope="module")
def few_trials(referee):
    """A referee that checks little: whether a kernel can be checked at all shows in its first trials."""
    with Referee(referee.settings.with_values(check_trials=2), referee.sandbox) as made:
        yield made


@pytest.fixture(scope="module")
def verdicts(few_trials):
    return Verdicts(few_trials)


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes_or_is_not_checkable(verdicts, name):
    verdict = verdicts[name]
    assert verdict.status in (Status.PASSED, Status.UNCHECKED), verdict.reason
    assert verdict.timing is None
    if verdict.status is Status.PASSED:
        assert verdict.stage is Stage.CHECKED
    else:
        assert "not checkable" in verdict.reason or "emulator does not take it" in verdict.reason


def test_few_kernels_end_unchecked(verdicts):
    for backend in HARD:
        unchecked = [kernel.name for kernel in of(backend) if verdicts[kernel.name].status is Status.UNCHECKED]
        assert len(unchecked) <= MOST_UNCHECKED * len(of(backend)), unchecked


@pytest.mark.parametrize("name", PROFILED)
def test_a_kernel_has_a_static_profile(verdicts, name):
    if verdicts[name].profile is None:
        assert verdicts[name].status is Status.UNCHECKED  # not even the emulator could be built for it
        return
    kernels = verdicts[name].profile.kernels
    assert {kernel.architecture for kernel in kernels} == {ARCHITECTURE}
    assert all(kernel.registers for kernel in kernels if not kernel.problem)
    assert any(not kernel.problem for kernel in kernels)


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
def test_a_wrong_kernel_is_found(referee, wrong):
    profile = wrong.status is Status.COMPILE_ERROR
    verdict = judged(referee, KERNELS[wrong.kernel], wrong.source, profile=profile)
    assert verdict.status is wrong.status, verdict.reason
    assert wrong.words in verdict.reason


def test_a_configuration_that_cannot_be_launched_is_told_and_the_kernel_passes(referee):
    kernel = KERNELS["triton/matmul_grouped"]
    source = kernel.source.replace("(128, 256, 64))", "(256, 256, 128))")
    verdict = judged(referee, kernel, source)
    assert verdict.status is Status.PASSED, verdict.reason
    told = [note for note in verdict.profile.notes if "cannot be launched" in note]
    assert told
    assert all("BM=256" in note for note in told)
