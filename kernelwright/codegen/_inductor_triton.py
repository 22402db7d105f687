"""TorchInductor's Triton kernels for a problem, as text, on a machine with or without a GPU (worker side only).

The reference runs under fake tensors, which need no memory, and is lowered for a CUDA device. On a machine without one,
TorchInductor's queries about the device are answered with the figures of an H100. The module uses TorchInductor's
private API, so torch is pinned. Every failure is returned with a reason. Nothing is compiled here.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from kernelwright.codegen._capture import shapes_of
from kernelwright.codegen._graph import MOST_OPERATORS
from kernelwright.codegen._inductor_joint import halves_on_device
from kernelwright.codegen._nodes import CaptureFault
from kernelwright.datasets.runtime import (
    ReferenceFault,
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    settle_device,
)

_MOST_TEXT = 1 << 20  # characters of a wrapper
_LAUNCH = re.compile(r"^(?: *(?:buf\d+ = )?)(?:\w+\.run\(|extern_kernels\.|(?:torch\.ops\.)?aten\.)", re.MULTILINE)
_KINDS = {"USER_INPUT": "input", "PARAMETER": "parameter", "BUFFER": "buffer"}
_H100 = SimpleNamespace(
    name="NVIDIA H100",
    type="cuda",
    index=0,
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 << 30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    gcnArchName="",
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20,
    uuid="",
)
# One kernel per region, with plain pointers, without random numbers of its own and without choices by timing.
_SETTINGS = {
    "compile_threads": 1,
    "comprehensive_padding": False,
    "unroll_reductions_threshold": 1,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "benchmark_kernel": False,
    "size_asserts": True,  # they tell the strides that kernels expect of a library's results
    "alignment_asserts": False,
    "scalar_asserts": False,
    "cpp_wrapper": False,
    "fallback_random": True,
    "triton.autotune_at_compile_time": False,
    "triton.cooperative_reductions": False,
    "triton.cudagraphs": False,
    "triton.descriptive_names": "original_aten",
    "triton.unique_kernel_names": True,
    "triton.use_block_ptr": False,
    "triton.mix_order_reduction": False,
    "triton.multi_kernel": 0,
}


def inductor_triton_entry(payload: dict[str, Any]) -> dict[str, Any]:
    """TorchInductor's Triton kernels for a problem.

    Args:
        payload: as for ``capture_entry``: ``source``, ``variant``, optionally ``variants``, ``small``, ``mode``,
            ``backward``.

    Returns:
        ``ok`` and ``variants``: for each the ``wrapper`` (the text of TorchInductor's Python file), ``inputs`` (the
        wrapper's arguments in order: name, kind, target, shape), ``outputs`` (what it returns in order: kind, target),
        ``bytes`` (memory that its kernels read and write) and ``launches`` (its kernels and library calls). With
        gradients, a variant has ``halves`` with these keys: the forward and the backward pass. Or ``ok`` false with a
        ``reason``.
    """
    from torch._inductor import lowering  # noqa: F401 - max pooling's decomposition needs it, and does not import it

    try:
        timed, *others = shapes_of(payload)
        mode = payload.get("mode", "eval")
        with _device(), _uniform(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lowered = _lowered_halves if payload.get("backward") else _lowered
            found = [lowered(*timed, mode)]
            loops = "@triton_heuristics.persistent_reduction" not in str(found[0])
            # Smaller shapes get the same kind of kernel as the timed shape, so that checks cover the timed kernel.
            settings = {"triton.persistent_reductions": False} if loops else {}
            found += [lowered(*shape, mode, settings) for shape in others]
            return {"ok": True, "variants": found}
    except (CaptureFault, ReferenceFault) as fault:
        return {"ok": False, "reason": str(fault)}
    except Exception as error:  # noqa: BLE001 - a private API, which may raise anything
        return {"ok": False, "reason": _line(error)}


def _lowered(
    source: str, variant: Mapping[str, Any], mode: str, settings: Mapping[str, Any] = _SETTINGS
) -> dict[str, Any]:
    from torch._inductor.decomposition import select_decomp_table
    from torch.export.passes import move_to_device_pass

    program = _exported(source, variant, mode)
    if len(program.graph.nodes) > 2 * MOST_OPERATORS:
        raise CaptureFault(f"{len(program.graph.nodes)} operators are more than it compiles in a minute")
    with torch.no_grad():
        try:
            program = move_to_device_pass(program, "cuda:0").run_decompositions(select_decomp_table())
        except RuntimeError:  # a torch built without CUDA cannot take some composite operators apart for a device
            program = _exported(source, variant, mode).run_decompositions(select_decomp_table())
            program = move_to_device_pass(program, "cuda:0")
    made = _compiled(program.graph_module, {**_SETTINGS, **settings})
    return {**made, "inputs": _inputs(program), "outputs": _outputs(program)}


def _lowered_halves(
    source: str, variant: Mapping[str, Any], mode: str, settings: Mapping[str, Any] = _SETTINGS
) -> dict[str, Any]:
    halves = halves_on_device(source, variant, mode)
    return {"halves": [{**_compiled(module, {**_SETTINGS, **settings}), **facts} for module, facts in halves]}


def _exported(source: str, variant: Mapping[str, Any], mode: str) -> Any:
    """The exported program over fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        module = load_reference(source, dict(variant))
        model = make_model(module, make_init_inputs(module, 0))
        inputs = make_inputs(module, 0)
        model.train(mode == "train").requires_grad_(False)
        settle_device(model, inputs)
        for tensor in model.state_dict(keep_vars=True).values():
            tensor.constant = None  # else a fake tensor's small values would be moved to the device as well
        return torch.export.export(model, tuple(inputs), strict=False)


def _compiled(module: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from torch._inductor import config
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    inputs = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    fake = next((i.fake_mode for i in inputs if hasattr(i, "fake_mode")), None)
    if fake is None:
        raise CaptureFault("the forward takes no tensor")
    lowering = GraphLowering(module, shape_env=None, is_inference=True)
    with torch.no_grad(), config.patch(settings), V.set_graph_handler(lowering), V.set_fake_mode(fake):
        with V.set_debug_handler(DebugContext()):
            lowering.run(*inputs)
            code, _ = lowering.codegen()
            moved = sum(node.get_read_write_buffers_sizes() for node in lowering.scheduler.nodes)
    wrapper = str(code.value if hasattr(code, "value") else code)
    if len(wrapper) > _MOST_TEXT:
        raise CaptureFault("TorchInductor's wrapper is too long")
    launches = len(_LAUNCH.findall(wrapper.partition("def call(")[2].partition("runner = Runner(")[0]))
    return {"wrapper": wrapper, "bytes": int(moved), "launches": launches}


def _outputs(program: Any) -> list[dict[str, Any]]:
    kinds = {"USER_OUTPUT": "output", "BUFFER_MUTATION": "buffer"}
    specs = program.graph_signature.output_specs
    if any(spec.kind.name not in kinds for spec in specs):
        raise CaptureFault("the forward changes an input")
    return [{"kind": kinds[spec.kind.name], "target": spec.target} for spec in specs]


def _inputs(program: Any) -> list[dict[str, Any]]:
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    entries, position = [], 0
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        if spec.kind.name not in _KINDS:
            raise CaptureFault(f"a graph input of kind {spec.kind.name}")
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise CaptureFault("the forward takes something that is not a tensor")
        entry = {"name": node.name, "kind": _KINDS[spec.kind.name], "target": spec.target or position}
        entries.append({**entry, "shape": list(map(int, value.shape)), "contiguous": value.is_contiguous()})
        position += spec.kind.name == "USER_INPUT"
    return entries


@contextlib.contextmanager
def _uniform() -> Iterator[None]:
    """Make kernels mask every size, even a multiple of every block, so that one text serves more shapes."""
    from torch._inductor.codegen.triton import TritonKernel

    with mock.patch.object(TritonKernel, "_has_constant_mask", return_value=False):
        yield


@contextlib.contextmanager
def _device() -> Iterator[None]:
    """Use the CUDA device of this machine. Without one, fake its answers while the context is active."""
    if torch.cuda.is_available():
        yield
        return
    from torch._dynamo.device_interface import CudaInterface
    from torch._subclasses import fake_tensor
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    def constant(value: Any) -> Any:
        return staticmethod(lambda *args, **kwargs: value)

    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": _H100,
        "get_device_capability": (9, 0),
        "synchronize": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "_lazy_init": None,
    }
    interface = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_compute_capability": 90,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "get_device_properties": _H100,
        "synchronize": None,
    }
    with contextlib.ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *args, _value=value, **kwargs: _value))
        for name, value in interface.items():
            stack.enter_context(mock.patch.object(CudaInterface, name, constant(value)))
        for name in ("get_device_properties", "current_device"):
            stack.enter_context(mock.patch.object(CudaInterface.Worker, name, constant(interface[name])))
        # With a torch that is built for CUDA, fake tensors would open the driver.
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", return_value=None))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
        target = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
        stack.enter_context(mock.patch.object(driver, "_active", target))
        yield


def _line(error: Exception) -> str:
    return f"TorchInductor: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
