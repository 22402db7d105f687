"""TorchInductor's view of a problem with gradients: the forward and the backward pass as graphs for a CUDA device.

Worker side only, like ``_inductor_triton.py``. The passes are traced together and cut in two by the rule of
``torch.compile``, which computes some values again instead of keeping them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from kernelwright.codegen._joint import Joint
from kernelwright.codegen._nodes import parameter_names
from kernelwright.datasets.runtime import load_reference, make_init_inputs, make_inputs, make_model, settle_device


def halves_on_device(source: str, variant: Mapping[str, Any], mode: str) -> list[tuple[Any, dict[str, Any]]]:
    """The graph modules of both passes, and for each its ``inputs`` and ``outputs`` as ``inductor_triton_entry`` has.

    An input of the backward pass is ``saved`` if the forward pass returns it, after the outputs.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    module = load_reference(source, dict(variant))
    model, inputs = make_model(module, make_init_inputs(module, 0)), make_inputs(module, 0)
    model.train(mode == "train")
    settle_device(model, inputs)
    joint = Joint(model, inputs, parameter_names(inspect.signature(model.forward).parameters, len(inputs)))
    leaves, cotangents = joint.arguments()
    count, outputs = len(leaves), joint.returned
    traced = make_fx(
        lambda *given: joint.both(list(given[:count]), list(given[count:])),
        decomposition_table=select_decomp_table(),
        tracing_mode="fake",
    )(*leaves, *cotangents)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for number, node in enumerate(placeholders):  # the names by which the partitioner knows them
        known = f"primals_{number + 1}" if number < count else f"tangents_{number - count + 1}"
        node.target = node.name = known
    traced.recompile()
    given = [*leaves, *cotangents]
    passes = min_cut_rematerialization_partition(traced, given, num_fwd_outputs=outputs)
    found = []
    for number, half in enumerate(passes):
        moved = _on_device(half)
        values = [node.meta["val"] for node in moved.graph.nodes if node.op == "placeholder"]
        names = [node.name for node in moved.graph.nodes if node.op == "placeholder"]
        saved = len(names) - len(cotangents) if number else 0
        entries = [
            {"name": name, "kind": "saved" if place < saved else "input", "target": place,
             "shape": list(map(int, value.shape)), "contiguous": value.is_contiguous()}
            for place, (name, value) in enumerate(zip(names, values, strict=True))
        ]  # fmt: skip
        results = next(node for node in moved.graph.nodes if node.op == "output").args[0]
        found.append((moved, {"inputs": entries, "outputs": [{"kind": "output", "target": None} for _ in results]}))
    return found


def _on_device(half: Any) -> Any:
    """A graph module traced again over fake tensors of a CUDA device."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    device = torch.device("cuda:0")
    for node in half.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    result = next(node for node in half.graph.nodes if node.op == "output")
    result.args = (tuple(value for value in result.args[0] if value is not None),)
    half.recompile()
    values = [node.meta["val"] for node in half.graph.nodes if node.op == "placeholder"]
    with FakeTensorMode():
        given = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=device) for v in values]
        return make_fx(half)(*given)
