"""compute-sanitizer: its command line, and what its log says of a program's accesses to memory.

As with profilers, only the tool's own file is read: the program's output is the candidate's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

__all__ = ["TOOLS", "MemoryFault", "SanitizerFailedError", "command", "parse"]

Tool = Literal["memcheck", "racecheck"]

TOOLS: Final[tuple[Tool, ...]] = ("memcheck", "racecheck")
_MOST_FAULTS = 20
_MOST_CHARS = 4 << 20
_LINE_CHARS = 1000
_TEXT_CHARS = 200
_SUMMARY = {
    "memcheck": re.compile(r"^=+ ERROR SUMMARY: (\d+) errors?"),
    "racecheck": re.compile(r"^=+ RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?"),
}
_FAULT = re.compile(
    r"^=+ (?P<what>Invalid __\w+__ \w+ of size \d+ bytes|Invalid __\w+__ atomic.*|Misaligned .*"
    r"|(?:Error: )?Race reported between .*|Error: Potential .* hazard .*|Barrier error detected.*"
    r"|Program hit .*|Uninitialized __\w+__ memory read.*)$"
)
_PLACE = re.compile(r"^=+\s+at (?:0x[0-9a-f]+ in )?(?P<kernel>.+?)(?:\+0x[0-9a-f]+)?(?: in \S+:\d+)?$")
_THREAD = re.compile(r"^=+\s+by thread \((\d+),(\d+),(\d+)\) in block \((\d+),(\d+),(\d+)\)")


class SanitizerFailedError(Exception):
    """The tool did not come to an end of its own; nothing is known of the program."""


class MemoryFault(NamedTuple):
    """One thing that the tool objects to: what, in which kernel, by which thread and block where it says."""

    what: str
    kernel: str
    thread: tuple[int, ...] = ()
    block: tuple[int, ...] = ()

    def text(self) -> str:
        """In words."""
        by = f" by thread {self.thread} of block {self.block}" if self.thread else ""
        return f"{self.what}{f' in {self.kernel}' if self.kernel else ''}{by}"


def command(program: Sequence[str], *, tool: Tool, log: str) -> list[str]:
    """The command line that runs ``program`` under a tool; ``log`` is where it writes."""
    return [
        "compute-sanitizer",
        *("--tool", tool),
        *("--target-processes", "all"),
        *("--print-limit", str(_MOST_FAULTS)),
        *("--log-file", log),
        *program,
    ]


def parse(tool: Tool, text: str) -> list[MemoryFault]:
    """What a finished run found; empty where it found nothing.

    Raises:
        SanitizerFailedError: there is no summary: the tool does not support the device, or was stopped.
    """
    lines = [line[:_LINE_CHARS] for line in text[:_MOST_CHARS].splitlines()]
    counts = [int(found[1][:9]) for line in lines if (found := _SUMMARY[tool].match(line))]
    if not counts:
        raise SanitizerFailedError(_why_no_summary(lines))
    faults = list(_faults(lines))
    if sum(counts) and not faults:
        faults = [MemoryFault(f"{sum(counts)} errors that the tool does not name", "")]
    return faults[:_MOST_FAULTS] if sum(counts) else []


def _faults(lines: Sequence[str]) -> list[MemoryFault]:
    found: list[MemoryFault] = []
    open_ = False  # the lines that follow tell of the last fault
    for line in lines:
        if fault := _FAULT.match(line):
            found.append(MemoryFault(_clean(fault["what"].removeprefix("Error: ")), ""))
            open_ = True
        elif not line.strip("= "):
            open_ = False
        elif open_ and (thread := _THREAD.match(line)):
            numbers = tuple(int(number[:9]) for number in thread.groups())
            found[-1] = found[-1]._replace(thread=numbers[:3], block=numbers[3:])
        elif open_ and not found[-1].kernel and (place := _PLACE.match(line)):
            found[-1] = found[-1]._replace(kernel=_clean(place["kernel"]))
    return found


def _why_no_summary(lines: Sequence[str]) -> str:
    whole = "\n".join(lines)
    if "Device not supported" in whole:
        return "compute-sanitizer does not support this device"
    internal = next((line for line in lines if "Internal" in line or "Error: " in line), "")
    told = f": {_clean(internal.strip('= '))}" if internal else ""
    return f"compute-sanitizer did not finish{told}"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_TEXT_CHARS].strip()
