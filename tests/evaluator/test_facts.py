"""Facts of a device are what was asked of it: nothing is said that nobody measured or read."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from kernelwright.evaluator import device_facts
from kernelwright.evaluator.profile.ceilings import _SIZES, Ceilings, _machine_key
from kernelwright.evaluator.profile.gpu_ceilings import GpuCeilings, ceilings_path
from kernelwright.records import Environment

CPU = Environment(
    device="cpu", device_class="cpu", cpu="A Processor", cores=8, os="Linux", python="3", torch="2",
    compiler="g++ 12", threads=2, extra={"isa": "avx2 fma", "triton": "3.7.1"},
)  # fmt: skip
GPU = CPU.model_copy(
    update={
        "device": "A GPU", "device_class": "gpu",
        "extra": {"architecture": "sm_90a", "driver": "580.1", "device memory": "81559 MiB", "cuda compiler": "13.0"},
    }
)  # fmt: skip


@pytest.fixture
def caches(tmp_path):
    rows = [("1", "Data", "48K", "0"), ("1", "Instruction", "32K", "0"), ("2", "Unified", "2048K", "0-1"),
            ("3", "Unified", "32M", "0-3,8")]  # fmt: skip
    for number, (level, kind, size, shared) in enumerate(rows):
        folder = tmp_path / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, text in zip(("level", "type", "size", "shared_cpu_list", "coherency_line_size"),
                              (level, kind, size, shared, "64"), strict=True):  # fmt: skip
            (folder / name).write_text(f"{text}\n")
    return tmp_path / "cache"


def test_a_processor_has_its_caches_and_instruction_sets(caches, tmp_path):
    found = device_facts(CPU, caches=caches, cache_dir=tmp_path)
    assert (found.name, found.device_class) == ("A Processor", "cpu")
    assert found.facts == {
        "threads used": "2",
        "cores available": "8",
        "instruction sets": "avx2 fma",
        "L1 data cache": "48 KiB, lines of 64 bytes",
        "L2 cache": "2 MiB, shared by 2 logical processors",
        "L3 cache": "32 MiB, shared by 5 logical processors",
        "compiler": "g++ 12",
    }


def test_what_was_measured_of_a_processor_is_told(tmp_path):
    rates = tuple((size, 40.0 - number) for number, size in enumerate(_SIZES))
    measured = Ceilings(38.0, 150.0, 0.0004, "measured", 12.5, rates)
    entry = {_machine_key(): {"measurements": 1, "ceilings": asdict(measured)}}
    (tmp_path / "ceilings.json").write_text(json.dumps(entry))
    facts = device_facts(CPU, cache_dir=tmp_path, caches=tmp_path / "none").facts
    assert facts["float32 FMA peak of one thread, measured"] == "150 GFLOP/s"
    assert facts["read or copy bandwidth of one thread, measured"].startswith(
        "40.0 GB/s for a working set of 256 KiB; "
    )
    assert facts["an empty call from Python, measured"] == "400 ns"
    assert not any("cache" in label for label in facts)


def test_what_was_measured_of_a_gpu_is_told(tmp_path):
    assert "multiprocessors" not in device_facts(GPU, "cuda", cache_dir=tmp_path).facts
    rates = ((1 << 20, 9000.0), (1 << 30, 3000.0))
    measured = GpuCeilings("A GPU", "sm_90", 132, 50 << 20, rates, {"float32": 51.2, "tf32": 400.0}, 2.25)
    path = ceilings_path(tmp_path, "A GPU", "580.1")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(measured.as_claim()))
    found = device_facts(GPU, "triton", cache_dir=tmp_path)
    assert (found.name, found.device_class) == ("A GPU", "gpu")
    wanted = {
        "architecture": "sm_90a",
        "device memory": "81559 MiB",
        "multiprocessors": "132",
        "L2 cache": "50 MiB",
        "DRAM bandwidth, measured": "3000 GB/s",
        "float32 matrix product peak, measured": "51.2 TFLOP/s",
        "launch of an empty kernel, measured": "2.2 us",
        "shared memory of a block on sm_90": "at most 227 KiB",
    }
    assert {label: found.facts.get(label) for label in wanted} == wanted


def test_without_a_gpu_it_is_said_where_kernels_are_checked():
    found = device_facts(CPU, "triton")
    assert found.device_class == "interpreter"
    assert found.facts["checked"] == "on the CPU, in Triton's interpreter; no time is measured"
    assert found.facts["compiled for"] == "sm_80, sm_90, sm_100"
    assert not any("measured" in label for label in found.facts)
