"""Nsight Compute: which counters to ask for, its command line, and what its table says.

The table is read from a file of ncu's own (``--log-file``), never from what the program printed, which could hold a
table as well. Names of kernels in it are the candidate's all the same, and every number is only as good as a process
that holds hostile code can make it.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["METRICS", "KernelCounters", "NcuFailedError", "available", "command", "parse_query", "parse_raw"]

# What a Judge is told: the counters that earlier work found to go with run time, and the speed-of-light ones.
METRICS: Final = (
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__bytes.sum.per_second",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l1tex__t_sector_hit_rate.pct",
    "lts__throughput.avg.pct_of_peak_sustained_active",
    "lts__t_sector_hit_rate.pct",
    "sm__cycles_active.avg",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct",
    "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct",
    "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct",
    "smsp__warp_issue_stalled_barrier_per_warp_active.pct",
    "smsp__warp_issue_stalled_branch_resolving_per_warp_active.pct",
    "smsp__sass_average_branch_targets_threads_uniform.pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_allocated",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__block_size",
    "launch__grid_size",
    "launch__waves_per_multiprocessor",
)
_MOST_KERNELS = 64
_MOST_ROWS = 4096
_MOST_CHARS = 8 << 20
_NAME_CHARS = 300
_COLUMNS_OF_THE_PROCESS = 11  # or fewer, before the counters
_LAUNCH_METRICS = "launch__"  # known to ncu itself and not listed by --query-metrics of every version
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "n": 1e-9, "u": 1e-6}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SECONDS |= {"second": 1.0, "msecond": 1e-3, "usecond": 1e-6, "nsecond": 1e-9}
_UNIT = re.compile(r"([kmgt]?)(byte|hz)(?:/(second|s|ns|us|ms|nsecond|usecond|msecond))?", re.IGNORECASE)


class NcuFailedError(Exception):
    """There is no table, and the message says why and what to do."""


class KernelCounters(NamedTuple):
    """One kernel: the launch of median duration, and how many there were.

    ``values`` by ncu's names, in seconds, bytes, bytes a second and per cent, or plain counts.
    """

    name: str
    launches: int
    values: dict[str, float]


def query_command() -> list[str]:
    """Lists what this device has."""
    return ["ncu", "--query-metrics"]


def parse_query(text: str) -> frozenset[str]:
    """Base names of the counters that ``--query-metrics`` lists: the first word of a line that is such a name."""
    words = (line.split(None, 1)[0] for line in text[:_MOST_CHARS].splitlines() if line.strip())
    return frozenset(word for word in words if re.fullmatch(r"[a-z0-9_]+__[a-z0-9_]+", word))


def available(wanted: Iterable[str], listed: Collection[str]) -> tuple[str, ...]:
    """Those of ``wanted`` that a device has; an unknown one would end the whole run."""
    return tuple(
        name
        for name in wanted
        if name.startswith(_LAUNCH_METRICS) or name.partition(".")[0] in listed or name in listed
    )


def command(
    program: Sequence[str], *, metrics: Sequence[str], kernels: Collection[str], log: str, skip: int, launches: int
) -> list[str]:
    """The command line that profiles ``program``.

    Args:
        kernels: names as they stand in the source; any kernel whose name contains one is profiled.
        log: where ncu writes its table. skip, launches: of the kernels that match, in the order of their launches.
    """
    wanted = "|".join(re.escape(name) for name in sorted(kernels))
    return [
        "ncu",
        "--csv",
        *("--page", "raw"),
        *("--print-units", "base"),
        *("--clock-control", "none"),
        *("--cache-control", "all"),
        *("--target-processes", "all"),
        *("--kernel-name-base", "demangled"),
        *("--kernel-name", f"regex:{wanted}"),
        *("--launch-skip", str(skip), "--launch-count", str(launches)),
        *("--metrics", ",".join(metrics)),
        *("--log-file", log),
        *program,
    ]


def parse_raw(text: str) -> list[KernelCounters]:
    """The kernels of a table of ``--csv --page raw``, the one that took longest first.

    Raises:
        NcuFailedError: the text holds none.
    """
    lines = text[:_MOST_CHARS].splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"') and '"Kernel Name"' in line), None)
    if begin is None:
        raise NcuFailedError(_why_no_table(text))
    rows = _rows(lines[begin : begin + _MOST_ROWS])
    header = next(rows, [])
    units: dict[str, str] = {}
    launches: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        if len(row) != len(header):
            continue  # cut off, or a line of ncu's own
        cells = dict(zip(header, row, strict=True))
        if not cells["ID"]:
            units = cells
        elif cells["ID"].isdigit() and (cells["Kernel Name"] in launches or len(launches) < _MOST_KERNELS):
            launches.setdefault(cells["Kernel Name"][:_NAME_CHARS], []).append(_values(cells, units))
    if not any(values for found in launches.values() for values in found):
        raise NcuFailedError(_why_no_table(text, empty=True))
    kernels = [KernelCounters(name, len(found), _median_launch(found)) for name, found in launches.items()]
    return sorted(kernels, key=lambda kernel: -kernel.values.get("gpu__time_duration.sum", 0.0))


def _rows(lines: Sequence[str]) -> Iterator[list[str]]:
    """Fields of each line that can be one of a table; a line at a time, so that no quote swallows the next ones."""
    reader = (line for line in lines if line.startswith('"'))
    return iter([next(csv.reader([line]), []) for line in reader if "\0" not in line and len(line) < 1 << 16])


def _values(cells: Mapping[str, str], units: Mapping[str, str]) -> dict[str, float]:
    found = {}
    for name, text in cells.items():
        if "__" not in name:
            continue
        with_unit = _number(text, units.get(name, ""))
        if with_unit is not None:
            found[name] = with_unit
    return found


def _number(text: str, unit: str) -> float | None:
    """A number in base units: seconds, bytes, bytes a second; per cent stay per cent. None for "n/a" and the like."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value * _factor(unit) if math.isfinite(value) else None


def _factor(unit: str) -> float:
    name = unit.strip()
    if name in _SECONDS:
        return _SECONDS[name]
    found = _UNIT.fullmatch(name)
    if found is None:
        return 1.0
    per = _SECONDS[found[3]] if found[3] else 1.0
    return _PREFIXES[found[1].lower()] / per


def _median_launch(launches: Sequence[dict[str, float]]) -> dict[str, float]:
    ordered = sorted(launches, key=lambda values: values.get("gpu__time_duration.sum", 0.0))
    return ordered[len(ordered) // 2]


def _why_no_table(text: str, *, empty: bool = False) -> str:
    """What ncu's own lines say, in a sentence that helps."""
    said = [line for line in text[:_MOST_CHARS].splitlines() if line.startswith("==")]
    whole = "\n".join(said)
    if "ERR_NVGPUCTRPERM" in whole:
        return (
            "the driver lets only administrators read counters: load its module with "
            "NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        )
    if "No kernels were profiled" in whole:
        return "no kernel of these names was launched"
    if re.search(r"No metrics to collect|Failed to find metric|invalid metric", whole, re.IGNORECASE):
        return "this device has none of the counters that were asked for"
    if "driver" in whole and re.search(r"not supported|too old|incompatible|LibraryNotLoaded", whole):
        return "ncu and the driver do not fit together: " + _first_error(said)
    if "==ERROR==" in whole:
        return "ncu failed: " + _first_error(said)
    if empty:
        return "ncu's table holds no numbers"
    return "ncu wrote nothing" if not text.strip() else "ncu wrote no table"


def _first_error(said: Sequence[str]) -> str:
    line = next((line for line in said if line.startswith("==ERROR==")), said[-1] if said else "")
    return "".join(c if c.isprintable() else " " for c in line.removeprefix("==ERROR==").strip())[:200]
