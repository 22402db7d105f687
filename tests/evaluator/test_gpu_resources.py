"""What kernels take of a GPU: parsers on recorded text, and how many blocks fit on a multiprocessor."""

from __future__ import annotations

import pytest

from kernelwright.evaluator.builds.gpu_resources import (
    ARCHITECTURES,
    Launch,
    occupancy,
    parse_machine_code,
    parse_ptxas,
    plain_name,
    resources,
)

# As nvcc 13.0 prints it.
NVCC = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'v4' for 'sm_90'
ptxas info    : Function properties for v4
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
ptxas info    : Compile time = 2.077 ms
ptxas info    : Compiling entry function '_Z3bigIfEvPKT_PS0_i' for 'sm_90'
ptxas info    : Function properties for _Z3bigIfEvPKT_PS0_i
    256 bytes stack frame, 88 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 148 registers, used 1 barriers, 256 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 38.535 ms
"""
# As NVRTC 13.5 has it in its log.
NVRTC = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'v4' for 'sm_80'
ptxas info    : Function properties for v4
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 368 bytes cmem[0]
"""
LISTING = """\
.text.v4:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0060*/                   LDG.E.128 R4, desc[UR4][R4.64] ;
        /*0080*/              @!P0 STG.E.128 desc[UR4][R2.64], R4 ;
        /*0090*/                   EXIT ;
        /*00a0*/                   NOP ;
.text._Z3bigIfEvPKT_PS0_i:
        /*00e0*/                   LDG.E R6, desc[UR6][R20.64] ;
        /*00f0*/              @P1  LDG.E R7, desc[UR6][R22.64] ;
        /*0100*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0110*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
"""


def test_what_ptxas_says():
    found = parse_ptxas(NVCC)
    assert list(found) == ["v4", "_Z3bigIfEvPKT_PS0_i"]
    assert tuple(found["v4"]) == (12, 0, 0, 0)
    assert tuple(found["_Z3bigIfEvPKT_PS0_i"]) == (148, 88, 256, 1024)
    assert tuple(parse_ptxas(NVRTC)["v4"]) == (10, 0, 0, 0)


@pytest.mark.parametrize("text", ["", "nvcc fatal : nonsense", "Compiling entry function 'f' for 'sm_90'\nand no more"])
def test_no_figures_where_ptxas_gave_none(text):
    assert parse_ptxas(text) == {}


def test_what_machine_code_consists_of():
    found = parse_machine_code(LISTING)
    assert found["v4"].instructions == 4
    assert found["v4"].global_accesses == {"LDG.E.128": 1, "STG.E.128": 1}
    big = found["_Z3bigIfEvPKT_PS0_i"]
    assert (big.barriers, big.matrix_instructions, big.global_accesses) == (1, {"HMMA.16816.F32.BF16": 1}, {"LDG.E": 2})


# Blocks on a multiprocessor by NVIDIA's own calculator (cuda_occupancy.h of CUDA 13.0).
@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "block", "blocks"),
    [
        ("sm_80", 32, 0, 256, 8),
        ("sm_80", 255, 0, 256, 1),
        ("sm_80", 33, 0, 1024, 1),
        ("sm_80", 16, 40960, 128, 4),
        ("sm_80", 16, 0, 33, 32),
        ("sm_90", 72, 24576, 128, 7),
        ("sm_90", 16, 65536, 128, 3),
        ("sm_90", 16, 232448, 128, 1),
        ("sm_90", 73, 0, 1024, 0),
        ("sm_100", 24, 4096, 32, 32),
    ],
)
def test_occupancy_is_that_of_nvidias_calculator(architecture, registers, shared, block, blocks):
    found = occupancy(ARCHITECTURES[architecture], registers=registers, shared_bytes=shared, block=block)
    assert found.blocks == blocks
    assert found.warps_share == pytest.approx(blocks * -(-block // 32) / 64, abs=1e-4)


def test_each_launch_has_its_own_occupancy_and_its_own_problem():
    launches = [Launch("v4", 128, 0), Launch("ns::big<float, 4>", 256, 0), Launch("ns::big<float, 4>", 512, 300_000)]
    found = resources("sm_90", parse_ptxas(NVCC), parse_machine_code(LISTING), launches)
    assert [(k.kernel, k.block, k.limiter) for k in found] == [
        ("v4", 128, "warps"),
        ("big", 256, "registers"),
        ("big", 512, "registers"),
    ]
    assert [bool(k.problem) for k in found] == [False, False, True]
    assert "301024 bytes of shared memory" in found[2].problem
    (fits, _) = resources("sm_90", parse_ptxas(NVCC), {}, [])
    assert (fits.occupancy, fits.block, fits.instructions, fits.problem) == (None, None, 0, "")


def test_threads_that_do_not_fit_are_told():
    (v4, _) = resources("sm_90", parse_ptxas(NVCC.replace("Used 12 ", "Used 80 ")), {}, [Launch("v4", 1024, 0)])
    assert "1024 threads with 80 registers each do not fit" in v4.problem


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [("softmax", "softmax"), ("_Z3bigIfEvPKT_PS0_i", "big"), ("_ZN2ns5inner1fEPf", "f"), ("_Z", "_Z"), ("_Zx", "_Zx")],
)
def test_names_of_functions(mangled, plain):
    assert plain_name(mangled) == plain
