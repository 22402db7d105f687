"""Looks at a winner with the tools of a GPU, each in a sandbox of its own, after it has passed.

ncu and compute-sanitizer put themselves into the process that they look at, and want permissions that a contestant does
not get; so they never run while anything is timed, and they may be missing or refused, which costs a rung and no
verdict. A candidate can notice them, and can write to the file that they write to: what they find counts against it,
what they do not find proves nothing.
"""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from kernelwright.errors import SandboxError
from kernelwright.evaluator import _profile_ncu as ncu
from kernelwright.evaluator import _sanitizer as sanitizer
from kernelwright.evaluator._device import Device
from kernelwright.evaluator._device_program import JOB, MODULE
from kernelwright.evaluator._gpu_ceilings import ENTRY, GpuCeilings, kept_ceilings
from kernelwright.sandbox import Limits, Mount, Sandbox, WorkerFailed

_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*", "/usr/local/cuda/nsight-compute*", "/opt/cuda/bin")
_REPORT = "/job/report"
_SKIPPED_LAUNCHES, _PROFILED_LAUNCHES = 4, 12
_ENDED = 97  # by the tool's own exit status in our script, so that a report is read in any case


class Examiner:
    """The tools that work on one device."""

    def __init__(self, sandbox: Sandbox, device: Device, cache_dir: Path, limits: Limits) -> None:
        self._sandbox = sandbox
        self._device = device
        self._cache_dir = cache_dir
        self._limits = limits
        self._listed: frozenset[str] | None = None

    def ceilings(self) -> GpuCeilings | None:
        """What the device can do at most; measured once and kept, None where it cannot be measured."""
        name = "".join(c if c.isalnum() else "-" for c in f"{self._device.name}-{self._device.driver}")
        path = self._cache_dir / "ceilings" / f"{name}.json"
        try:
            return kept_ceilings(path, self._measured)
        except (WorkerFailed, SandboxError):
            return None

    def _measured(self) -> Mapping[str, object]:
        return self._sandbox.call(ENTRY, {"device": self._device.torch_name}, limits=self._limits)

    def counters(
        self, files: Mapping[str, bytes], kernels: Collection[str]
    ) -> tuple[list[ncu.KernelCounters], tuple[str, ...]]:
        """Hardware counters of own kernels, or why there are none."""
        tool = find_tool("ncu")
        if tool is None:
            return [], ("no hardware counters: ncu is not installed",)
        if not kernels:
            return [], ("no hardware counters: the names of its kernels are not known",)
        if self._listed is None:
            asked = self._run(tool, [*ncu.query_command()], {}, keep_output=True)
            self._listed = ncu.parse_query(asked)
        metrics = ncu.available(ncu.METRICS, self._listed)
        line = ncu.command(
            _program(),
            metrics=metrics,
            kernels=kernels,
            log=_REPORT,
            skip=_SKIPPED_LAUNCHES,
            launches=_PROFILED_LAUNCHES,
        )
        try:
            return ncu.parse_raw(self._run(tool, line, files)), ()
        except ncu.NcuFailedError as error:
            return [], (f"no hardware counters: {error}",)

    def faults(self, files: Mapping[str, bytes]) -> tuple[list[sanitizer.MemoryFault], tuple[str, ...]]:
        """What memcheck and racecheck object to, and which of them did not work."""
        tool = find_tool("compute-sanitizer")
        if tool is None:
            return [], ("compute-sanitizer is not installed: accesses to memory were not checked",)
        found: list[sanitizer.MemoryFault] = []
        missing = []
        for name in sanitizer.TOOLS:
            line = sanitizer.command(_program(), tool=name, log=_REPORT)
            try:
                found += sanitizer.parse(name, self._run(tool, line, files))
            except sanitizer.SanitizerFailedError as error:
                missing.append(f"{name}: {error}")
        return found, tuple(missing)

    def _run(self, tool: str, line: Sequence[str], files: Mapping[str, bytes], *, keep_output: bool = False) -> str:
        """The report of a tool, or what it prints."""
        command = shlex.join([tool, *line[1:]])
        script = command if keep_output else f"{command} >/dev/null 2>&1; cat {_REPORT} 2>/dev/null || exit {_ENDED}"
        done = self._sandbox.run(
            ["/bin/sh", "-c", script],
            files=files,
            mounts=_mounts(tool),
            env=self._environment(),
            limits=self._limits,
        )
        return done.stdout.decode(errors="replace")

    def _environment(self) -> dict[str, str]:
        inherited = ("PYTHONPATH", "TRITON_CACHE_DIR", "OMP_NUM_THREADS", "PYTHONSAFEPATH", "PYTHONNOUSERSITE")
        whole = self._sandbox.environment()
        return {name: whole[name] for name in inherited if name in whole}


def find_tool(name: str) -> str | None:
    """Path of a tool of CUDA's, which may lie in no directory of ``PATH``."""
    found = shutil.which(name)
    places = (path for place in _PLACES for path in sorted(glob.glob(f"{place}/{name}"), reverse=True))
    return found or next((path for path in places if os.access(path, os.X_OK)), None)


def _program() -> list[str]:
    return [sys.executable, "-m", MODULE, JOB]


def _mounts(tool: str) -> list[Mount]:
    """What a sandbox does not show of a tool."""
    folders = {os.path.dirname(path) for path in (tool, os.path.realpath(tool))}
    return [Mount(folder) for folder in sorted(folders) if not folder.startswith("/usr/")]
