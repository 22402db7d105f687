"""TorchInductor's lowering of a problem, as text: a second source of first candidates.

Worker side only: it runs the problem's code. It uses TorchInductor's private API, so torch is pinned. Every failure is
returned with a reason. Nothing is compiled here. The scheduler's C++ and the wrapper's calls are taken as text, one set
per declared shape variant, with the vector width that torch itself would use on this processor.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from kernelwright.codegen._capture import export_reference, shapes_of
from kernelwright.codegen._nodes import CaptureFault
from kernelwright.datasets.runtime import ReferenceFault

_VECTOR_BITS = {"AVX512": 512, "AVX2": 256}
_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\((\[.*?\]), r'''\n(.*?)'''\)", re.DOTALL | re.MULTILINE)
_CALL = re.compile(r"^    def call\(self, args\):\n(.*?)^        return (\(.*?\))$", re.DOTALL | re.MULTILINE)


def inductor_entry(payload: dict[str, Any]) -> dict[str, Any]:
    """TorchInductor's kernels for a problem.

    Args:
        payload: as for ``capture_entry``: ``source``, ``variant``, optionally ``variants``, ``small``, ``mode``.

    Returns:
        ``ok``, ``vector_bits`` (0 for scalar loops) and ``variants``: for each the ``kernels`` (name to C++), ``body``
        (the wrapper's lines), ``result`` and ``inputs`` (wrapper name, kind, target, shape); or ``ok`` false with a
        ``reason``.
    """
    try:
        lowered = [_lowered(text, variant, payload.get("mode", "eval")) for text, variant in shapes_of(payload)]
        return {"ok": True, "vector_bits": _vector_bits(), "variants": lowered}
    except (CaptureFault, ReferenceFault) as fault:
        return {"ok": False, "reason": str(fault)}


def _vector_bits() -> int:
    return _VECTOR_BITS.get(torch.backends.cpu.get_cpu_capability(), 0)


def _lowered(source: str, variant: Mapping[str, Any], mode: str) -> dict[str, Any]:
    _, _, program = export_reference(source, variant, mode)
    try:
        wrapper, program = _wrapper(program)
    except Exception as error:
        raise CaptureFault(
            f"TorchInductor: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        ) from error
    call = _CALL.search(wrapper)
    if call is None:
        raise CaptureFault("TorchInductor's wrapper has an unknown form")
    kernels = {name: code for name, _, code in _KERNEL.findall(wrapper)}
    return {"kernels": kernels, "body": call[1].splitlines(), "result": call[2], "inputs": _inputs(program)}


def _wrapper(program: Any) -> tuple[str, Any]:
    from torch._inductor import config
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    # ``vec_isa_ok``: do not run a compiler to find out whether the processor has these vectors.
    chosen = {"cpp.simdlen": _vector_bits(), "cpp.vec_isa_ok": True, "cpp.threads": 1}
    with torch.no_grad(), warnings.catch_warnings(), config.patch(chosen):
        warnings.simplefilter("ignore")
        program = program.run_decompositions(select_decomp_table())
        inputs = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
        lowering = GraphLowering(program.graph_module, shape_env=None, is_inference=True)
        fake = next(i.fake_mode for i in inputs if hasattr(i, "fake_mode"))
        with V.set_graph_handler(lowering), V.set_fake_mode(fake), V.set_debug_handler(DebugContext()):
            lowering.run(*inputs)
            code, _ = lowering.codegen()
    return str(code.value if hasattr(code, "value") else code), program


def _inputs(program: Any) -> list[dict[str, Any]]:
    kinds = {"USER_INPUT": "input", "PARAMETER": "parameter", "BUFFER": "buffer"}
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    entries, position = [], 0
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        if spec.kind.name not in kinds:
            raise CaptureFault(f"a graph input of kind {spec.kind.name}")
        shape = [int(s) for s in node.meta["val"].shape]
        entries.append(
            {"name": node.name, "kind": kinds[spec.kind.name], "target": spec.target or position, "shape": shape}
        )
        position += spec.kind.name == "USER_INPUT"
    return entries
