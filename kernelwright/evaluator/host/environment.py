"""The environment that a result depends on: processor, versions, compiler."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from kernelwright import inline
from kernelwright.evaluator.host.device import CPU, Device
from kernelwright.inline import cuda_toolchain
from kernelwright.records import Environment


def environment(threads: int, device: Device = CPU) -> Environment:
    """The record of this machine, for candidates of ``threads`` threads or on a ``device``; torch is not imported."""
    try:
        compiler = inline.compiler_version()
    except inline.BuildError:
        compiler = "none"
    extra = {"triton": _version("triton"), "machine": platform.machine(), "isa": _instruction_sets()}
    if device.is_gpu:
        extra |= {"driver": device.driver, "architecture": device.architecture, "cuda compiler": _cuda_compiler()}
        extra |= {"device memory": f"{device.memory_bytes >> 20} MiB"}
    return Environment(
        device=device.name,
        device_class="gpu" if device.is_gpu else "cpu",
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=_version("torch"),
        compiler=compiler,
        threads=threads,
        extra=extra,
    )


def _cuda_compiler() -> str:
    try:
        return cuda_toolchain.cuda_compiler()
    except inline.BuildError:
        return "none"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _cpu_model() -> str:
    info = _cpu_info()
    return info.get("model name") or info.get("CPU part") or platform.processor() or "unknown"


def _instruction_sets() -> str:
    flags = set((_cpu_info().get("flags") or _cpu_info().get("Features") or "").split())
    known = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")
    return " ".join(name for name in known if name in flags)
