"""Facts for writers of kernels about the machine that judges them. They are queried, never typed in.

Caches come from /sys, instruction sets and cores from the environment's record, ceilings from measurements on this
machine. Unknown facts are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from kernelwright.evaluator.builds.gpu_resources import ARCHITECTURES
from kernelwright.evaluator.profile.ceilings import Ceilings, kept_ceilings
from kernelwright.evaluator.profile.gpu_ceilings import GpuCeilings, kept_gpu_ceilings
from kernelwright.prompts import DeviceFacts
from kernelwright.records import Backend, Environment

__all__ = ["device_facts"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def device_facts(
    environment: Environment, backend: Backend = "cpp", *, cache_dir: Path | None = None, caches: Path = _CACHES
) -> DeviceFacts:
    """The facts of the device on which kernels of a backend are judged.

    Args:
        environment: of the machine, with its GPU if it has one.
        cache_dir: folder of measured ceilings; nothing is measured here.
        caches: the folder in which Linux describes the processor's caches.
    """
    if backend == "cpp":
        ceilings = None if cache_dir is None else kept_ceilings(cache_dir)
        return DeviceFacts(name=environment.cpu, device_class="cpu", facts=_of_cpu(environment, ceilings, caches))
    if environment.device_class == "gpu":
        known = None if cache_dir is None else kept_gpu_ceilings(cache_dir, environment.device, _driver(environment))
        return DeviceFacts(name=environment.device, device_class="gpu", facts=_of_gpu(environment, known))
    return DeviceFacts(
        name="no GPU on this machine", device_class="interpreter", facts=_of_no_gpu(environment, backend)
    )


def _of_cpu(environment: Environment, ceilings: Ceilings | None, caches: Path) -> dict[str, str]:
    facts = {
        "threads used": f"{environment.threads}",
        "cores available": f"{environment.cores}",
        "instruction sets": environment.extra.get("isa", ""),
        **_caches(caches),
        "compiler": environment.compiler,
    }
    if ceilings is not None:
        facts["read or copy bandwidth of one thread, measured"] = "; ".join(
            f"{rate:.1f} GB/s for a working set of {_amount(size)}" for size, rate in ceilings.bandwidth_by_bytes
        )
        facts["float32 FMA peak of one thread, measured"] = f"{ceilings.peak_gflops:.0f} GFLOP/s"
        facts["instructions of one thread, measured"] = f"{ceilings.peak_gips:.1f} billion/s"
        facts["an empty call from Python, measured"] = f"{1e6 * ceilings.null_ms:.0f} ns"
    return {label: value for label, value in facts.items() if value}


def _of_gpu(environment: Environment, ceilings: GpuCeilings | None) -> dict[str, str]:
    architecture = environment.extra.get("architecture", "")
    facts = {
        "architecture": architecture,
        "device memory": environment.extra.get("device memory", ""),
        **_limits(architecture),
        "CUDA compiler": environment.extra.get("cuda compiler", ""),
        "Triton": environment.extra.get("triton", ""),
    }
    if ceilings is not None:
        facts |= {
            "multiprocessors": f"{ceilings.processors}",
            "L2 cache": _amount(ceilings.l2_bytes),
            "DRAM bandwidth, measured": f"{ceilings.dram_gb_s:.0f} GB/s",
            "bandwidth inside the L2 cache, measured": f"{ceilings.cached_gb_s:.0f} GB/s",
            **{
                f"{dtype} matrix product peak, measured": f"{tflops:.1f} TFLOP/s"
                for dtype, tflops in ceilings.tflops_by_dtype.items()
            },
            "launch of an empty kernel, measured": f"{ceilings.launch_us:.1f} us",
        }
    return {label: value for label, value in facts.items() if value}


def _of_no_gpu(environment: Environment, backend: Backend) -> dict[str, str]:
    checker = "Triton's interpreter" if backend == "triton" else "an emulator"
    facts = {
        "checked": f"on the CPU, in {checker}; no time is measured",
        "compiled for": ", ".join(ARCHITECTURES),
        **_limits(next(iter(ARCHITECTURES))),
        "CUDA compiler": environment.extra.get("cuda compiler", ""),
        "Triton": environment.extra.get("triton", ""),
    }
    return {label: value for label, value in facts.items() if value}


def _limits(architecture: str) -> dict[str, str]:
    """The limits of one multiprocessor of an architecture; empty if it is unknown."""
    name = architecture.rstrip("af")
    limits = ARCHITECTURES.get(name)
    if limits is None:
        return {}
    return {
        f"a multiprocessor of {name}": f"{limits.registers} registers, {limits.warps} warps, {limits.blocks} blocks, "
        f"{_amount(limits.shared_bytes)} of shared memory",
        f"shared memory of a block on {name}": f"at most {_amount(limits.shared_bytes_of_a_block)}",
    }


def _caches(folder: Path) -> dict[str, str]:
    """Label and size of the caches that hold data, by level, with the number of logical processors that share one."""
    found = []
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind not in ("Data", "Unified") or not level.isdigit() or match is None:
            continue
        amount = int(match[1]) * _SIZES.get(match[2], 1)
        sharing = _count(_read(index / "shared_cpu_list"))
        line = _read(index / "coherency_line_size")
        parts = [_amount(amount), f"shared by {sharing} logical processors" if sharing > 1 else ""]
        parts.append(f"lines of {line} bytes" if line.isdigit() and level == "1" else "")
        found.append((int(level), ", ".join(part for part in parts if part)))
    return {f"L{level} data cache" if level == 1 else f"L{level} cache": text for level, text in sorted(found)}


def _count(processors: str) -> int:
    """The number of processors in a list such as "0-3,8"; 0 if it names none."""
    spans = (part.partition("-") for part in processors.split(","))
    return sum(int(b or a) - int(a) + 1 for a, _, b in spans if a.isdigit() and (b or a).isdigit())


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _amount(size_bytes: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes:g} bytes"


def _driver(environment: Environment) -> str:
    return environment.extra.get("driver", "")
