"""Launches of libraries, logged by callbacks: of the stand-in here, in a process of their own; and what cubins tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in import host_module

from kernelwright.evaluator.builds.emulation import assembly_command
from kernelwright.evaluator.worker import launch_log
from kernelwright.evaluator.worker.cubins import kernels_of
from kernelwright.inline.cuda_toolchain import header_folders

WORKER = Path(__file__).parent.parent / "stand_in" / "logging_worker.py"
PTX = """
.version 8.1
.target sm_80
.address_size 64
.visible .entry none() { ret; }
.entry kept(.param .u64 p) { .reg .u64 a; ld.param.u64 a, [p]; st.global.u64 [a], a; ret; }
.visible .entry many(
  .param .u64 pointer, .param .u8 small, .param .f64 number, .param .align 1 .b8 bytes[13],
  .param .align 64 .b8 map[128], .param .u32 last
) { ret; }
.visible .entry large(.param .align 4 .b8 table[9000], .param .u64 pointer) { ret; }
"""


# Structures of launch_log.py, by their names in CUDA's headers.
LAYOUTS = {
    "CUpti_CallbackData": ("_Call", "callbackSite functionName functionParams functionReturnValue symbolName"),
    "CUpti_ResourceData": ("_Resource", "context resourceHandle resourceDescriptor"),
    "CUpti_ModuleResourceData": ("_Module", "moduleId cubinSize pCubin"),
    "CUlaunchAttribute": ("_Attribute", "id pad value"),
    "CUlaunchConfig": ("_Config", "gridDimX blockDimX sharedMemBytes hStream attrs numAttrs"),
    "cudaLaunchConfig_t": ("_RuntimeConfig", "gridDim blockDim dynamicSmemBytes stream attrs numAttrs"),
    "cuLaunchKernel_params": ("_Launch", "f gridDimX blockDimX sharedMemBytes hStream kernelParams extra"),
    "cuLaunchKernelEx_params": ("_LaunchEx", "config f kernelParams extra"),
    "cuLaunchCooperativeKernel_params": (
        "_LaunchTogether",
        "f gridDimX blockDimX sharedMemBytes hStream kernelParams",
    ),
    "cudaLaunchKernel_v7000_params": ("_RuntimeLaunch", "func gridDim blockDim args sharedMem stream"),
    "cudaLaunchCooperativeKernel_v9000_params": ("_RuntimeLaunch", "func gridDim blockDim args sharedMem stream"),
    "cudaLaunchKernelExC_v11060_params": ("_RuntimeLaunchEx", "config func args"),
    "cuMemsetD8Async_params": ("_Fill8", "dstDevice uc N hStream"),
    "cuMemsetD32Async_params": ("_Fill", "dstDevice ui N hStream"),
    "cudaMemsetAsync_v3020_params": ("_Fill", "devPtr value count stream"),
    "cuMemcpyDtoDAsync_v2_params": ("_Copy", "dstDevice srcDevice ByteCount hStream"),
    "cuMemcpyAsync_params": ("_Copy", "dst src ByteCount hStream"),
    "cudaMemcpyAsync_v3020_params": ("_RuntimeCopy", "dst src count kind stream"),
}


def logged(rehearsed, tmp_path, **variables):
    path, other = tmp_path / "affine.so", tmp_path / "other.cu"
    path.write_bytes(rehearsed.affine)
    other.write_text((WORKER.parent / "affine.cu").read_text().replace("+ 1.0f", "+ 3.0f"))
    module = tmp_path / "other.so"
    module.write_bytes(host_module(other, tmp_path))
    command = [sys.executable, str(WORKER), rehearsed.library, str(path), str(module)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def told(rehearsed, tmp_path_factory):
    return logged(rehearsed, tmp_path_factory.mktemp("log"))


BY_RUNTIME = ["by_the_runtime", "by_the_runtime_together", "by_the_runtime_in_clusters"]


@pytest.mark.parametrize("kind", ["plain", "packed", "together", "in_a_thread", "loaded_inside", *BY_RUNTIME])
def test_a_launch_is_told_once_with_its_parameters(told, rehearsed, kind):
    assert told[kind]["unknown"] == []
    (step,) = told[kind]["steps"]
    assert (step["name"], step["grid"], step["block"]) == ("affine", [2, 1, 1], [1, 1, 1])
    assert (step["parameters"], step["fields"]) == (told["parameters"], [[0, 8], [8, 8], [16, 4]])
    assert step["image"] == len(rehearsed.affine)
    shared = {"packed": 0, "together": 0, "by_the_runtime_in_clusters": 48} | dict.fromkeys(BY_RUNTIME[:2], 32)
    assert step["shared"] == shared.get(kind, 64)
    assert step["cluster"] == ([2, 1, 1] if kind in ("together", "by_the_runtime_in_clusters") else [0, 0, 0])
    assert step["cooperative"] == (kind in ("together", "by_the_runtime_together"))


def test_two_kernels_of_one_name_are_told_apart_by_their_launchers_alone(told, rehearsed):
    assert told["modules"] == {"modules": 1, "bytes": len(rehearsed.affine)}  # the same code again is the same
    assert told["twice"] == {"steps": [], "unknown": ["several kernels of one name: affine"]}
    assert told["announced"] == [["affine", 2, 1, 1, 1, 1, 1]]


def test_fills_and_copies_on_the_device_are_told(told):
    assert told["filled"] == {"steps": [{"kind": "fill", "at": "y", "size": 64, "value": 7}], "unknown": []}
    assert told["words"] == {"steps": [{"kind": "fill", "at": "y", "size": 64, "value": 255}], "unknown": []}
    copied = {"steps": [{"kind": "copy", "at": "y", "source": "x", "size": 64}], "unknown": []}
    assert told["copied"] == told["copied_by_the_runtime"] == copied


def test_work_that_has_no_form_is_named(told):
    assert told["from_the_host"] == {"steps": [], "unknown": ["cuMemcpyHtoDAsync"]}
    assert told["to_the_host"] == {"steps": [], "unknown": ["a copy from or to the host"]}
    assert told["pattern"] == {"steps": [], "unknown": ["a fill with a pattern"]}
    assert told["written"] == {"steps": [], "unknown": ["cuStreamWriteValue32"]}
    assert told["short"] == {"steps": [], "unknown": ["a launch whose parameters lie in another way"]}
    assert told["loaded before"] == {"steps": [], "unknown": ["a kernel without code: affine"]}


@pytest.mark.parametrize("kind", ["nothing", "unasked", "failing"])
def test_what_is_no_work_or_not_asked_for_is_not_told(told, kind):
    assert told[kind] == {"steps": [], "unknown": []}


def test_without_callbacks_the_log_says_why(rehearsed, tmp_path, told):
    assert logged(rehearsed, tmp_path, KW_STANDIN_WITHOUT="cupti") == {"refused": "cuptiSubscribe: CUPTI error 15"}
    assert told["second"] == "cuptiSubscribe: CUPTI error 39"


def test_a_cubin_tells_where_parameters_lie(tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    command = assembly_command("sm_80", str(tmp_path / "k.ptx"), str(tmp_path / "k.cubin"))
    assert command is not None, "Triton, which brings ptxas, is not installed"
    assemble = command.partition(" && ")[0]  # without its listing, which takes the cubin's place
    subprocess.run(["/bin/sh", "-c", assemble], check=True)
    image = (tmp_path / "k.cubin").read_bytes()
    # Aligned in the constants' memory, where parameters begin at byte 352: 352 + 96 is a multiple of 64.
    many = [(0, 8), (8, 1), (16, 8), (24, 13), (96, 128), (224, 4)]
    assert {name: list(kernel.fields) for name, kernel in kernels_of(image).items()} == {
        "none": [],
        "kept": [(0, 8)],
        "many": many,
        "large": [(0, 9000), (9000, 8)],
    }
    assert kernels_of(image[: len(image) // 2]) == kernels_of(b"\x7fELF") == kernels_of(b"//\n.version 8.0") == {}
    assert len({kernel.code for kernel in kernels_of(image).values()}) > 1


def test_layouts_are_those_of_cudas_headers(tmp_path):
    folder = next((folder for folder in header_folders() if (Path(folder) / "cupti.h").is_file()), None)
    if folder is None:
        pytest.skip("no CUPTI headers here, which the CUDA toolkit brings")
    includes = ("cuda.h", "cuda_runtime_api.h", "cupti.h")
    lines, ours = [], []
    for name, (own, fields) in LAYOUTS.items():
        structure = getattr(launch_log, own)
        places = [getattr(structure, field[0]).offset for field in structure._fields_]
        for field, place in zip(fields.split(), places, strict=False):
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            ours.append(f"{name}.{field} {place}")
    text = "".join(f"#include <{name}>\n" for name in includes) + "#include <cstddef>\n#include <cstdio>\n"
    (tmp_path / "layouts.cpp").write_text(f"{text}int main() {{ {''.join(lines)} }}\n")
    build = ["g++", "-w", f"-I{folder}", "-o", str(tmp_path / "layouts"), str(tmp_path / "layouts.cpp")]
    subprocess.run(build, check=True)
    theirs = subprocess.run([str(tmp_path / "layouts")], capture_output=True, text=True, check=True).stdout.split("\n")
    assert theirs[:-1] == ours
    assert len(ours) > 70
