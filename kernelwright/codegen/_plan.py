"""Turns a graph and a schedule into an ordered list of steps. Each step is generated or left to the library."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen._attention import fuse_attention
from kernelwright.codegen._attention_gradient import fuse_gradients
from kernelwright.codegen._graph import CodegenError, Graph
from kernelwright.codegen._ir import Program, Value, root
from kernelwright.codegen._lower import lower
from kernelwright.codegen._partition import KeepInTorch, Step, in_place, partition
from kernelwright.codegen._products import own_products
from kernelwright.records import KnobValue

OWN_KINDS = ("nest", "pool", "scan", "routine", "attention", "own_matmul", "own_conv", "repeat")


def all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Steps, and the steps of their loops."""
    for step in steps:
        yield step
        if step.body is not None:
            yield from all_steps(step.body.steps)


def completed(
    known: Mapping[str, Sequence[KnobValue]], schedule: Mapping[str, KnobValue], free: Collection[str] = ()
) -> dict[str, Any]:
    """A schedule with defaults for its missing choices.

    Args:
        known: every choice with its values, the default first.
        free: choices that may have other values too.

    Raises:
        CodegenError: a choice is unknown, or has no such value.
    """
    for name, value in schedule.items():
        if name not in known:
            raise CodegenError(f"unknown choice {name!r}", hint=f"choices are {', '.join(known)}")
        if name not in free and value not in known[name]:
            raise CodegenError(f"{name} cannot be {value!r}", hint=f"it is one of {', '.join(map(repr, known[name]))}")
    return {name: schedule.get(name, values[0]) for name, values in known.items()}


@dataclass
class Plan:
    """A lowered and partitioned graph.

    Attributes:
        reasons: why a value was not fused with its producers.
        kept: captured nodes that were left to torch although they have a lowering, and why.
    """

    program: Program
    steps: list[Step]
    reasons: dict[Value, str]
    kept: dict[str, str]


def make_plan(graph: Graph, options: Mapping[str, Any]) -> Plan:
    """Lower and partition a graph; operators that turn out not to fit into a loop nest are left to torch.

    Raises:
        CodegenError: the graph cannot be partitioned at all (a bug of the generator).
    """
    by_choice = {"scaled_dot_product_attention"} if options["attention"] == "library" else set()
    kept: dict[str, str] = {}
    for _ in range(len(graph.nodes) + 1):
        program = lower(
            graph, frozenset({*by_choice, *(f"node:{name}" for name in kept)}), options.get("backend", "cpp")
        )
        if options["attention"] == "fused" or (by_choice and options.get("backend") == "triton"):
            program = fuse_gradients(fuse_attention(program, library=bool(by_choice)))
        try:
            parts = partition(program, options)
        except KeepInTorch as refused:
            kept[refused.node] = str(refused)
            continue
        for step in parts.steps:
            if step.kind == "repeat":
                step.body = make_plan(step.values[0].attrs["repeat"].step, options)
        results = {root(o) for o in program.outputs}
        steps = own_products(parts.steps, program, options)
        if options["in_place"]:
            in_place(steps, results.__contains__)
        return Plan(program, steps, parts.reasons, kept)
    raise CodegenError("the graph cannot be partitioned", hint="please report this graph: it is a bug of the generator")


def fold_biases(plan: Plan, *, on_device: bool = False) -> None:
    """Let the library add a bias if nothing else follows its product. A kernel for the bias alone does not pay.

    Args:
        on_device: a GPU's library adds biases to matrix products only, whichever way the right side lies. Change
            nothing if no generated kernel would be left.
    """
    for step in plan.steps:
        if step.body is not None:
            fold_biases(step.body, on_device=on_device)
    makers = {v: s for s in plan.steps for v in s.outputs}
    found = [(step, folded) for step in plan.steps if (folded := _bias_only(step, makers, on_device)) is not None]
    if on_device and len(found) == sum(step.kind in OWN_KINDS for step in plan.steps):
        return
    for step, (source, bias) in found:
        maker = makers[source]
        maker.bias = bias
        maker.outputs = step.outputs
        plan.steps.remove(step)
        plan.steps.remove(maker)
        plan.steps.insert(0, maker)
        plan.steps = _stable(plan.steps)


def _bias_only(step: Step, makers: Mapping[Value, Step], on_device: bool) -> tuple[Value, Value] | None:
    """The product and the bias of a nest that only adds the bias to the product, in place; else None."""
    if step.kind != "nest" or len(step.values) != 1 or step.values[0].op != "add" or not step.alias:
        return None
    source = next(iter(step.alias.values()))
    maker = makers.get(source)
    others = [a for a in step.values[0].args if a is not source]
    if maker is None or len(others) != 1 or not isinstance(others[0], Value):
        return None
    bias = root(others[0])
    per_filter = (
        maker.kind == "conv" and not on_device and bias.shape == (source.shape[1],) and others[0].shape[1:] != ()
    )
    per_column = maker.kind == "matmul" and bias.shape == (source.shape[-1],) and others[0] is bias
    linear = per_column and (on_device or source.attrs["transposed"]) and len(source.args[1].shape) == 2
    return (source, bias) if bias.op == "leaf" and (per_filter or linear) else None


def _stable(steps: list[Step]) -> list[Step]:
    """The steps in an order in which every value is computed before it is read."""
    makers = {v: s for s in steps for v in s.values + s.outputs}
    done: list[Step] = []
    seen: set[Step] = set()

    def place(step: Step) -> None:
        if step in seen:
            return
        seen.add(step)
        for value in step.reads:
            if value in makers and makers[value] is not step:
                place(makers[value])
        done.append(step)

    for step in sorted(steps, key=lambda s: s.values[0].order):
        place(step)
    return done
