"""Orders untried Triton candidates by the time that a model expects of them, on machines that cannot time them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelwright.agents.roles import StepContext
from kernelwright.evaluator.profile.expected import expected_us, facts_from, level
from kernelwright.records import KnobValue
from kernelwright.sandbox import WorkerFailed

__all__ = ["FORETOLD", "MOST", "in_expected_order"]

# Choices whose effect the model foretells better than by chance, by benchmarks/results/h100/gpu_model.json.
FORETOLD = ("BLOCK", "BLOCK_M", "GEMM_WARPS", "WARPS", "fusion", "gemm")
MOST = 12  # candidates that are compiled for one order: a second or two each
_FACTS = "kernelwright.evaluator.worker.triton.facts:facts"
_ARCHITECTURE = 90


def in_expected_order(
    context: StepContext, sources: Sequence[str], schedules: Sequence[Mapping[str, KnobValue]]
) -> list[int]:
    """The places of candidates' sources, the fastest expected first.

    Schedules that differ in no choice of ``FORETOLD`` keep their order. So do candidates that the model cannot tell
    apart. Candidates without an expectation come last, and so do all after the first ``MOST``. Equal calls of one
    bench compile once.

    Args:
        context: of a step whose backend is Triton.
        schedules: each source's choices.
    """
    problem, asked = context.problem, list(sources[:MOST])
    payload = {"problem": problem.source, "variant": dict(problem.meta.variants_for("gpu")[0])}
    try:
        reply = context.bench.call(
            _FACTS, {**payload, "mode": problem.meta.mode, "architectures": [_ARCHITECTURE], "sources": asked}
        )
        found = [None if steps is None else level(expected_us(facts_from(steps)).us) for steps in reply["candidates"]]
    except (WorkerFailed, TypeError, KeyError):
        return list(range(len(sources)))
    known: dict[int, int] = {}
    alike: dict[tuple[KnobValue | None, ...], int] = {}
    for place, expected in enumerate(found):
        if expected is not None:
            known[place] = alike.setdefault(tuple(schedules[place].get(name) for name in FORETOLD), expected)
    return sorted(range(len(sources)), key=lambda place: (place not in known, known.get(place, 0)))
