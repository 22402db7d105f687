"""Nsight Compute: the requested metrics, the commands that request them, and the parsers of its reports.

Nothing is run here. A caller runs the commands inside a sandbox and passes their texts to the parsers.

ncu shares its output with the program that it profiles, and a candidate can print a table of its own. So the table goes
to a file (``--log-file``), and only that file's text is parsed. A program that searches for the file can still write to
it. So the text is evidence for a Judge, and never decides a verdict.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from kernelwright.errors import KernelwrightError
from kernelwright.evaluator.profile.text import plain, plural

DURATION: Final = "gpu__time_duration.sum"
SM_THROUGHPUT: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY_THROUGHPUT: Final = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_THROUGHPUT: Final = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"

# Reasons why a warp has no instruction to issue, in the profiler's words and in ours.
STALLS: Final[Mapping[str, str]] = {
    "barrier": "a barrier of its block",
    "branch_resolving": "the target of a branch",
    "dispatch_stall": "the dispatcher",
    "drain": "its last stores, before it ends",
    "gmma": "a group's matrix instructions",
    "imc_miss": "constants that are not in their cache",
    "lg_throttle": "a place in the queue of global and local accesses",
    "long_scoreboard": "data from the L1 cache, L2 or DRAM",
    "math_pipe_throttle": "a busy arithmetic unit",
    "membar": "a memory fence",
    "memory_dependency": "data from memory",
    "mio_throttle": "a place in the queue of shared memory and special functions",
    "no_instruction": "its next instruction to be fetched",
    "short_scoreboard": "data from shared memory or a special function",
    "sleeping": "the end of its sleep",
    "tex_throttle": "a place in the queue of textures",
    "wait": "the fixed latency of its last instruction",
}

# The metrics of speed of light, those that CudaForge's Judge sees (arXiv 2511.01884), and a launch's parameters. Not
# every chip and version has each of them: metrics that a query does not list are left out.
METRICS: Final[tuple[str, ...]] = (
    DURATION,
    SM_THROUGHPUT,
    MEMORY_THROUGHPUT,
    DRAM_THROUGHPUT,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__bytes.sum.per_second",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "lts__t_sector_hit_rate.pct",
    "lts__throughput.avg.pct_of_peak_sustained_active",
    "sm__cycles_active.avg",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "smsp__sass_average_branch_targets_threads_uniform.pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "launch__block_size",
    "launch__grid_size",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_dynamic",
    "launch__shared_mem_per_block_static",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__waves_per_multiprocessor",
    *(f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct" for reason in STALLS),
)

Reason = Literal[
    "application", "busy", "damaged", "device", "driver", "empty", "kernels", "metrics", "missing", "option",
    "other", "permission",
]  # fmt: skip

_MAX_CHARS = 4 << 20
_MAX_EXPLAINED_CHARS = 256 << 10
_MAX_ROWS = 10_000
_MAX_KERNELS = 64


class NcuFailedError(KernelwrightError):
    """ncu gave no counters. The message says why, in words for a note, and the hint says what to do.

    ``reason`` is one of a few words. ``metrics`` are the metrics that ncu does not know, if that was the fault; without
    them the same command may work.
    """

    def __init__(self, message: str, *, hint: str = "", **data: Any) -> None:
        super().__init__(message, hint=hint, **{"reason": "other", "metrics": (), **data})

    @property
    def reason(self) -> Reason:
        """The kind of failure."""
        return self.data["reason"]  # type: ignore[no-any-return]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics to leave out in another try; empty if they are not the fault."""
        return tuple(self.data["metrics"])


class KernelCounters(NamedTuple):
    """The counts of one kernel: all its launches, and the metrics of the launch of median duration.

    Attributes:
        kernel: the function's own name; ``signature``: the name in ncu's report, with template arguments.
        launches: number of profiled launches.
        total_ms: of all launches; None if a duration is missing.
        grid: blocks, by dimension; None if ncu did not report it. ``block``: threads, likewise.
        architecture: such as ``sm_90``; empty if ncu did not report it.
        metrics: by name, in bytes, ns, Hz, per cent or counts, and these per second. Values of "n/a" are left out.
    """

    kernel: str
    signature: str
    launches: int
    total_ms: float | None
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    architecture: str
    metrics: dict[str, float]


# ------------------------------------------------------------------------------------------------------- commands


def query_command(collection: str = "", *, ncu: str = "ncu") -> list[str]:
    """The command whose output :func:`parse_query` reads. It needs a GPU, but no permission to count.

    Without a ``collection`` ncu lists its hardware counters. It lists metrics of the launch itself only for the
    collection ``launch``, which older versions do not know.
    """
    return [ncu, "--query-metrics-collection", collection] if collection else [ncu, "--query-metrics"]


_LISTED = re.compile(r'^"?(?P<name>[a-z][a-z0-9]*__[a-z0-9_]+)(?=["\s.,]|$)', re.MULTILINE)


def parse_query(text: str) -> frozenset[str]:
    """The base names (``dram__bytes``) that a query lists, as table or CSV, with or without suffixes.

    Raises:
        NcuFailedError: the text lists none.
    """
    _check_size(text)
    found = frozenset(match["name"] for match in _LISTED.finditer(text))
    if not found:
        raise explain(text)
    return found


def available(metrics: Iterable[str], query: Collection[str]) -> tuple[str, ...]:
    """The metrics whose base names a query listed.

    Metrics of the launch are not counters, and the plain query lists none of them. They stay if the query has none.
    """
    has_launch = any(name.startswith("launch__") for name in query)
    return tuple(
        metric
        for metric in metrics
        if metric.partition(".")[0] in query or (_is_of_the_launch(metric) and not has_launch)
    )


def _is_of_the_launch(metric: str) -> bool:
    return metric.startswith("launch__") or metric == "sm__maximum_warps_per_active_cycle_pct"


def command(
    program: Sequence[str],
    *,
    log_file: str,
    kernels: Iterable[str],
    metrics: Iterable[str] = METRICS,
    launch_skip: int = 0,
    launch_count: int = 64,
    ncu: str = "ncu",
) -> list[str]:
    """The command that profiles launches of some kernels of a program. :func:`parse_raw` reads its ``log_file``.

    The clocks are not changed, because they are not ours to set. Caches are flushed before each pass over a kernel, so
    that passes are alike. The counts are therefore of launches on cold caches.

    Args:
        program: the command to profile; each argument is passed on as it is.
        log_file: absolute path; the file is overwritten.
        kernels: names in a candidate's or profiler's form; only the functions' own names are matched. Names that are
            not C identifiers are left out.
        metrics: full names, at least one.
        launch_skip, launch_count: of the launches of these kernels.

    Raises:
        NcuFailedError: no kernel is left.
        ValueError: ``program`` or ``metrics`` is empty, or the program's name would be taken for an option.
    """
    names = list(dict.fromkeys(name for name in map(function_name, kernels) if name))[:_MAX_KERNELS]
    chosen = ",".join(metrics)
    if not names:
        raise NcuFailedError("none of its kernels has a name that can be asked for", reason="kernels")
    if not chosen or not program or program[0].startswith("-") or not log_file.startswith("/"):
        raise ValueError("a program, metrics and an absolute log file are needed")
    alternatives = "|".join(name.replace("$", r"\$") for name in names)
    return [
        *(ncu, "--config-file", "off", "--log-file", log_file),  # no settings from the program's folder
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--metrics", chosen, "--clock-control", "none", "--cache-control", "all", "--target-processes", "all"),
        *("--kernel-name-base", "function", "--kernel-name", f"regex:^({alternatives})$"),
        *("--launch-skip", str(max(0, launch_skip)), "--launch-count", str(max(1, launch_count))),
        *program,
    ]


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,254}", re.ASCII)


def function_name(kernel: str) -> str:
    """A kernel's own name, without its type, scopes, template arguments and parameters; empty if it has none."""
    text = kernel[:4000].replace("(anonymous namespace)", "").replace("<unnamed>", "").strip()
    kept, depth = [], 0
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
        elif depth == 0:
            if character == "(":
                break
            kept.append(character)
    words = "".join(kept).split()
    name = words[-1].rpartition("::")[2] if words else ""
    return name if _IDENTIFIER.fullmatch(name) else ""


# -------------------------------------------------------------------------------------------------------- answers


def parse_raw(text: str) -> tuple[KernelCounters, ...]:
    """Parse the log file of :func:`command`: one entry for each kernel, the longest total time first.

    Messages before and after the table are skipped. A table without a row of units counts as one in base units.

    Raises:
        NcuFailedError: there is no table, or it is empty, damaged, or cut off; or ncu reports that it failed.
    """
    _check_size(text)
    lines = [line.rstrip("\r") for line in text.split("\n")]
    heads = [number for number, line in enumerate(lines) if line.startswith('"ID",')]
    if not heads:
        raise explain(text)
    if len(heads) > 1:
        raise _damaged("it holds more than one table")
    messages = [line for line in lines if line.startswith("==")]
    if any(line.startswith("==ERROR==") and "returned an error code" not in line for line in messages):
        raise explain("\n".join(messages))
    header = _fields(lines[heads[0]])
    if "Kernel Name" not in header or len(set(header)) < len(header):
        raise _damaged("its columns are not those of the raw page")
    body = [line for line in lines[heads[0] + 1 :] if line and not line.startswith("==")]
    rows = [dict(zip(header, fields, strict=True)) for fields in _rows(body, len(header))]
    units: Mapping[str, str] = {}
    if rows and not rows[0]["ID"] and not rows[0]["Kernel Name"]:
        units = rows.pop(0)
    announced = {match[1] for line in messages if (match := _PROFILED.search(line))}
    if len(rows) < len(announced):
        raise _damaged(f"it ends after {len(rows)} of {plural(len(announced), 'launch')}")
    if not rows:
        raise explain(text)
    return _by_kernel(_launch(row, units) for row in rows)


class _Launch(NamedTuple):
    signature: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    architecture: str
    metrics: dict[str, float]


_PROFILED = re.compile(r'^==PROF== Profiling ".*" - (\d{1,9}):')
_METRIC = re.compile(r"[a-z][a-z0-9]*__[a-z0-9_]+(\.[a-z0-9_]+)*")
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")
_SIZE = re.compile(r"\((\d{1,10}), (\d{1,10}), (\d{1,10})\)")


def _rows(lines: Sequence[str], width: int) -> Iterator[list[str]]:
    if len(lines) > _MAX_ROWS:
        raise _damaged(f"it has more than {_MAX_ROWS} rows")
    for number, line in enumerate(lines, 1):
        fields = _fields(line)
        if len(fields) != width:
            raise _damaged(f"row {number} has {plural(len(fields), 'field')} of {width}")
        yield fields


def _fields(line: str) -> list[str]:
    """The fields of a row, all of which ncu quotes: a row that does not end in a quote was cut off."""
    try:
        fields = next(csv.reader([line], strict=True), [])
    except csv.Error:
        raise _damaged("a row of it is no CSV") from None
    if not line.endswith('"'):
        raise _damaged("a row of it was cut off")
    return fields


def _launch(row: Mapping[str, str], units: Mapping[str, str]) -> _Launch:
    named = {name: _number(value, units.get(name, "")) for name, value in row.items() if _METRIC.fullmatch(name)}
    capability = _CAPABILITY.fullmatch(row.get("CC", ""))
    return _Launch(
        signature=row["Kernel Name"],
        grid=_sizes(row.get("Grid Size", "")),
        block=_sizes(row.get("Block Size", "")),
        architecture=f"sm_{capability[1]}{capability[2]}" if capability else "",
        metrics={name: value for name, value in named.items() if value is not None},
    )


def _sizes(text: str) -> tuple[int, ...] | None:
    match = _SIZE.fullmatch(text)
    return tuple(map(int, match.groups())) if match else None


_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d{1,25})(?:\.\d{1,25})?(?:[eE][+-]?\d{1,3})?")
_UNIT = re.compile(r"(?P<prefix>[KMGT]?)(?P<base>[a-z]*)(?:/(?P<per>[a-z]+))?")
_MOST = 1e30  # no counter reaches it, and sums of such numbers stay finite
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LONG_NAMES = {"nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9}  # of older versions
_NANOSECONDS = _LONG_NAMES | {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def _number(value: str, unit: str) -> float | None:
    """A value in base units; None if it is not a number ("n/a"), or if its unit is unknown."""
    parts = _UNIT.fullmatch("" if unit == "%" else unit)
    if not _NUMBER.fullmatch(value) or parts is None:
        return None
    scale = _PREFIXES[parts["prefix"]] * _NANOSECONDS.get(parts["base"], 1.0)
    if parts["per"] in _NANOSECONDS:  # of a rate: per second
        scale *= 1e9 / _NANOSECONDS[parts["per"]]
    number = float(value.replace(",", "")) * scale
    return number if number < _MOST else None


def _by_kernel(launches: Iterable[_Launch]) -> tuple[KernelCounters, ...]:
    groups: dict[str, list[_Launch]] = {}
    for launch in launches:
        groups.setdefault(launch.signature, []).append(launch)
    found = []
    for signature, group in groups.items():
        times = [launch.metrics.get(DURATION) for launch in group]
        known = [time for time in times if time is not None]
        ordered = sorted(group, key=lambda launch: launch.metrics.get(DURATION, 0.0))
        median = ordered[(len(ordered) - 1) // 2]
        found.append(
            KernelCounters(
                kernel=function_name(signature) or plain(signature, 60) or "unnamed",
                signature=plain(signature, 200),
                launches=len(group),
                total_ms=sum(known) / 1e6 if len(known) == len(times) else None,
                grid=median.grid,
                block=median.block,
                architecture=median.architecture,
                metrics=median.metrics,
            )
        )
    return tuple(sorted(found, key=lambda kernel: -(kernel.total_ms or 0.0)))


# ------------------------------------------------------------------------------------------------------- failures


class _Fault(NamedTuple):
    pattern: re.Pattern[str]
    reason: Reason
    message: str
    hint: str


def _fault(pattern: str, reason: Reason, message: str, hint: str = "") -> _Fault:
    return _Fault(re.compile(pattern, re.IGNORECASE), reason, message, hint)


# In order of precedence: the first fault that matches is the cause, and later ones follow from it.
_FAULTS = (
    _fault(
        r"ERR_NVGPUCTRPERM",
        "permission",
        "the driver lets only administrators read the GPU's counters",
        "load the kernel module nvidia with NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN",
    ),
    _fault(
        r"driver resource was unavailable|already under profiling",
        "busy",
        "another tool holds the GPU's counters",
        "stop it while profiling; of DCGM: dcgmi profile --pause",
    ),
    _fault(
        r"driver is not compatible|failed to connect to the CUDA driver|LibraryNotLoaded|InsufficientDriver"
        r"|Failed to load Nsight Compute CUDA modules",
        "driver",
        "ncu and the GPU's driver do not fit together",
        "install a newer driver, or the ncu of the CUDA version that nvidia-smi shows",
    ),
    _fault(
        r"Profiling is not supported on device|no CUDA-capable device|Cannot find (a )?supported device",
        "device",
        "ncu does not support this GPU, or sees none",
        "install a newer ncu; ncu --list-chips says what it supports",
    ),
    _fault(
        r"Failed to find metric|Failed to access the following",
        "metrics",
        "ncu does not know some of the metrics on this GPU",
        "leave them out",
    ),
    _fault(
        r"unrecogni[sz]ed option|unknown option|too many positional options|did not match any section"
        r"|invalid (option|argument|value)",
        "option",
        "ncu does not know an option of the command",
        "install Nsight Compute 2022 or newer",
    ),
    _fault(
        r"no metrics to collect",
        "metrics",
        "ncu has none of the metrics on this GPU",
        "compare ncu --query-metrics",
    ),
    _fault(
        r"command not found|No such file or directory|not found$",
        "missing",
        "ncu is not installed",
        "install Nsight Compute, which is a part of the CUDA toolkit, and put ncu on the PATH",
    ),
    _fault(
        r"No kernels were profiled",
        "kernels",
        "no launch of its kernels was seen",
    ),
    _fault(
        r"returned an error code|LaunchFailed|Failed to profile",
        "application",
        "the program failed while it was profiled",
    ),
)
_UNKNOWN = re.compile(r"Failed to (?:find metric|access the following [\d,]{1,12} metrics?:)[ \t]*(?P<names>[^\n]*)")


def explain(text: str) -> NcuFailedError:
    """Find out from a text without a table, by ncu or the shell, why ncu did not count."""
    # Progress messages contain names of kernels, which a candidate chooses.
    text = "\n".join(line for line in text[:_MAX_EXPLAINED_CHARS].split("\n") if not line.startswith("==PROF=="))
    if not text.strip():
        return NcuFailedError(
            "ncu wrote nothing", hint="run it by hand to see whether it starts at all", reason="empty"
        )
    for fault in _FAULTS:
        if fault.pattern.search(text):
            names = [name for match in _UNKNOWN.finditer(text) for name in re.split(r"[,\s]+", match["names"])]
            unknown = tuple(dict.fromkeys(name.rstrip(".") for name in names if _METRIC.fullmatch(name.rstrip("."))))
            return NcuFailedError(fault.message, hint=fault.hint, reason=fault.reason, metrics=unknown)
    error = next((line for line in text.split("\n") if "==ERROR==" in line), "")
    said = plain(error.partition("==ERROR==")[2], 160)
    return NcuFailedError(f"ncu failed: {said}" if said else "ncu wrote no table", reason="other")


def _check_size(text: str) -> None:
    if len(text) > _MAX_CHARS:
        raise _damaged(f"it is longer than {_MAX_CHARS >> 20} million characters")


def _damaged(why: str) -> NcuFailedError:
    return NcuFailedError(f"ncu's report cannot be read: {why}", reason="damaged")
