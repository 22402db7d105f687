"""The compiler's remarks on the vectorisation of a source: loops vectorised, loops missed and why.

The source is compiled again in the sandbox, exactly as it was built, with GCC's ``-fopt-info-vec``. The report is
untrusted text: places are taken only as numbers, and reasons only through a table, or cut to printable characters.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from kernelwright import inline
from kernelwright.evaluator.profile.text import first_error, plain
from kernelwright.sandbox import Limits, Sandbox

_BUILD_S = 60.0
_MAX_REPORT_BYTES = 1 << 20
_MAX_LINE = 300  # characters; what follows is the candidate's own text at best
_LINE = re.compile(r"(?:.*/)?([^/:]{1,64}):(\d{1,7}):\d{1,7}: (optimized|missed): +(.*)")
_SCALAR_TYPE = re.compile(r"(const )?(float|double|bool|_Bool|u?int\d+_t|size_t|((un)?signed|long|short|int|char| )+)")
# Outer loops around vectorised inner loops are never vectorised. They are not reported.
_OUTER = re.compile(r"nested loop|loop nest|outer|inner-loop|latch block not empty")
_REASONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (r"statement clobbers memory: .*?__builtin_([a-z0-9_]{1,24}) \(", "it calls {0}"),
        (r"statement clobbers memory", "it calls a function that may write any memory"),
        (r"control flow in loop", "it has a branch or an early exit"),
        (r"unsupported use in stmt", "a value is carried from one iteration to the next"),
        (r"no vectype for stmt", "a value in it has no vector form, or is carried to the next iteration"),
        (r"number of iterations cannot be computed", "the number of iterations is not known at its start"),
        (r"(possible|bad|compile time) (alias|data dependen)|versioning for alias", "its arrays may overlap"),
        (r"complicated access pattern|unsupported access|not consecutive", "it does not access memory in sequence"),
        (r"no grouped stores|grouped access|gather|scatter", "it gathers or scatters single elements"),
        (r"relevant stmt not supported|not supported by target|unsupported", "an operation has no vector instruction"),
        (r"cost model|not profitable|vectorization did not improve", "the compiler estimates no gain"),
    )
)


class MissedLoop(NamedTuple):
    """A loop that stayed scalar: number of the source, line, and why in words."""

    source: int
    line: int
    reason: str


class Vectorisation(NamedTuple):
    """The innermost loops of all sources.

    ``explicit`` loops are written with vector types, so the compiler has nothing to do. ``vector_bytes`` is the widest
    vector that the compiler used, or 0.
    """

    vectorised: int
    explicit: int
    missed: tuple[MissedLoop, ...]
    vector_bytes: int


class RecompilationFailedError(Exception):
    """The source does not compile again; the message says why, in words for a note."""


def report_vectorisation(sandbox: Sandbox, requests: Sequence[inline.BuildRequest]) -> Vectorisation:
    """Compile every source once more and read the compiler's remarks.

    Raises:
        RecompilationFailedError: a source does not compile.
        SandboxError: the sandbox could not be set up.
    """
    vectorised, explicit, width = 0, 0, 0
    missed: list[MissedLoop] = []
    for number, request in enumerate(requests):
        found = parse_remarks(_remarks(sandbox, request), number)
        vectorised += found.vectorised
        explicit += found.explicit
        missed += found.missed
        width = max(width, found.vector_bytes)
    return Vectorisation(vectorised, explicit, tuple(missed), width)


def _remarks(sandbox: Sandbox, request: inline.BuildRequest) -> str:
    try:
        command = inline.compile_command(request, "/job/kernel.so", "/in/kernel.cpp")
    except inline.BuildError as error:
        raise RecompilationFailedError("a compiler option is not allowed") from error
    command.insert(1, "-fopt-info-vec-optimized-missed=/job/remarks")
    script = f"{shlex.join(command)} && head -c {_MAX_REPORT_BYTES // 2} /job/remarks"
    limits = Limits(wall_s=_BUILD_S, output_bytes=_MAX_REPORT_BYTES, allow_exec=True)
    done = sandbox.run(["/bin/sh", "-c", script], files={"kernel.cpp": request.source.encode()}, limits=limits)
    if done.reason or done.returncode != 0:
        raise RecompilationFailedError(f"the source does not compile again: {done.reason or first_error(done.stderr)}")
    return done.stdout.decode(errors="replace")


def parse_remarks(text: str, source: int = 0, file: str = "kernel.cpp") -> Vectorisation:
    """The innermost loops of ``file``, each line counted once. One vectorised copy makes a loop vectorised.

    GCC gives the reason of a miss in the next remark, which may name another place.
    """
    vectorised: set[int] = set()
    reasons: dict[int, str] = {}
    width = 0
    waiting: int | None = None
    lines = [line[:_MAX_LINE] for line in text.splitlines()]
    for number, row in enumerate(lines):
        match = _LINE.fullmatch(row)
        if match is None:
            continue
        at, kind, message = int(match[2]), match[3], match[4]
        if kind == "missed" and waiting is not None and not message.startswith("couldn't vectorize loop"):
            following = lines[number + 1] if number + 1 < len(lines) else ""
            reasons.setdefault(waiting, f"{message} {following if following.startswith(' scalar_type') else ''}")
            waiting = None
        elif match[1] == file and message.startswith("couldn't vectorize loop"):
            waiting = at
        elif match[1] == file and (found := re.match(r"loop vectorized using (\d{1,3}) byte vectors", message)):
            vectorised.add(at)
            width = max(width, int(found[1]))
    scalar = {at: why for at, why in reasons.items() if at not in vectorised and not _OUTER.search(why)}
    explicit = {at for at, why in scalar.items() if _handles_vectors(why)}
    missed = tuple(MissedLoop(source, at, _in_words(why)) for at, why in sorted(scalar.items()) if at not in explicit)
    return Vectorisation(len(vectorised), len(explicit), missed, width)


def _handles_vectors(reason: str) -> bool:
    element = reason.partition("scalar_type: ")[2].strip()
    return bool(element) and not _SCALAR_TYPE.fullmatch(element)


def _in_words(reason: str) -> str:
    for pattern, sentence in _REASONS:
        if match := pattern.search(reason):
            return sentence.format(*match.groups())
    return plain(reason.removeprefix("not vectorized: "), 80) or "the compiler gives no reason"
