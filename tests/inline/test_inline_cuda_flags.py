"""Options of CUDA's compiler: what tunes a kernel is kept, what only tells is left out, devices are the referee's."""

from __future__ import annotations

import pytest

from kernelwright.inline import BuildError, cuda_flags


@pytest.mark.parametrize(
    "flags",
    [
        ["-v"],
        ["--ptxas-options=-v"],
        ["-Xptxas", "-v"],
        ["-Xptxas -v"],
        ["-Xptxas=-v"],
        ["-lineinfo"],
        ["--generate-line-info"],
        ["-g"],
        ["--resource-usage"],
        ["-w"],
        ["-Wall"],
        ["-Xcompiler", "-Wall"],
        ["-Xcompiler=-fPIC,-O2"],
    ],
)
def test_what_only_tells_is_left_out(flags):
    found = cuda_flags(["-O3", *flags, "--use_fast_math"])
    assert found.kept == ("-O3", "--use_fast_math")
    assert len(found.told) == 1
    assert not found.replaced


@pytest.mark.parametrize(
    "flags",
    [
        ["-arch=sm_80"],
        ["-arch", "sm_80"],
        ["--gpu-architecture=compute_90a"],
        ["-gencode=arch=compute_80,code=sm_80"],
        ["-gencode", "arch=compute_90,code=sm_90"],
        ["-gencode arch=compute_80,code=[sm_80,compute_80]"],
    ],
)
def test_a_device_is_replaced(flags):
    found = cuda_flags([*flags, "-DN=4"])
    assert found.kept == ("-DN=4",)
    assert len(found.replaced) == 1


def test_options_with_values_keep_them_and_each_is_kept_once():
    flags = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90"]
    assert len(cuda_flags(flags).replaced) == 2
    kept = cuda_flags(
        ["-std", "c++17", "--maxrregcount", "64", "-D", "A=1", "-DTEXT=a b", "-Xptxas", "-O3", "-O3", "-O3"]
    )
    assert kept.kept == ("-std=c++17", "--maxrregcount=64", "-DA=1", "-DTEXT=a b", "-Xptxas=-O3", "-O3")


@pytest.mark.parametrize(
    "flag",
    [
        "-include=/etc/passwd",
        "-I/",
        "-Xcompiler=-fplugin=x.so",
        "-Xlinker=-rpath",
        "-o",
        "-ccbin=/tmp/cc",
        "--run",
        "-arch=sm_80;ls",
        "@file",
        "-dryrun",
        7,
    ],
)
def test_what_reaches_outside_of_the_kernel_is_refused(flag):
    with pytest.raises(BuildError):
        cuda_flags([flag])
