"""The drop-in module of an exported kernel. Exported files carry a copy, so this needs the standard library and torch.

A drop-in is a subclass of the reference, so its parameters are the reference's own, under the same names. Its forward
runs the kernel for calls that were checked, and the reference's forward for all others.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import torch

__all__ = ["DropIn", "Export"]

meant_device: Callable[[], Any] = nullcontext  # a file whose reference names a CUDA device replaces this


class CheckedInput(NamedTuple):
    """One input of a checked call: a tensor's layout, or the value of anything else."""

    is_tensor: bool
    dtype: Any = None
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    contiguous: bool = True
    value: Any = None


class CheckedCall(NamedTuple):
    """A call that was checked: the constructor's arguments, defaults included, and the inputs of forward."""

    init: tuple[Any, ...]
    inputs: tuple[CheckedInput, ...]


class Tie(NamedTuple):
    """One tensor that reference and kernel share: where each keeps it, and the shape and dtype that are expected."""

    name: str
    own: dict[str, Any]
    leaf: str
    places: tuple[tuple[dict[str, Any], str], ...]
    shape: Any
    dtype: Any


class Export:
    """The reference and the kernel of an exported file, and the calls for which the kernel was checked.

    A file with several kernels has one Export for each. They share ``reference``, and each has the calls that its
    kernel serves. ``name`` distinguishes their modules, ``label`` is the kernel's name.
    """

    def __init__(
        self,
        *,
        reference_source: str,
        kernel_source: str,
        variants: Sequence[Mapping[str, Any]],
        device: str,
        training: bool,
        constant_weights: bool,
        runtime: Any,
        reference: types.ModuleType | None = None,
        name: str = "kernel",
        label: str = "",
    ) -> None:
        self.name, self.label = name, label
        self.reference_source = reference_source
        self.kernel_source = kernel_source
        self.variants = variants
        self.device = device
        self.training = training
        self.constant_weights = constant_weights
        self.runtime = runtime
        self.reference = reference or load_reference("reference", reference_source)
        self.warned = False
        self._lock = threading.RLock()
        self._kernel: types.ModuleType | None = None
        self._calls: tuple[CheckedCall, ...] | None = None

    def kernel(self) -> types.ModuleType:
        """The kernel's module; compiles its C++ on first use."""
        with self._lock:
            if self._kernel is None:
                self._kernel = load_source(self.name, self.kernel_source, {"_kernelwright": self.runtime})
            return self._kernel

    def calls(self) -> tuple[CheckedCall, ...]:
        """The checked calls, from the problem's own variants."""
        with self._lock:
            if self._calls is None:
                with torch.random.fork_rng(devices=[]):
                    self._calls = tuple(self._call(variant) for variant in self.variants)
            return self._calls

    def init_inputs(self) -> list[Sequence[Any]]:
        """The constructor's arguments of every variant."""
        with torch.random.fork_rng(devices=[]):
            return [self._variant(variant).get_init_inputs() for variant in self.variants]

    def examples(self) -> Iterator[tuple[Mapping[str, Any], Sequence[Any], Sequence[Any]]]:
        """For every variant: its constants, the constructor's arguments, and the inputs of a call."""
        for constants in self.variants:
            module = self._variant(constants)
            yield constants, module.get_init_inputs(), module.get_inputs()

    def _variant(self, constants: Mapping[str, Any]) -> Any:
        module = load_reference("variant", self.reference_source)
        vars(module).update(constants)
        return module

    def _call(self, constants: Mapping[str, Any]) -> CheckedCall:
        module = self._variant(constants)
        init = full_arguments(module.Model.__init__, (None, *module.get_init_inputs()), {})[1:]
        try:
            with torch.device("meta"):  # shapes without memory, where the function allows it
                inputs = module.get_inputs()
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            inputs = module.get_inputs()
        return CheckedCall(init, tuple(checked_input(value) for value in inputs))


def checked_input(value: Any) -> CheckedInput:
    """The description of an input of forward, with which the guard compares later inputs."""
    if not isinstance(value, torch.Tensor):
        return CheckedInput(False, value=value)
    return CheckedInput(True, value.dtype, tuple(value.shape), value.stride(), value.is_contiguous())


def fits(checked: tuple[CheckedInput, ...], inputs: tuple[Any, ...], device_flag: str) -> bool:
    """Whether inputs are laid out as in a checked call. It runs at every call, so it gives no reason."""
    if len(checked) != len(inputs):
        return False
    for spec, value in zip(checked, inputs, strict=True):
        if not spec.is_tensor:
            if not same_value(spec.value, value):
                return False
            continue
        kind = type(value)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            return False
        if value.dtype is not spec.dtype or value.shape != spec.shape or not getattr(value, device_flag):
            return False
        if not (value.is_contiguous() if spec.contiguous else value.stride() == spec.stride):
            return False
    return True


def load_source(kind: str, source: str, extra: Mapping[str, Any]) -> types.ModuleType:
    """Run a source text as a module of its own, with its lines known to tracebacks."""
    name = f"{__name__}_{kind}"
    module = types.ModuleType(name)
    module.__file__ = filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[name] = module
    vars(module).update(extra)
    exec(compile(source, filename, "exec", dont_inherit=True), vars(module))
    return module


def full_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """A call's arguments in the order of the signature, defaults filled in."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    values: list[Any] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        values += value if kind is inspect.Parameter.VAR_POSITIONAL else [value]
    return tuple(values)


def same_value(a: Any, b: Any) -> bool:
    """Equality of plain values, sequences and tensors. Values of different types are not equal."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


class _Kernel:
    """A kernel of one drop-in. It is built on first use. Copies and pickles leave it out and build their own."""

    def __init__(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.number, self.args, self.kwargs = number, args, kwargs
        self.calls: tuple[CheckedCall, ...] | None = None
        self.recent: CheckedCall | None = None
        self.clear()

    def clear(self) -> None:
        self.module: Any = None
        self.ties: tuple[Tie, ...] = ()
        self.links: tuple[tuple[dict[str, Any], str, Any], ...] = ()
        self.failure = ""
        self.weights: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.number, self.args, self.kwargs)


def load_reference(kind: str, source: str) -> types.ModuleType:
    """Run a reference's text. On a machine without CUDA, its CUDA device stands for this CPU."""
    if "cuda" not in source or torch.cuda.is_available():
        return load_source(kind, source, {})
    module: types.ModuleType = as_meant(load_source)(kind, source, {})
    for name in ("get_inputs", "get_init_inputs"):
        setattr(module, name, as_meant(getattr(module, name)))
    for name in ("__init__", "forward"):
        setattr(module.Model, name, as_meant(getattr(module.Model, name)))
    return module


def as_meant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function: if a call fails without CUDA, it is repeated under a pretended device."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (AssertionError, RuntimeError, TypeError):  # torch was built without CUDA, or finds no GPU
            pass
        with meant_device():
            return function(*args, **kwargs)

    return called


class DropIn:
    """Base of the exported class; its other base is the reference's Model.

    No call is served by two of its exports.
    """

    dropin_exports: ClassVar[tuple[Export, ...]]
    dropin_reference: ClassVar[Any]
    dropin_kernels: tuple[_Kernel, ...]
    dropin_recent: int  # the kernel that ran last
    training: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.dropin_reference.__init__(self, *args, **kwargs)
        self.dropin_kernels = tuple(_Kernel(number, args, kwargs) for number in range(len(self.dropin_exports)))
        self.dropin_recent = 0

    @classmethod
    def from_reference(cls, model: Any, *args: Any, names: Mapping[str, str] | None = None, **kwargs: Any) -> Any:
        """A drop-in for a live module: it shares the module's own parameters and buffers.

        Args:
            model: an instance of what the problem describes.
            args: the constructor's arguments; default: those of the problem whose shapes fit the module.
            names: maps this class's state names to the module's, where they differ.

        Raises:
            ValueError: the module's parameters do not correspond to the reference's.
        """
        declared = (init for export in cls.dropin_exports for init in export.init_inputs())
        choices = [args] if args or kwargs else list(declared)
        theirs = dict(_state(model))
        for init in choices:
            made: Any = cls(*init, **kwargs)
            own = dict(_state(made))
            pairs = _correspond(own, theirs, names or {})
            if pairs is not None:
                for name, other in pairs.items():
                    for holder, leaf in _places(made, own[name]):
                        holder[leaf] = theirs[other]
                return made.train(model.training)
        shapes = ", ".join(f"{name}{list(tensor.shape)}" for name, tensor in list(theirs.items())[:6])
        raise ValueError(f"the module's parameters ({shapes}) do not correspond to those of {cls.__name__}")

    def kernel_active(self, *inputs: Any, **named: Any) -> tuple[bool, str]:
        """Whether forward would run a kernel for these inputs, and the reason. If it would, the kernel is built."""
        kernel, reason, _ = self._admit(inputs, named)
        return kernel is not None, reason

    def kernel_for(self, *inputs: Any, **named: Any) -> str:
        """The label of the kernel that forward would run for these inputs; empty if the reference would run."""
        kernel, _, _ = self._admit(inputs, named)
        return "" if kernel is None else self.dropin_exports[kernel.number].label

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The kernel's result if the call was checked, else the reference's."""
        kernel, _, arguments = self._admit(inputs, named)
        if kernel is None:
            return self.dropin_reference.forward(self, *inputs, **named)
        return kernel.module.forward(*arguments)

    def _admit(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[_Kernel | None, str, tuple[Any, ...]]:
        """The kernel or None, the reason, and the inputs in the order of forward's signature."""
        reason = self._surroundings((*inputs, *named.values()))
        if reason:
            return None, reason, inputs
        if named:
            try:
                bound = inspect.signature(self.dropin_reference.forward).bind(None, *inputs, **named)
            except TypeError as error:
                return None, str(error), inputs
            if bound.kwargs:
                return None, "forward was called with arguments that were not checked", inputs
            inputs = bound.args[1:]
        kernel = self._serving(inputs)
        reason = self._unchecked(inputs) if kernel is None else self._not_ready(kernel)
        return (None if reason else kernel), reason or "the call was checked", inputs

    def _surroundings(self, inputs: tuple[Any, ...]) -> str:
        export = self.dropin_exports[0]
        if self.training != export.training:
            return "the module is in training mode: call .eval()" if self.training else "the module is in eval mode"
        if torch.is_grad_enabled():
            wanted = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
            if wanted or any(p.requires_grad for p in self.dropin_reference.parameters(self)):
                return "gradients are wanted: use torch.no_grad() or torch.inference_mode()"
        if torch.is_autocast_enabled(export.device):
            return "autocast is on"
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return "the module is being compiled or traced"
        return ""

    def _checked(self, kernel: _Kernel) -> tuple[CheckedCall, ...]:
        """The checked calls of a kernel that have the constructor arguments of this module."""
        if kernel.calls is None:
            own = full_arguments(self.dropin_reference.__init__, (None, *kernel.args), kernel.kwargs)[1:]
            calls = self.dropin_exports[kernel.number].calls()
            kernel.calls = tuple(call for call in calls if same_value(call.init, own))
        return kernel.calls

    def _serving(self, inputs: tuple[Any, ...]) -> _Kernel | None:
        """The kernel that was checked for a call with such inputs, or None."""
        recent, flag = self.dropin_kernels[self.dropin_recent], f"is_{self.dropin_exports[0].device}"
        if recent.recent is not None and fits(recent.recent.inputs, inputs, flag):
            return recent
        for kernel in self.dropin_kernels:
            for call in self._checked(kernel):
                if fits(call.inputs, inputs, flag):
                    kernel.recent, self.dropin_recent = call, kernel.number
                    return kernel
        return None

    def _unchecked(self, inputs: tuple[Any, ...]) -> str:
        """Why no kernel serves a call with such inputs."""
        calls = [call for kernel in self.dropin_kernels for call in self._checked(kernel)]
        if not calls:
            return "the module was constructed with arguments for which the kernel was not checked"
        reason = self._difference(calls[-1].inputs, inputs)
        if "has shape" in reason:
            shapes = "; ".join(", ".join(str(i.shape) for i in call.inputs if i.is_tensor) for call in calls)
            reason += f" (checked: {shapes})"
        return reason

    def _difference(self, checked: tuple[CheckedInput, ...], inputs: tuple[Any, ...]) -> str:
        """Why inputs do not fit a checked call."""
        if len(checked) != len(inputs):
            return f"{len(inputs)} inputs were given, {len(checked)} were checked"
        for i, (spec, value) in enumerate(zip(checked, inputs, strict=True)):
            if not spec.is_tensor:
                if not same_value(spec.value, value):
                    return f"input {i} is {value!r}, checked with {spec.value!r}"
                continue
            if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
                return f"input {i} is a {type(value).__name__}, not a plain tensor"
            if value.shape != spec.shape:
                return f"input {i} has shape {tuple(value.shape)}"
            if value.dtype is not spec.dtype:
                return f"input {i} is {value.dtype}, checked with {spec.dtype}"
            if value.device.type != self.dropin_exports[0].device:
                return f"input {i} is on {value.device}, checked on {self.dropin_exports[0].device}"
            if not (value.is_contiguous() if spec.contiguous else value.stride() == spec.stride):
                return f"input {i} is laid out with strides {value.stride()}, checked with {spec.stride}"
        return ""

    def _not_ready(self, kernel: _Kernel) -> str:
        """Build a kernel if needed, and give it the current parameters. Returns why it cannot run, or an empty text."""
        export = self.dropin_exports[kernel.number]
        stale = any(children.get(name) is not child for children, name, child in kernel.links)
        if kernel.module is not None and export.constant_weights:
            stale = stale or _versions(self) != kernel.weights  # a kernel may fold its weights into constants here
        if stale:
            kernel.clear()
        if kernel.module is None:
            self._build(kernel)
        for _, name, child in kernel.links:
            if child._forward_hooks or child._forward_pre_hooks:
                return f"the submodule {name} has forward hooks, which the kernel would not call"
        for tie in kernel.ties:
            tensor = tie.own.get(tie.leaf)
            if tensor is None:
                return f"{tie.name} is gone"
            if tensor.dtype is not tie.dtype or tensor.shape != tie.shape or not tensor.is_contiguous():
                return f"{tie.name} is {tensor.dtype} {tuple(tensor.shape)}, checked as {tie.dtype} {tuple(tie.shape)}"
            if tensor.device.type != export.device:
                return f"{tie.name} is on {tensor.device}, checked on {export.device}"
            for holder, leaf in tie.places:
                holder[leaf] = tensor
        return kernel.failure

    def _build(self, kernel: _Kernel) -> None:
        export = self.dropin_exports[kernel.number]
        if kernel.failure:
            return
        try:
            with torch.random.fork_rng(devices=[]):
                source = export.kernel()
                module = source.ModelNew(*kernel.args, **kernel.kwargs)
            kernel.ties = self._tie(module, getattr(source, "STATE_MAP", {}))
            kernel.module = module.train(self.training)
            kernel.links = tuple(_links(self))
            kernel.weights = _versions(self)
        except Exception as error:  # noqa: BLE001 - whatever keeps a kernel from being built, the reference still works
            kernel.failure = f"the kernel could not be built: {type(error).__name__}: {error}"
            if not export.warned:
                export.warned = True
                message = f"{type(self).__name__} runs its reference: {kernel.failure}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _tie(self, module: Any, state_map: Mapping[str, str]) -> tuple[Tie, ...]:
        theirs, own = dict(_state(module)), dict(_state(self))
        buffers = {name for name, _ in self.dropin_reference.named_buffers(self)}
        pairs = _correspond(own, theirs, state_map, optional=buffers)
        if pairs is None:
            raise ValueError("the kernel's parameters do not correspond to the reference's")
        ties = []
        for name, other in pairs.items():
            holder, leaf = _places(self, own[name])[0]
            places = _places(module, theirs[other])
            ties.append(Tie(name, holder, leaf, places, own[name].shape, theirs[other].dtype))
        return tuple(ties)


def _state(module: Any) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers by name, shared ones once."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def _places(module: Any, tensor: Any) -> tuple[tuple[dict[str, Any], str], ...]:
    """Every dictionary and key under which a module keeps a parameter or buffer (several where it is shared)."""
    holders = [holder for part in module.modules() for holder in (part._parameters, part._buffers)]
    return tuple((holder, leaf) for holder in holders for leaf, value in holder.items() if value is tensor)


def _links(module: Any) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Every submodule: the dictionary that holds it, its name there, and itself."""
    for parent in module.modules():
        for name, child in parent._modules.items():
            if child is not None:
                yield parent._modules, name, child


def _versions(module: Any) -> tuple[Any, ...]:
    """Changes with every tracked write to a parameter or buffer (not with writes through ``.data``)."""
    return tuple((tensor.data_ptr(), tensor._version) for _, tensor in _state(module))


def _correspond(
    own: Mapping[str, Any], theirs: Mapping[str, Any], names: Mapping[str, str], optional: Set[str] = frozenset()
) -> dict[str, str] | None:
    """Map the names in ``own`` to those in ``theirs``: by name and shape, else by order. None if neither fits."""
    found = {}
    for name, tensor in own.items():
        other = names.get(name, name)
        if other in theirs and theirs[other].shape == tensor.shape:
            found[name] = other
        elif name not in optional:
            break
    else:
        return found
    if [tensor.shape for tensor in own.values()] == [tensor.shape for tensor in theirs.values()]:
        return dict(zip(own, theirs, strict=True))
    return None
