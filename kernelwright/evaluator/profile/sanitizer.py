"""compute-sanitizer: commands that look for faulty accesses and races on a device, and the parser of their reports.

Nothing is run here. The tool writes its report to a file of its own (``--log-file``), because a candidate can print
reports, too. Only that file's text is parsed. A report is evidence against a candidate. The lack of a report proves
little: a program that searches for the file can write to it, and the tool does not look for races in global memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from kernelwright.errors import KernelwrightError
from kernelwright.evaluator.profile.ncu import function_name
from kernelwright.evaluator.profile.text import plain

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
Reason = Literal["attach", "damaged", "device", "incomplete", "internal", "missing", "option", "other"]

ERROR_EXIT: Final = 86
# PyTorch's tensors are parts of large allocations, in which no access is out of bounds. Give each its own allocation.
ENVIRONMENT: Final[Mapping[str, str]] = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

_PRINT_LIMIT = 100
_PADDING_BYTES = 512  # PyTorch's own granularity: the next allocation does not begin where a tensor ends
_MAX_CHARS = 8 << 20
_MAX_KERNELS = 64


class SanitizerFailedError(KernelwrightError):
    """The tool failed, so nothing is known about the candidate. The hint says what to do."""

    def __init__(self, message: str, *, hint: str = "", **data: Any) -> None:
        super().__init__(message, hint=hint, **{"reason": "other", **data})

    @property
    def reason(self) -> Reason:
        """The kind of failure."""
        return self.data["reason"]  # type: ignore[no-any-return]


class SanitizerFinding(NamedTuple):
    """One fault, as the tool reported it. All text is untrusted, and cut to printable characters.

    Attributes:
        kind: its headline: "Invalid __global__ write of size 4 bytes".
        severity: "error" or "warning".
        kernel: the function's own name; empty if the tool did not report it.
        where: file and line of the access; empty without line information.
        block, thread: indices; None if the tool did not report them.
        address: as reported, or None. ``detail`` says what is wrong with it.
        hazards: number of bytes whose hazards the tool merged into this one.
    """

    tool: Tool
    kind: str
    severity: Literal["error", "warning"] = "error"
    kernel: str = ""
    where: str = ""
    block: tuple[int, ...] | None = None
    thread: tuple[int, ...] | None = None
    address: int | None = None
    detail: str = ""
    hazards: int = 1


class SanitizerReport(NamedTuple):
    """The result of one tool.

    Attributes:
        findings: the printed ones.
        errors, warnings: numbers of all of them, by the report's last line.
        program_failed: the program itself ended with an error, so it may not have run to its end.
    """

    tool: Tool
    findings: tuple[SanitizerFinding, ...]
    errors: int
    warnings: int
    program_failed: bool

    @property
    def clean(self) -> bool:
        """Whether the program ran to its end and nothing was found."""
        return not (self.errors or self.warnings or self.findings or self.program_failed)


def command(
    tool: Tool,
    program: Sequence[str],
    *,
    log_file: str,
    kernels: Iterable[str] = (),
    compute_sanitizer: str = "compute-sanitizer",
) -> list[str]:
    """The command that runs a program under a tool, with ``ENVIRONMENT``. :func:`parse` reads its ``log_file``.

    It exits with ``ERROR_EXIT`` if something was found and the program itself succeeded.

    Args:
        tool: ``memcheck`` (accesses), ``racecheck`` (shared memory), ``initcheck``, ``synccheck`` (barriers).
        program: the command to check; each argument is passed on as it is.
        log_file: absolute path.
        kernels: the only kernels to check, by the functions' own names; empty for all kernels.

    Raises:
        ValueError: ``program`` is empty, ``log_file`` is not absolute, or none of ``kernels`` has a usable name.
    """
    wanted = list(kernels)
    names = list(dict.fromkeys(name for name in map(function_name, wanted) if name))[:_MAX_KERNELS]
    if not program or not log_file.startswith("/") or (wanted and not names):
        raise ValueError("a program and an absolute log file are needed, and kernels with names of C")
    options = [
        *("--tool", tool, "--error-exitcode", str(ERROR_EXIT), "--log-file", log_file),
        *("--print-limit", str(_PRINT_LIMIT), "--target-processes", "all", "--launch-timeout", "120"),
        *("--show-backtrace", "device"),
    ]
    if tool == "memcheck":
        # Failing calls are not a kernel's fault. PyTorch makes some on purpose, to find out what is supported.
        options += ["--report-api-errors", "no", "--padding", str(_PADDING_BYTES)]
    for name in names:
        options += ["--kernel-name", f"kernel_substring={name}"]
    return [compute_sanitizer, *options, *program]


# ---------------------------------------------------------------------------------------------------- the report


_LINE = re.compile(r"={9} ?(?P<text>.*)")
_HEADLINE = re.compile(
    r"(?:(?P<severity>ERROR|Error|WARNING|Warning|WARN)\b:? ?(?:\([A-Za-z ]{1,40}\) ?)?)?"
    r"(?P<kind>Invalid |Misaligned |Uninitialized |Unused memory|Barrier error|Race reported|Potential \w+ hazard"
    r"|Malloc/Free error|Program hit|Leaked |Fatal UVM|Host API memory access|Tensor Memory"
    r"|Out-of-range |Stack overflow|Hardware Stack|Illegal |Warp |Lane )(?P<rest>.*)"
)
_ERRORS = re.compile(r"ERROR SUMMARY: (\d{1,12}) errors?\s*")
_HAZARDS = re.compile(
    r"RACECHECK SUMMARY: (\d{1,12}) hazards? displayed(?: \((\d{1,12}) errors?, (\d{1,12}) warnings?\))?\s*"
)
_PLACE = re.compile(
    r"(?:(?:Write|Read) Thread (?P<racer>\([^()]{1,40}\)) )?(?:and (?:Write|Read) access )?at (?P<place>.*)"
)
_BY = re.compile(r"by thread (?P<thread>\([^()]{1,40}\)) in block (?P<block>\([^()]{1,40}\))")
_ADDRESS = re.compile(r"(?:Address|Access (?:to|at)) (?P<address>0x[0-9a-fA-F]{1,16})\b(?P<detail>.*)")
_IN_BLOCK = re.compile(r"detected at __shared__ (?P<address>0x[0-9a-fA-F]{1,16}) in block (?P<block>\([^()]{1,40}\))")
_COUNT = re.compile(r"\[(\d{1,12}) hazards?\]")
_INDICES = re.compile(r"\(\s*(\d{1,10}),\s*(\d{1,10}),\s*(\d{1,10})\s*\)")
_OLD_PLACE = re.compile(r"0x[0-9a-fA-F]{1,16} in (?:(?P<where>[^:\s]{1,200}:\d{1,9}):)?(?P<function>.*)")
_PLACE_WITH_LINE = re.compile(r"(?P<function>.*?)(?:\+0x[0-9a-fA-F]{1,16}|:0x[0-9a-fA-F]{1,16})(?: in (?P<where>\S+))?")
_NO_DEVICE = re.compile(r"Program hit (?:cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE|cudaErrorInsufficientDriver)\b")


def parse(text: str, tool: Tool) -> SanitizerReport:
    """Parse the log file of :func:`command`.

    Raises:
        SanitizerFailedError: the tool failed, or its report is damaged or does not end. Its findings then do not count.
    """
    if len(text) > _MAX_CHARS:
        raise _failed("damaged", f"the report is longer than {_MAX_CHARS >> 20} million characters")
    lines = [match["text"].rstrip() for line in text.split("\n") if (match := _LINE.match(line.rstrip("\r")))]
    _check_tool(lines, text)
    errors, warnings = _summary(lines)
    findings = tuple(_finding(tool, paragraph) for paragraph in _paragraphs(lines))
    if findings and errors + warnings == 0:
        raise _failed("damaged", "the report's findings and its summary contradict each other")
    return SanitizerReport(tool, findings[:_PRINT_LIMIT], errors, warnings, any(map(_ended_badly, lines)))


def _ended_badly(line: str) -> bool:
    return line.startswith(("Target application returned an error", "Error: process didn't terminate successfully"))


def _summary(lines: Sequence[str]) -> tuple[int, int]:
    """Errors and warnings of all processes together."""
    counts: list[tuple[int, int]] = []
    for line in lines:
        if match := _ERRORS.fullmatch(line):
            counts.append((int(match[1]), 0))
        elif match := _HAZARDS.fullmatch(line):
            counts.append((int(match[2] or match[1]), int(match[3] or 0)))
    if not counts:
        raise _failed("incomplete", "the report does not end: the tool or the program was stopped")
    return sum(errors for errors, _ in counts), sum(warnings for _, warnings in counts)


def _paragraphs(lines: Sequence[str]) -> Iterator[tuple[re.Match[str], list[str]]]:
    """Each finding's headline, with the lines that belong to it."""
    headline: re.Match[str] | None = None
    details: list[str] = []
    for line in lines:
        found = None if line.startswith(" ") else _HEADLINE.match(line)
        if found or not line or "SUMMARY:" in line:
            if headline:
                yield headline, details
            headline, details = found, []
        elif headline:
            details.append(line.strip())
    if headline:
        yield headline, details


def _finding(tool: Tool, paragraph: tuple[re.Match[str], list[str]]) -> SanitizerFinding:
    headline, details = paragraph
    kind = (headline["kind"] + headline["rest"]).strip()
    places = [match for line in details if (match := _PLACE.match(line))]
    frames = [line.partition("Device Frame:")[2].strip() for line in details if line.startswith("Device Frame:")]
    first = kind.partition(" access at ")[2] or (places[0]["place"] if places else "")
    kernel, where = _split_place(first)
    by = next((match for line in details if (match := _BY.search(line))), None)
    shared = _IN_BLOCK.search(kind)
    accessed = next((match for line in details if (match := _ADDRESS.match(line))), None)
    address = accessed or shared
    block = by["block"] if by else shared["block"] if shared else ""
    thread = by["thread"] if by else next((match["racer"] for match in places if match["racer"]), "")
    counts = [int(match[1]) for line in details if (match := _COUNT.search(line))]
    severity = headline["severity"] or ""
    return SanitizerFinding(
        tool=tool,
        kind=plain(_without_place(kind), 160),
        severity="warning" if severity.upper().startswith("WARN") else "error",
        kernel=plain(_split_place(frames[-1])[0] if frames else kernel, 80),
        where=plain(where, 120),
        block=_indices(block),
        thread=_indices(thread),
        address=int(address["address"], 16) if address else None,
        detail=_detail(accessed, details) if accessed else "",
        hazards=max(1, sum(counts)),
    )


def _without_place(kind: str) -> str:
    """A headline without the place of a race, which has fields of its own."""
    head, access, _ = kind.partition(" access at ")
    return f"{head} access" if access else kind.partition(" detected at ")[0]


def _detail(address: re.Match[str], details: Sequence[str]) -> str:
    """What is wrong with the address, and the place of the nearest allocation from the next line."""
    more = next((line for line in details if line.startswith("and is ")), "")
    return plain(f"{address['detail']} {more}", 160)


def _split_place(text: str) -> tuple[str, str]:
    """A function's own name and file:line, of ``f(int)+0x40 in a.cu:3`` or, until 2022, ``0x40 in a.cu:3:f(int)``."""
    text = text[:4000]
    if old := _OLD_PLACE.match(text):
        return function_name(old["function"]), old["where"] or ""
    if new := _PLACE_WITH_LINE.match(text):
        return function_name(new["function"]), new["where"] or ""
    return function_name(text), ""


def _indices(text: str) -> tuple[int, ...] | None:
    match = _INDICES.fullmatch(text)
    return tuple(map(int, match.groups())) if match else None


# ------------------------------------------------------------------------------------------------ the tool's failures


class _Fault(NamedTuple):
    words: str
    reason: Reason
    message: str
    hint: str = ""


_FAULTS = (
    _Fault(
        "Device not supported",
        "device",
        "compute-sanitizer does not support this GPU",
        "install the one of a newer CUDA toolkit",
    ),
    _Fault("WDDM debugger interface", "device", "compute-sanitizer cannot reach the GPU under Windows"),
    _Fault(
        "injection library",
        "missing",
        "compute-sanitizer is not installed whole",
        "use the one in the folder of the CUDA toolkit, not the distribution's",
    ),
    _Fault(
        "No attachable process",
        "attach",
        "compute-sanitizer found no process to look at",
        "the program may have died before its first CUDA call",
    ),
    _Fault(
        "terminated before first instrumented API call",
        "attach",
        "the program ended before its first CUDA call, or the driver is too old for compute-sanitizer",
    ),
    _Fault(
        "Internal Sanitizer Error",
        "internal",
        "compute-sanitizer failed, so that errors may have gone undetected",
        "a smaller variant of the problem needs less memory",
    ),
    _Fault("nrecognized option", "option", "compute-sanitizer does not know an option", "install CUDA 12 or newer"),
    _Fault("nrecognised option", "option", "compute-sanitizer does not know an option", "install CUDA 12 or newer"),
)


def _check_tool(lines: Sequence[str], text: str) -> None:
    """Raise if the report, or the shell's message instead of it, says that the tool itself failed.

    Findings and their details are skipped, because a candidate chooses names of kernels and of files (``#line``).
    """
    if not text.strip():
        raise _failed("incomplete", "compute-sanitizer wrote nothing")
    if not lines:
        if re.search(r"not found|No such file", text[:4000]):
            raise _failed("missing", "compute-sanitizer is not installed", "it is a part of the CUDA toolkit")
        raise _failed("damaged", "the report is none of compute-sanitizer's")
    for line in (line for line in lines if line and not line.startswith(" ") and not _HEADLINE.match(line)):
        for fault in _FAULTS:
            if fault.words in line:
                raise _failed(fault.reason, fault.message, fault.hint)
        if line.startswith("Error:") and not _ended_badly(line):
            raise _failed("other", f"compute-sanitizer failed: {plain(line.removeprefix('Error:'), 160)}")
    if any(map(_NO_DEVICE.match, lines)):
        raise _failed("device", "the program found no GPU, or a driver that is too old")


def _failed(reason: Reason, message: str, hint: str = "") -> SanitizerFailedError:
    return SanitizerFailedError(message, hint=hint, reason=reason)
