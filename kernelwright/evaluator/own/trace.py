"""A worker's claims about one call: torch's operators, launches of own kernels, a device's profile."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kernelwright.evaluator.builds.gpu_resources import Launch
from kernelwright.evaluator.wire.claims import readable

_CUDA_KERNEL = re.compile(r"__global__[^;{()]*?(?:__launch_bounds__\s*\([^)]*\)[^;{()]*?)?([A-Za-z_]\w*)\s*\(")


def kernel_names(sources: Iterable[str], file: str) -> set[str]:
    """Names of the kernels that CUDA ``sources`` define, and of the Triton kernels of a candidate's file."""
    names = {name for text in sources for name in _CUDA_KERNEL.findall(text)}
    try:
        tree = ast.parse(file)
    except (SyntaxError, ValueError, RecursionError):
        return names
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return names | {f.name for f in functions if any("jit" in ast.dump(d) for d in f.decorator_list)}


class Trace(NamedTuple):
    """A worker's claims about a call on new inputs: operators of torch with counts, their flops, own kernels' calls.

    steps: how many of these operators compute something.

    launches: of own kernels, in that call and in one more on the same inputs; None if they are not counted.
    structure: how the outputs are nested. seen: the different launches of emulated kernels.
    """

    operators: dict[str, int]
    flops: int
    calls: list[dict[str, Any]]
    launches: tuple[int, int] | None
    structure: str
    seen: tuple[Launch, ...] = ()
    steps: int = 0

    @classmethod
    def from_claims(cls, reply: Mapping[str, Any]) -> Trace:
        """Parse a reply, which may hold anything."""
        operators, flops, calls = reply.get("operators"), reply.get("flops"), reply.get("calls")
        launches, steps = reply.get("launches"), reply.get("steps")
        counted = isinstance(launches, list) and len(launches) == 2 and all(type(count) is int for count in launches)
        named = operators.items() if isinstance(operators, dict) else ()
        return cls(
            {readable(name)[:80]: count for name, count in named if type(count) is int},
            flops if type(flops) is int else 0,
            calls if isinstance(calls, list) and all(isinstance(call, dict) for call in calls) else [],
            (launches[0], launches[1]) if isinstance(launches, list) and counted else None,
            str(reply.get("structure")),
            tuple(_launches_of(reply.get("seen_launches"))),
            steps if type(steps) is int else 0,
        )


def _launches_of(claimed: Any) -> Iterator[Launch]:
    for item in claimed if isinstance(claimed, list) else ():
        block, dynamic = (item.get("block"), item.get("dynamic_bytes")) if isinstance(item, dict) else (0, 0)
        if type(block) is int and type(dynamic) is int and 0 < block <= 1024 and 0 <= dynamic < 1 << 31:
            yield Launch(readable(item.get("kernel"))[:200], block, dynamic)
