"""What candidates are built into: the same for two texts of one kernel, with every real part."""

from __future__ import annotations

import pytest
from referee_candidates import KERNEL, RIGHT, TRITON, candidate
from referee_cuda_candidates import KERNEL as CUDA

from kernelwright.inline.cuda_toolchain import find_nvcc
from kernelwright.records import Backend, Candidate

pytestmark = pytest.mark.untimed


@pytest.fixture
def code(softmax):
    def code(source: str, backend: Backend = "cpp", **knobs: int) -> str:
        return softmax.machine_code(
            Candidate(problem_id=softmax.problem.id, source=source, backend=backend, knobs=knobs)
        )

    return code


def test_other_words_for_one_kernel(code):
    found = code(RIGHT)
    assert len(found) == 64
    assert code(candidate(kernel=KERNEL.replace("sums", "totals"))) == found
    assert code(candidate(kernel="#define UNUSED 1\n" + KERNEL)) == found
    assert code(candidate(top="# the Python around it does not matter")) == found


def test_another_kernel(code):
    assert code(candidate(kernel=KERNEL.replace("sums[16]", "sums[17]"))) != code(RIGHT)
    assert code(candidate(flags='("-O1",)')) != code(RIGHT)


def test_nothing_is_said_of_what_is_not_built(code):
    assert code(candidate(kernel="this is no C++")) == ""
    assert code(candidate(top="import os\nos.fork()")) == "", "the screen refuses it"
    assert code(candidate(top="raise RuntimeError")) == ""
    assert code(TRITON, "triton") == ""


def test_kernels_for_a_gpu(code):
    if find_nvcc() is None:
        pytest.skip("no nvcc here: install CUDA's toolkit to run the tests of CUDA candidates")
    found = code(CUDA, "cuda")
    assert len(found) == 64
    assert code(CUDA.replace("threadIdx.x", "(threadIdx.x)"), "cuda") == found
    assert code(CUDA.replace("expf", "__expf"), "cuda") not in ("", found)
