"""CUDA candidates judged without a device: compiled for one, checked on the CPU, never timed."""

from __future__ import annotations

import pytest
from referee_cuda_candidates import EXTENSION, KERNEL
from referee_small_problems import unscreened

from kernelwright.errors import MissingToolError
from kernelwright.inline import BuildError
from kernelwright.inline import cuda_toolchain as _cuda_compiler
from kernelwright.inline.cuda_toolchain import find_nvcc
from kernelwright.records import Candidate, Stage, Status

pytestmark = pytest.mark.untimed


@pytest.fixture
def judge(softmax):
    if find_nvcc() is None:
        pytest.skip("no nvcc here: install CUDA's toolkit to run the tests of CUDA candidates")

    def judge(source, **options):
        made = Candidate(problem_id=softmax.problem.id, source=source, backend="cuda")
        return softmax.judge(made, **options)

    return judge


def test_a_right_kernel_passes_at_stage_checked_without_a_time(judge):
    evaluation = judge(KERNEL)
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage, verdict.timing) == (Status.PASSED, Stage.CHECKED, None), verdict.reason
    assert not evaluation.samples
    assert "wrong without its own kernels" in next(f.evidence for f in verdict.findings if f.rule == "own-kernels")
    assert "registers" in evaluation.artifacts["compiler"]  # what ptxas says of it
    assert verdict.profile.rung == "static"
    kernels = {kernel.architecture: kernel for kernel in verdict.profile.kernels}
    assert sorted(kernels) == ["sm_100", "sm_80", "sm_90"]
    for kernel in kernels.values():
        assert (kernel.kernel, kernel.block, kernel.shared_bytes) == ("softmax", 128, 16)
        assert kernel.registers > 8
        assert kernel.spilled_bytes == 0
        assert (kernel.barriers, sum(kernel.global_accesses.values())) >= (2, 4)
        assert 0 < kernel.occupancy <= 1


def test_without_a_cuda_compiler_nothing_is_said_of_the_candidate(softmax, monkeypatch):
    _cuda_compiler.cuda_compiler.cache_clear()
    monkeypatch.setattr(_cuda_compiler, "find_nvrtc", lambda: None)
    monkeypatch.setattr(_cuda_compiler, "find_nvcc", lambda: None)
    made = Candidate(problem_id=softmax.problem.id, source=KERNEL + "\n", backend="cuda")
    with pytest.raises(MissingToolError, match="no CUDA compiler: pip install nvidia-cuda-nvrtc"):
        softmax.judge(made)
    with pytest.raises(BuildError):
        _cuda_compiler.cuda_compiler()


def test_a_launcher_in_cpp_passes_too(judge):
    verdict = judge(EXTENSION).verdict
    assert (verdict.status, verdict.stage, verdict.timing) == (Status.PASSED, Stage.CHECKED, None), verdict.reason
    assert {kernel.kernel for kernel in verdict.profile.kernels} == {"softmax"}


@pytest.mark.parametrize(
    ("old", "new", "status", "words"),
    [
        ("/ t;", "/ t * 1.001f;", Status.INCORRECT_NUMERICAL, "error budget"),
        ("= t;\n  __syncthreads();", "= t;", Status.RUNTIME_ERROR, "__syncthreads() is missing"),
        ("j < cols; j += blockDim.x) y", "j <= cols; j += blockDim.x) y", Status.RUNTIME_ERROR, "past the end of"),
        ("[x.shape[0], 128, 16]", "[x.shape[0], 128, 8]", Status.RUNTIME_ERROR, "past the end of the 8 bytes"),
        ("[x.shape[0], 128, 16]", "[x.shape[0], 4096, 16]", Status.RUNTIME_ERROR, "CannotLaunch"),
        ("float t = 0;", "float t = nonsense;", Status.COMPILE_ERROR, "nonsense"),
        ("float t = 0;", 'float t = 0; asm volatile("membar.gl;");', Status.UNCHECKED, "emulator does not take it"),
        ("float t = 0;", "float t = __activemask() & 0;", Status.UNCHECKED, "__activemask"),
    ],
)
def test_what_is_wrong_is_told(judge, old, new, status, words):
    assert old in KERNEL
    verdict = judge(KERNEL.replace(old, new)).verdict
    assert verdict.status is status, verdict.reason
    assert words in verdict.reason
    assert verdict.timing is None
    built = status not in (Status.COMPILE_ERROR, Status.UNCHECKED) or "__activemask" in words
    assert (verdict.profile is not None) == built


def test_an_answer_that_needs_no_kernel_is_refused(judge, softmax):
    cheat = KERNEL.replace("return y", "return x.softmax(-1)")
    with unscreened(softmax):
        verdict = judge(cheat).verdict
    assert (verdict.status, verdict.failed_stage) == (Status.REWARD_HACK, "ghost"), verdict.reason


def test_a_source_that_is_too_large_is_refused_before_it_is_read(judge):
    verdict = judge(KERNEL.replace("float t = 0;", "float t = 0; //" + "x" * (300 << 10))).verdict
    assert (verdict.status, verdict.failed_stage) == (Status.COMPILE_ERROR, "build")
    assert "at most 256 KB" in verdict.reason
