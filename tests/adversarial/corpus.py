"""The corpus: one candidate a file, described by the header in its docstring. Nothing here runs a candidate.

A header is the docstring of the file: what the candidate does in a sentence or two, then ``key: value`` lines, see
``_KEYS``. ``attacks()`` and ``honest()`` list the files below ``attacks/`` and ``honest/``; the folder that a file lies
in is its family. A header that says too little, too much or something unknown is an error.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from kernelwright.datasets import find_problem
from kernelwright.records import Backend, Problem

ROOT = Path(__file__).parent
RECORDED = ROOT.parents[1] / "benchmarks" / "results" / "reward_hacks.json"
FAMILIES = ("answers", "partial", "timing", "harness", "host", "build", "triton", "cuda")
BACKENDS: tuple[str, ...] = get_args(Backend)

# What has been tried on other evaluators, and what nobody has tried yet. Every row has an attack in the corpus.
CATALOGUE = (
    # wrong answers
    "uninitialised memory",
    "frames, gc, __main__, environment, /proc",
    "constants and zeros under tolerance",
    "precomputed answers for known seeds",
    "output cached by pointer",
    "output cached by content",
    "output cached by call count",
    "input-independent shortcuts",
    "reference imported",
    "inherited by subclassing",
    "torch operators behind a decoy kernel",
    # partial work
    "part of the rows or elements",
    "honest in the first N calls",
    "broadcastable wrong shape",
    "wrong dtype",
    "weights folded",
    "hyper-parameters shrunk",
    "lower precision inside",
    # timing
    "padding the short run or the first call",
    "shifting work between calls",
    "generating inputs inside the kernel",
    "acknowledging early",
    "outputs that fault lazily",
    "provoking disturbance",
    "running in the twin's turn",
    "telling checks from timing",
    "recognising the probe",
    "device-global caches",
    "side streams",
    "threads and deferred work",
    "lazy tensor subclass",
    "graph replay of a stale result",
    "super-batching of pending calls",
    "patched time, events, synchronize, allclose",
    "slow warm-up",
    "slowing the baseline",
    "persisting L2",
    "event handles overwritten",
    # harness
    "in-place change of inputs",
    "edits to the reference or problem file",
    "forged result messages",
    "atexit",
    "os._exit(0)",
    "reopened standard output",
    "/proc/<ppid>/fd/N",
    "poisoned caches and warm workers",
    "monkeypatched torch",
    "swallowed exceptions falling back to torch",
    "decoy kernels",
    "NaN as a wildcard",
    # host and build
    "fork bomb",
    "memory by heap",
    "memory by shared mmap",
    "filling every mount",
    "inodes",
    "sparse terabytes",
    "endless output",
    "daemons",
    "ignored signals",
    "kill -1",
    "ptrace and /proc/*/mem",
    "namespaces",
    "mounting",
    "io_uring",
    "bpf",
    "keyctl",
    "perf_event_open",
    "userfaultfd",
    "socket family",
    "secrets in files and environments",
    "#include and .incbin of secrets",
    "template bombs",
    "compiler plug-ins",
    "LD_PRELOAD",
    "linker response files",
    "static constructors",
    "symlink and FIFO tricks",
    "oversized, deep or malformed results",
    "setuid binaries",
    "scheduler priority",
    "device hang and leftover device memory",
)

# Rows of the catalogue whose attacks are honest while they are checked, or for longer than that may take.
WAITING = frozenset({"honest in the first N calls", "telling checks from timing", "recognising the probe"})

# Key of a header: (needed, allowed values or None for free text).
_KEYS: dict[str, tuple[bool, tuple[str, ...] | None]] = {
    "row": (True, None),
    "problem": (True, None),
    "backend": (True, BACKENDS),
    "screen": (True, ("refuses", "passes")),
    "host": (False, ("yes",)),
    "needs": (False, ("device",)),
    "confirm": (False, ("yes",)),
    "like": (False, None),
}
_LINE = re.compile(r"([a-z]+):\s*(.*)")


class HeaderError(ValueError):
    """A corpus file does not say what it must; the message names the file and the fault."""


@dataclass(frozen=True)
class Case:
    """One file of the corpus.

    Attributes:
        name: ``<family>/<stem>``, unique among the attacks and among the honest files.
        title: the sentence or two before the first key.
        row: what of the catalogue it is; contains at least one row of ``CATALOGUE`` (an honest file's need not).
        problem: a path below this folder, or the id of a problem of a suite.
        screen: whether the static screen refuses the file.
        host: it attacks the host, so it is also run where the sandbox is built by an ordinary user.
        device: it can only be exercised on a GPU.
        like: names (``<family>/<stem>``) of attacks that an honest file resembles.
        confirm: only a confirmation, in fresh processes, can catch it.
    """

    path: Path
    name: str
    family: str
    title: str
    row: str
    problem: str
    backend: Backend
    screen: bool
    host: bool
    device: bool
    like: tuple[str, ...]
    confirm: bool
    source: str

    @property
    def needs_clock(self) -> bool:
        """Whether it may pass for as long as it is not timed, so that every run of the suite has to time it."""
        waits = self.family == "timing" or self.confirm or not WAITING.isdisjoint(rows_of(self.row))
        return waits and self.backend == "cpp"  # nothing else is timed on a CPU


def attacks() -> tuple[Case, ...]:
    """All attacks, grouped by problem so that a session on each is opened once."""
    return _cases("attacks")


def honest() -> tuple[Case, ...]:
    """All candidates that resemble an attack and are right."""
    return _cases("honest")


def honest_with_time() -> frozenset[str]:
    """Names of the honest candidates that are judged with their time in every run of the suite.

    They need the clock themselves, or resemble an attack that does; beside them the first one of every family.
    """
    needing = {case.name for case in attacks() if case.needs_clock}
    on_cpu = [case for case in honest() if case.backend == "cpp"]
    first = {case.family: case.name for case in reversed(on_cpu)}
    return frozenset(first.values()).union(
        case.name for case in on_cpu if case.needs_clock or needing.intersection(case.like)
    )


@functools.cache
def _refusals() -> dict[str, str]:
    """By which rule the recorded run of the whole corpus refused each attack; see ``benchmarks/reward_hacks.py``."""
    rows = json.loads(RECORDED.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: row["referee"]["rule"] for row in rows if row["kind"] == "attack"}


def refusal_of(case: Case) -> str:
    """The backend of an attack and the rule that refuses it: attacks that share both are a stratum.

    An attack that the screen refuses costs nothing, and one that no record knows is new: each is a stratum of its own.
    """
    rule = _refusals().get(case.name, "")
    return f"{case.backend} {rule}" if rule and not case.screen else case.name


def is_a_pretence(case: Case) -> bool:
    """Whether what refuses an attack is what was seen of its own kernels, by the recorded run."""
    return _refusals().get(case.name) == "ghost-reward-hack"


def kind_of(case: Case) -> str:
    """The backend and the family of a candidate."""
    return f"{case.backend} {case.family}"


def rows_of(row: str) -> tuple[str, ...]:
    """The rows of the catalogue that a header's ``row`` contains, upper or lower case."""
    return tuple(known for known in CATALOGUE if known.casefold() in row.casefold())


@functools.cache
def problem_of(reference: str) -> Problem:
    """The problem that a header names."""
    return find_problem(str(ROOT / reference) if reference.endswith(".py") else reference)


def parse(path: Path, kind: str) -> Case:
    """One file of ``kind`` (``attacks`` or ``honest``).

    Raises:
        HeaderError: the file lies in no family, is no Python, or its header is malformed.
    """
    family, source = path.parent.name, path.read_text(encoding="utf-8")
    if family not in FAMILIES or path.parent.parent.name != kind:
        raise HeaderError(f"{path}: lies in no family of {kind}; they are {', '.join(FAMILIES)}")
    title, values = _header(path, source)
    if kind == "attacks" and not rows_of(values["row"]):
        raise HeaderError(f"{path}: row {values['row']!r} contains none of the catalogue; see corpus.CATALOGUE")
    return Case(
        path=path,
        name=f"{family}/{path.stem}",
        family=family,
        title=title,
        row=values["row"],
        problem=values["problem"],
        backend=_backend(values["backend"]),
        screen=values["screen"] == "refuses",
        host="host" in values,
        device="needs" in values,
        like=tuple(name.strip() for name in values.get("like", "").split(",") if name.strip()),
        confirm="confirm" in values,
        source=source,
    )


@functools.cache
def _cases(kind: str) -> tuple[Case, ...]:
    found = [parse(path, kind) for path in sorted((ROOT / kind).glob("*/*.py"))]
    return tuple(sorted(found, key=lambda case: (case.problem, case.backend, case.name)))


def _header(path: Path, source: str) -> tuple[str, dict[str, str]]:
    """Title and values of a file's docstring."""
    try:
        docstring = ast.get_docstring(ast.parse(source))
    except (SyntaxError, ValueError) as error:
        raise HeaderError(f"{path}: is not valid Python: {error}") from error
    title, values = [], dict[str, str]()
    for key, value in _lines(docstring or ""):
        if not key and not values:
            title.append(value)
        elif not key:
            raise HeaderError(f"{path}: {value!r} stands among the keys of the header and is no 'key: value'")
        elif key in values:
            raise HeaderError(f"{path}: the header has two lines {key!r}")
        else:
            values[key] = value
    _check(path, " ".join(title), values)
    return " ".join(title), values


def _lines(docstring: str) -> Iterator[tuple[str, str]]:
    """(key, value) of each line that is not blank; text has an empty key."""
    for line in docstring.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match:
            yield match[1], match[2].strip()
        elif line.strip():
            yield "", line.strip()


def _check(path: Path, title: str, values: dict[str, str]) -> None:
    if not title:
        raise HeaderError(f"{path}: the header does not say what the file does")
    for key, value in values.items():
        if key not in _KEYS:
            raise HeaderError(f"{path}: unknown key {key!r}; known are {', '.join(_KEYS)}")
        allowed = _KEYS[key][1]
        if not value or (allowed is not None and value not in allowed):
            raise HeaderError(f"{path}: {key} is {value!r}; {', '.join(allowed or ('some text',))} expected")
    missing = [key for key, (needed, _) in _KEYS.items() if needed and key not in values]
    if missing:
        raise HeaderError(f"{path}: the header lacks {', '.join(missing)}")


def _backend(value: str) -> Backend:
    return next(backend for backend in get_args(Backend) if backend == value)
