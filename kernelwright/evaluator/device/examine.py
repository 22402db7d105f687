"""Examines a winner, a candidate that has passed, with the tools of a GPU, each in a sandbox of its own.

ncu and compute-sanitizer inject themselves into the process, and need permissions that a contestant does not get. So
they never run while anything is timed. They may be missing or refused: then the profile is poorer, and the verdict
stays. A candidate can notice them, and can write to their report file. So their findings count against it, and the
absence of findings proves nothing.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from kernelwright.errors import SandboxError
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.own.trace import kernel_names
from kernelwright.evaluator.profile import ncu, sanitizer
from kernelwright.evaluator.profile.events import EventsRejectedError
from kernelwright.evaluator.profile.gpu import GpuWork, profile_gpu
from kernelwright.evaluator.profile.gpu_ceilings import (
    CeilingsRejectedError,
    GpuCeilings,
    best_of,
    ceilings_path,
    kept_gpu_ceilings,
    parse_ceilings,
)
from kernelwright.evaluator.profile.winner import Faults, Winner
from kernelwright.evaluator.worker.program import JOB, MODULE, job_files
from kernelwright.files import write_whole
from kernelwright.records import Profile
from kernelwright.sandbox import Limits, Mount, Sandbox
from kernelwright.sandbox import WorkerFailed as CallFailed

_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*", "/usr/local/cuda/nsight-compute*", "/opt/cuda/bin")
_TOOLS = "/opt/nvidia/nsight-compute"
_CEILINGS = "kernelwright.evaluator.worker.device_ceilings:measure"
_LOOKS: tuple[sanitizer.Tool, ...] = ("memcheck", "racecheck")
_REPORT = "/job/report"
_SKIPPED_LAUNCHES, _PROFILED_LAUNCHES = 4, 12
_PROFILED_CALLS = 6  # of a forward, for hardware counters
_ENDED = 97  # exit status of the script without a report; the tool's own status is ignored


class Examiner:
    """The tools that work on one device."""

    def __init__(self, sandbox: Sandbox, device: Device, cache_dir: Path, limits: Limits) -> None:
        self.device = device
        self._sandbox = sandbox
        self._cache_dir = cache_dir
        self._limits = limits
        self._listed: frozenset[str] | None = None
        self._ceilings: GpuCeilings | None = None
        self._asked_for_ceilings = False

    def ceilings(self) -> GpuCeilings | None:
        """The device's measured peak rates, the best of two processes; kept. None if they cannot be measured."""
        if not self._asked_for_ceilings:
            self._ceilings, self._asked_for_ceilings = self._found_ceilings(), True
        return self._ceilings

    def _found_ceilings(self) -> GpuCeilings | None:
        kept = kept_gpu_ceilings(self._cache_dir, self.device.name, self.device.driver)
        if kept is not None:
            return kept
        try:
            found = best_of(self._measured(), self._measured())
        except (ValueError, CeilingsRejectedError, CallFailed, SandboxError):
            return None
        path = ceilings_path(self._cache_dir, self.device.name, self.device.driver)
        write_whole(path, json.dumps(found.as_claim()))
        return found

    def _measured(self) -> GpuCeilings:
        mounts, variables = self.device.mounts(), self.device.variables()
        return parse_ceilings(self._sandbox.call(_CEILINGS, {}, limits=self._limits, mounts=mounts, env=variables))

    def counters(
        self, files: Mapping[str, bytes], kernels: Collection[str]
    ) -> tuple[ncu.KernelCounters, ...] | ncu.NcuFailedError:
        """Hardware counters of the candidate's own kernels, or the error that explains why there are none."""
        tool = find_tool("ncu")
        if tool is None:
            return ncu.NcuFailedError("ncu is not installed", hint="it is a part of CUDA's toolkit", reason="missing")
        try:
            metrics = ncu.available(ncu.METRICS, self._listed_by(tool))
            try:
                return self._counted(tool, files, kernels, metrics)
            except ncu.NcuFailedError as failed:
                known = [name for name in metrics if name not in failed.metrics]
                if not failed.metrics or not known:
                    raise
                return self._counted(tool, files, kernels, known)
        except ncu.NcuFailedError as failed:
            return failed

    def _listed_by(self, tool: str) -> frozenset[str]:
        """The metrics that this device has."""
        if self._listed is None:
            found = ncu.parse_query(self._run(tool, ncu.query_command(ncu=tool), {}, keep_output=True))
            with contextlib.suppress(ncu.NcuFailedError):
                found |= ncu.parse_query(self._run(tool, ncu.query_command("launch", ncu=tool), {}, keep_output=True))
            self._listed = found
        return self._listed

    def _counted(
        self, tool: str, files: Mapping[str, bytes], kernels: Collection[str], metrics: Sequence[str]
    ) -> tuple[ncu.KernelCounters, ...]:
        line = ncu.command(
            _program(),
            log_file=_REPORT,
            kernels=kernels,
            metrics=metrics,
            launch_skip=_SKIPPED_LAUNCHES,
            launch_count=_PROFILED_LAUNCHES,
            ncu=tool,
        )
        return ncu.parse_raw(self._run(tool, line, files))

    def profile(self, winner: Winner, static: Profile | None, *, working_set_bytes: int) -> Profile:
        """A profile of what limits a winner; ``static`` is the compiler's report."""
        variant, work = winner.check_set.variants[0], _work_of(winner, working_set_bytes)
        names = kernel_names([request.source for request in winner.built], winner.source)
        return profile_gpu(
            work,
            self.ceilings(),
            counters=self.counters(self._files(winner, variant, _PROFILED_CALLS), names),
            events=winner.device_kernels or EventsRejectedError("torch's profiler saw nothing"),
            static=static,
        )

    def placed(self, winner: Winner, *, working_set_bytes: int) -> Profile:
        """A winner's place under the device's measured ceilings. No tool is run."""
        return profile_gpu(_work_of(winner, working_set_bytes), self.ceilings(), counters=(), events=())

    def _files(self, winner: Winner, variant: Variant, calls: int) -> dict[str, bytes]:
        return job_files(
            winner.source,
            winner.problem.source,
            variant.constants,
            winner.products,
            mode=winner.problem.meta.mode,
            device=self.device.torch_name,
            calls=calls,
        )

    def faults_of(self, winner: Winner) -> Faults:
        """The findings of memcheck and racecheck in a call on the last shape, and which of the two did not work."""
        return self.faults(self._files(winner, winner.check_set.variants[-1], 1))

    def faults(self, files: Mapping[str, bytes]) -> Faults:
        """As :meth:`faults_of`, for a job's files as ``worker.program.job_files`` makes them."""
        tool = find_tool("compute-sanitizer")
        if tool is None:
            return Faults((), ("compute-sanitizer is not installed: accesses to memory were not checked",))
        found: list[str] = []
        unsure = []
        for name in _LOOKS:
            line = sanitizer.command(name, _program(), log_file=_REPORT, compute_sanitizer=tool)
            try:
                report = sanitizer.parse(self._run(tool, line, files, env=sanitizer.ENVIRONMENT), name)
            except sanitizer.SanitizerFailedError as failed:
                unsure.append(f"{name}: {failed.message}")
                continue
            if report.errors:
                found += [_told(finding) for finding in report.findings if finding.severity == "error"] or [name]
            elif report.program_failed:
                unsure.append(f"{name}: the program did not come to its end")
        return Faults(tuple(found), tuple(unsure))

    def _run(
        self,
        tool: str,
        line: Sequence[str],
        files: Mapping[str, bytes],
        *,
        env: Mapping[str, str] | None = None,
        keep_output: bool = False,
    ) -> str:
        """The report of a tool, or its output with ``keep_output``."""
        command = shlex.join(line)
        script = command if keep_output else f"{command} >/dev/null 2>&1; cat {_REPORT} 2>/dev/null || exit {_ENDED}"
        done = self._sandbox.run(
            ["/bin/sh", "-c", script],
            files=files,
            mounts=[*_mounts(tool), *self.device.mounts()],
            env=self._environment() | self.device.variables() | dict(env or {}),
            limits=self._limits,
        )
        return done.stdout.decode(errors="replace")

    def _environment(self) -> dict[str, str]:
        inherited = (
            "PYTHONPATH",
            "TRITON_CACHE_DIR",
            "OMP_NUM_THREADS",
            "PYTHONSAFEPATH",
            "PYTHONNOUSERSITE",
            "LD_LIBRARY_PATH",
        )
        whole = self._sandbox.environment()
        return {name: whole[name] for name in inherited if name in whole}


def _work_of(winner: Winner, working_set_bytes: int) -> GpuWork:
    variant = winner.check_set.variants[0]
    return GpuWork(
        latency_ms=winner.timing.latency_ms.median,
        bytes_moved=variant.bytes_moved,
        flops=winner.check_set.flops,
        dtype=variant.main_dtype,
        working_set_bytes=working_set_bytes,
    )


def _told(finding: sanitizer.SanitizerFinding) -> str:
    where = f" in {finding.kernel}" if finding.kernel else ""
    who = f" by thread {finding.thread} of block {finding.block}" if finding.thread and finding.block else ""
    return f"{finding.kind}{where}{who}"


def find_tool(name: str) -> str | None:
    """Path of one of CUDA's tools, also outside of ``PATH``."""
    found = shutil.which(name)
    places = (path for place in _PLACES for path in sorted(glob.glob(f"{place}/{name}"), reverse=True))
    return found or next((path for path in places if os.access(path, os.X_OK)), None)


def _program() -> list[str]:
    return [sys.executable, "-m", MODULE, JOB]


def _mounts(tool: str) -> list[Mount]:
    """The folders of a tool that a sandbox does not show by itself."""
    folders = {os.path.dirname(path) for path in (tool, os.path.realpath(tool))}
    folders = {folder for folder in folders if not folder.startswith(_TOOLS)}
    if os.path.isdir(_TOOLS):  # what lies in the path may be a script that starts one of these
        folders.add(_TOOLS)
    return [Mount(folder) for folder in sorted(folders) if not folder.startswith("/usr/")]
