"""llvm-mca's estimate of the hottest innermost loop: cycles an iteration, and what limits them. Optional.

The source is compiled to assembly exactly as it was built. The loop is found by its line numbers, and analysed in the
sandbox, too, because its text is the candidate's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kernelwright import inline
from kernelwright.sandbox import Limits, Sandbox

_ITERATIONS = 100
_BUILD_S = 60.0
_MAX_ASSEMBLY_BYTES = 8 << 20
_MAX_LOOP_INSTRUCTIONS = 2000
_LEAST_SHARE = 0.15  # of the instructions; a loop that executes less matters little
_MAX_LINE = 400  # characters; no compiler writes longer ones, but an asm statement may
_ANALYSE = f"llvm-mca -mcpu=native -iterations={_ITERATIONS} -bottleneck-analysis /in/loop.s"
_LABEL = re.compile(r"(\.L\w{1,40}):")
_JUMP = re.compile(r"\s+j[a-z]{1,4}\s+(\.L\w{1,40})")
_FLOW = re.compile(r"\s+(j|call|ret)")
_FILE = re.compile(r'\s+\.file (\d{1,6}) .*"(?:[^"]*/)?([^"/]+)"')
_PLACE = re.compile(r"\s+\.loc (\d{1,6}) (\d{1,7}) ")
_INSTRUCTION = re.compile(r"\s+[a-z]")
_WIDTHS = (("%zmm", 3), ("%ymm", 2), ("%xmm", 1))
_CAUSES = (("Resource Pressure", "execution units"), ("Data Dependencies:", "operations that wait for one another"))


class LoopEstimate(NamedTuple):
    """One loop: line, cycles and instructions of one iteration, and what limits it ("" if nothing stands out)."""

    line: int
    cycles: float
    instructions_per_cycle: float
    limit: str


class Loop(NamedTuple):
    """Instructions of one loop; ``line``: of its closing jump, which is the line of the source's ``for``."""

    line: int
    instructions: list[str]


class _Row(NamedTuple):
    text: str
    line: int  # of the source; 0 if it comes from another file


class UnknownInstructionsError(Exception):
    """llvm-mca has no model of the loop's instructions on this processor; the message says so, in words for a note."""


def estimate_loop(sandbox: Sandbox, assembly: str, shares: Mapping[int, float]) -> LoopEstimate | None:
    """Estimate the loop without branches and calls whose lines execute most.

    None without such a loop, or if llvm-mca is missing or cannot read it.

    Args:
        assembly: from :func:`assembly_of`.
        shares: of the instructions executed, by line of the source.

    Raises:
        SandboxError: the sandbox could not be set up.
        UnknownInstructionsError: llvm-mca is older than the processor.
    """
    loop = hottest_loop(assembly, shares)
    if loop is None:
        return None
    limits = Limits(wall_s=20.0, allow_exec=True)
    files = {"loop.s": "\n".join(loop.instructions).encode()}
    done = sandbox.run(["/bin/sh", "-c", _ANALYSE], files=files, limits=limits)
    if b"unsupported instruction" in done.stderr:
        raise UnknownInstructionsError("llvm-mca is older than this processor, whose instructions it does not know")
    if done.reason or done.returncode != 0:
        return None
    return parse_report(done.stdout.decode(errors="replace"), loop.line)


def assembly_of(sandbox: Sandbox, request: inline.BuildRequest) -> str:
    """The compiler's assembly of a source, with line numbers; empty if it does not build.

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    try:
        command = inline.compile_command(request, "/job/kernel.s", "/in/kernel.cpp")
    except inline.BuildError:
        return ""
    words = [word for word in command if word != "-shared" and not word.startswith(("-flto", "-g"))]
    script = f"{shlex.join([*words, '-S', '-g1'])} && cat /job/kernel.s"
    limits = Limits(wall_s=_BUILD_S, output_bytes=_MAX_ASSEMBLY_BYTES, allow_exec=True)
    done = sandbox.run(["/bin/sh", "-c", script], files={"kernel.cpp": request.source.encode()}, limits=limits)
    return "" if done.reason or done.returncode != 0 else done.stdout.decode(errors="replace")


def hottest_loop(assembly: str, shares: Mapping[int, float], file: str = "kernel.cpp") -> Loop | None:
    """The straight-line loop with the largest share; of equal ones (a loop and its rest), with the widest vectors."""
    bodies = [body for body in _straight_loops(assembly, file) if _share(body, shares) >= _LEAST_SHARE]
    if not bodies:
        return None
    best = max(bodies, key=lambda body: (round(_share(body, shares), 2), _width(body)))
    lines = {row.line for row in best}
    line = best[-1].line or max(lines, key=lambda at: shares.get(at, 0.0))
    return Loop(line, [row.text for row in best])


def _straight_loops(assembly: str, file: str) -> Iterator[list[_Row]]:
    """Blocks of instructions without a jump or call inside that end with a jump to their own start."""
    rows: list[_Row] = []
    label_at: dict[str, int] = {}
    own_files: set[str] = set()
    current, straight_from = 0, 0  # line of the source, row after the last jump or call
    for text in assembly.splitlines():
        if len(text) > _MAX_LINE:
            continue
        if found := _FILE.match(text):
            own_files |= {found[1]} if found[2] == file else set()
        elif found := _PLACE.match(text):
            current = int(found[2]) if found[1] in own_files else 0
        elif found := _LABEL.match(text):
            label_at[found[1]] = len(rows)
        elif _INSTRUCTION.match(text):
            rows.append(_Row(text, current))
            start = label_at.get(jump[1], -1) if (jump := _JUMP.match(text)) else -1
            if max(straight_from, len(rows) - _MAX_LOOP_INSTRUCTIONS) <= start:
                yield rows[start:]
            if _FLOW.match(text):
                straight_from = len(rows)


def _share(body: list[_Row], shares: Mapping[int, float]) -> float:
    return sum(shares.get(line, 0.0) for line in {row.line for row in body})


def _width(body: list[_Row]) -> int:
    return max((weight for row in body for register, weight in _WIDTHS if register in row.text), default=0)


def parse_report(text: str, line: int) -> LoopEstimate | None:
    """Parse llvm-mca's summary; None if the text has none."""
    cycles = re.search(r"^Total Cycles: +(\d{1,9})$", text, re.MULTILINE)
    rate = re.search(r"^IPC: +(\d{1,4}\.\d{1,4})$", text, re.MULTILINE)
    if cycles is None or rate is None:
        return None
    shares = {
        words: float(found[1])
        for name, words in _CAUSES
        if (found := re.search(rf"{name} +\[ (\d{{1,3}}\.\d{{1,4}})% \]", text))
    }
    limit = max(shares, key=lambda words: shares[words], default="")
    return LoopEstimate(line, int(cycles[1]) / _ITERATIONS, float(rate[1]), limit if shares.get(limit) else "")
