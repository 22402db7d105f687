"""Stage 8, the profile of a winner on the CPU: its limit, and the few numbers and sentences that a Judge needs.

The means form a ladder, probed once: ``callgrind`` (instructions, accesses and misses of the recorded calls, by
function and line), ``compiler`` (which loops were vectorised, and why others were not), ``none``. Besides
``callgrind``, llvm-mca analyses the hottest loop if it is installed. A profile's rung is the best one that gave
evidence; evidence of lower rungs is kept, too. The kernel's limit is decided first, by arithmetic alone (``place``).

Sources and recordings come from a candidate. They are compiled and run in the sandbox only. Of their text, only names
of functions and words of the compiler reach a note, cut to printable characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Literal, Protocol

from kernelwright import inline
from kernelwright.evaluator.profile.callgrind import LINE_BYTES, CountingFailedError, Counts, count_calls
from kernelwright.evaluator.profile.ceilings import Ceilings, measure_ceilings
from kernelwright.evaluator.profile.compiler import RecompilationFailedError, Vectorisation, report_vectorisation
from kernelwright.evaluator.profile.driver import MAX_CALLS, CannotReplayError, write_driver
from kernelwright.evaluator.profile.mca import LoopEstimate, UnknownInstructionsError, assembly_of, estimate_loop
from kernelwright.evaluator.profile.placement import Placement, place, placement_metrics, placement_note
from kernelwright.evaluator.profile.text import amount, plural
from kernelwright.records import Profile
from kernelwright.sandbox import Limits, Sandbox

__all__ = ["Ceilings", "Placement", "measure_ceilings", "place", "place_cpu", "probe_rungs", "profile_cpu"]

Means = Literal["callgrind", "compiler", "llvm-mca"]

_MAX_LINE_NOTES = 5
_MAX_LOOP_NOTES = 8
_SHARE_WORTH_A_NOTE = 0.05
_TRAFFIC_WORTH_A_NOTE = 1.5
_OWN_SHARE_WORTH_A_NOTE = 0.9
_PROBE = """
g++ --version >/dev/null 2>&1 && echo compiler || exit 0
valgrind --tool=callgrind --vgdb=no --callgrind-out-file=counts /bin/true >/dev/null 2>&1 &&
    test -s counts && echo callgrind
llvm-mca --version >/dev/null 2>&1 && echo llvm-mca
exit 0
"""
_probed: dict[tuple[str, str], tuple[Means, ...]] = {}


class Build(Protocol):
    """A source that the candidate had built: an ``inline.BuildRequest``, or a similar object."""

    @property
    def language(self) -> Any:
        """``cpp`` for a C ABI."""

    @property
    def source(self) -> str:
        """The exact text."""

    @property
    def flags(self) -> Sequence[str]:
        """The options beyond the language's own."""


def probe_rungs(sandbox: Sandbox, *, path: str = "/usr/bin:/bin") -> tuple[Means, ...]:
    """The means that work inside this kind of sandbox, best first; probed once in a process for each ``path``.

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    key = sandbox.name, path
    if key not in _probed:
        limits = Limits(wall_s=20.0, allow_exec=True)
        done = sandbox.run(["/bin/sh", "-c", _PROBE], env={"PATH": path}, limits=limits)
        found = done.stdout.decode(errors="replace").split()
        means: tuple[Means, ...] = ("callgrind", "compiler", "llvm-mca")
        _probed[key] = tuple(name for name in means if name in found)
    return _probed[key]


def profile_cpu(
    sandbox: Sandbox,
    builds: Sequence[Build],
    calls: Sequence[Mapping[str, Any]],
    *,
    latency_ms: float,
    bytes_moved: float,
    flops: float,
    ceilings: Ceilings | None,
    own_share: float | None = None,
    working_set_bytes: float | None = None,
    figures: Mapping[str, float] = {},
    rungs: Sequence[Means] | None = None,
    timeout_s: float = 60.0,
) -> Profile:
    """Profile a winner by its C++ sources and one forward's calls, as ``inline.record_calls`` recorded them.

    Takes some seconds if a forward takes up to some milliseconds; at most two runs of ``timeout_s`` under the counter,
    and three compilations of every source.

    Args:
        builds: all sources that the candidate had built; only ``cpp`` can be repeated outside Python.
        calls: the calls of one forward on the timed variant's inputs.
        latency_ms, bytes_moved, flops, ceilings, working_set_bytes: see ``place``.
        own_share: share of the time spent in the candidate's own kernels, if known.
        figures: further metrics.
        rungs: the means to use; None for those that :func:`probe_rungs` finds.
        timeout_s: limit of one run under the counter.

    Raises:
        SandboxError: the sandbox could not be set up. A fault of the candidate only costs a rung.
    """
    means = probe_rungs(sandbox) if rungs is None else tuple(rungs)
    requests = {request.key: request for request in map(_request, builds) if request.language == "cpp"}
    evidence = _Evidence(sandbox, requests, means)
    with ThreadPoolExecutor(1, "remarks") as beside:
        remarks = beside.submit(evidence.recompile)
        evidence.assemble(beside)
        evidence.count(calls, timeout_s)
        evidence.missing += remarks.result()
    if len(requests) < len({_request(build).key for build in builds}):
        evidence.missing.append("sources other than C++ with a C ABI were not profiled")
    placement = place(
        latency_ms,
        bytes_moved,
        flops,
        ceilings,
        working_set_bytes=working_set_bytes,
        calls=max(1, len(calls)),
        instructions=evidence.counts.metrics["instructions_per_call"] if evidence.counts else 0.0,
    )
    metrics = placement_metrics(placement, latency_ms, bytes_moved, flops) | dict(figures)
    metrics |= evidence.metrics(bytes_moved, flops)
    notes = [placement_note(placement, latency_ms)]
    if own_share is not None and own_share < _OWN_SHARE_WORTH_A_NOTE:
        notes.append(f"only {own_share:.0%} of the time is spent in its own kernels")
    notes += evidence.notes(metrics)
    return Profile(rung=evidence.rung, bound=placement.bound, metrics=metrics, notes=tuple(notes))


def place_cpu(
    *,
    latency_ms: float,
    bytes_moved: float,
    flops: float,
    ceilings: Ceilings | None,
    calls: int,
    working_set_bytes: float | None,
    figures: Mapping[str, float],
) -> Profile:
    """The profile of every timed kernel, at no cost: its place on the roofline, and ``figures`` of its code.

    Args:
        latency_ms, bytes_moved, flops, ceilings, working_set_bytes, calls: see ``place``.
        figures: further metrics.
    """
    placement = place(
        latency_ms, bytes_moved, flops, ceilings, working_set_bytes=working_set_bytes, calls=max(1, calls)
    )
    metrics = placement_metrics(placement, latency_ms, bytes_moved, flops) | {**figures}
    return Profile(
        rung="roofline", bound=placement.bound, metrics=metrics, notes=(placement_note(placement, latency_ms),)
    )


def _request(build: Build) -> inline.BuildRequest:
    return inline.BuildRequest(build.language, build.source, tuple(build.flags), getattr(build, "name", ""))


class _Evidence:
    """The results of the rungs. ``missing`` has a note with the reason for each missing result."""

    def __init__(self, sandbox: Sandbox, requests: Mapping[str, inline.BuildRequest], means: Sequence[Means]) -> None:
        self.counts: Counts | None = None
        self.loops: Vectorisation | None = None
        self.estimate: tuple[int, LoopEstimate] | None = None  # with the number of its source
        self.missing: list[str] = []
        self._sandbox = sandbox
        self._requests = requests
        self._means = means
        self._assembly: Future[str] | None = None  # of the only source

    @property
    def rung(self) -> str:
        """The best rung that gave evidence."""
        return "callgrind" if self.counts else "compiler" if self.loops else "none"

    def assemble(self, beside: Executor) -> None:
        """Begin to make what llvm-mca reads, if it is known already which source that will be of."""
        if "llvm-mca" in self._means and len(self._requests) == 1:
            (request,) = self._requests.values()
            self._assembly = beside.submit(assembly_of, self._sandbox, request)

    def count(self, calls: Sequence[Mapping[str, Any]], timeout_s: float) -> None:
        """Run the rung ``callgrind``, and llvm-mca for the loop that executes most."""
        if "callgrind" not in self._means:
            self.missing.append("no instruction counts: callgrind does not work here; install it: apt install valgrind")
            return
        try:
            driver = write_driver(calls, tuple(self._requests))
            self.counts = count_calls(self._sandbox, driver, self._requests, timeout_s=timeout_s)
        except (CannotReplayError, CountingFailedError) as error:
            self.missing.append(f"no instruction counts: {error}")
            return
        if len(calls) == MAX_CALLS:
            self.missing.append(f"calls of a forward after the first {MAX_CALLS} were not counted")
        if "llvm-mca" in self._means and self.counts.lines:
            hottest = self.counts.lines[0][0]
            shares = {line: share for source, line, share in self.counts.lines if source == hottest}
            try:
                found = estimate_loop(self._sandbox, self._assembly_of(hottest), shares)
            except UnknownInstructionsError as error:
                self.missing.append(f"no estimate of the innermost loop: {error}")
                return
            self.estimate = None if found is None else (hottest, found)

    def _assembly_of(self, number: int) -> str:
        if self._assembly is not None:
            return self._assembly.result()
        return assembly_of(self._sandbox, tuple(self._requests.values())[number])

    def recompile(self) -> list[str]:
        """Run the rung ``compiler``. Returns notes on missing results."""
        if "compiler" not in self._means:
            return ["no remarks of the compiler: g++ does not work here; install it: apt install g++"]
        try:
            self.loops = report_vectorisation(self._sandbox, tuple(self._requests.values())) if self._requests else None
        except RecompilationFailedError as error:
            return [f"no remarks of the compiler: {error}"]
        return []

    def metrics(self, bytes_moved: float, flops: float) -> dict[str, float]:
        """The numbers of all rungs."""
        found: dict[str, float] = {}
        if self.counts:
            found |= self.counts.metrics
            if flops > 0:
                found["instructions_per_flop"] = found["instructions_per_call"] / flops
            if bytes_moved > 0:
                found["traffic_ratio"] = found["llc_misses_per_call"] * LINE_BYTES / bytes_moved
        if self.loops:
            found["vectorised_loops"] = float(self.loops.vectorised)
            found["missed_loops"] = float(len(self.loops.missed))
            found["explicit_vector_loops"] = float(self.loops.explicit)
            found["vector_bytes"] = float(self.loops.vector_bytes)
        if self.estimate:
            found["mca_cycles_per_iteration"] = self.estimate[1].cycles
            found["mca_instructions_per_cycle"] = self.estimate[1].instructions_per_cycle
        return found

    def notes(self, metrics: Mapping[str, float]) -> list[str]:
        """The notes of all rungs, then the notes on missing results."""
        notes = _count_notes(self.counts, metrics) if self.counts else []
        notes += _estimate_notes(*self.estimate) if self.estimate else []
        notes += _loop_notes(self.loops) if self.loops else []
        return notes + self.missing


def _count_notes(counts: Counts, metrics: Mapping[str, float]) -> list[str]:
    per_flop = metrics.get("instructions_per_flop")
    share = f", {per_flop:.2g} for each floating-point operation" if per_flop is not None else ""
    notes = [f"{amount(metrics['instructions_per_call'])} instructions a call ({counts.build}){share}"]
    if metrics.get("traffic_ratio", 0.0) >= _TRAFFIC_WORTH_A_NOTE:
        notes.append(f"from cold caches it moves {metrics['traffic_ratio']:.1f} times the necessary bytes (simulated)")
    shares = [(name, share) for name, share in counts.functions]
    shares += [(f"line {line}{_of(source)}", share) for source, line, share in counts.lines[:_MAX_LINE_NOTES]]
    return notes + [
        f"{what} executes {share:.0%} of the instructions" for what, share in shares if share >= _SHARE_WORTH_A_NOTE
    ]


def _estimate_notes(source: int, estimate: LoopEstimate) -> list[str]:
    limit = f", limited by {estimate.limit}" if estimate.limit else ""
    return [
        f"the innermost loop at line {estimate.line}{_of(source)} takes {estimate.cycles:.1f} cycles an iteration "
        f"at {estimate.instructions_per_cycle:.1f} instructions a cycle (llvm-mca){limit}"
    ]


def _loop_notes(loops: Vectorisation) -> list[str]:
    notes = [] if loops.explicit else ["no loop was vectorised by the compiler"]
    if loops.vectorised:
        notes = [f"{plural(loops.vectorised, 'loop')} vectorised, with vectors of up to {loops.vector_bytes} bytes"]
    if loops.explicit:
        notes.append(f"{plural(loops.explicit, 'loop')} written with vector types")
    notes += [
        f"loop at line {loop.line}{_of(loop.source)} not vectorised: {loop.reason}"
        for loop in loops.missed[:_MAX_LOOP_NOTES]
    ]
    more = len(loops.missed) - _MAX_LOOP_NOTES
    return [*notes, f"{plural(more, 'more loop')} not vectorised"] if more > 0 else notes


def _of(source: int) -> str:
    """Words that name the source; empty for the first one."""
    return "" if source == 0 else f" of source {source + 1}"
