"""One call of a problem: forward, and what the problem asks for besides (gradients, written inputs, buffers).

Worker side, shared by oracle, twin and contestant, so that all three mean the same by "the outputs": the tensors that
forward returns, then the gradients, then the inputs and the buffers that the reference writes. Imports torch lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.evaluator.wire import tensors as wire

if TYPE_CHECKING:
    import torch

STRUCTURE_CHARS = 2000  # the most of a text that says how outputs are nested


class CallPlan(NamedTuple):
    """The parts of a call besides forward's own arguments and results.

    written: positions of inputs that the reference writes; they are outputs, too.
    buffers: names of buffers that the reference writes; put back before every call, and outputs, too.
    seeded: the last hidden input is a seed for torch's generator.
    gradients: positions of inputs whose gradients are outputs; None without a backward pass. ``parameters``: names of
    parameters likewise. ``cotangents``: positions of the outputs that gradients flow from; each has a hidden input.
    on_device: the reference's forward runs only if the CUDA device that it names stands for the device in use.
    """

    written: tuple[int, ...] = ()
    buffers: tuple[str, ...] = ()
    seeded: bool = False
    gradients: tuple[int, ...] | None = None
    parameters: tuple[str, ...] = ()
    cotangents: tuple[int, ...] = ()
    on_device: bool = False

    @property
    def plain(self) -> bool:
        """Whether a call is forward alone."""
        return self._replace(on_device=False) == CallPlan()

    @property
    def hidden(self) -> int:
        """Tensors at the end of a slot that forward is not given."""
        return len(self.cotangents) + int(self.seeded)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**self._asdict(), "gradients": None if self.gradients is None else list(self.gradients)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CallPlan:
        """Inverse of :meth:`to_json`."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in value.items()}
        return cls(**fields)


class Call:
    """Performs calls of ``model`` by ``plan``; ``named`` finds the model's tensor for a name of the reference.

    ``initial`` holds, by name, the initial values of written buffers for each draw of the weights; ``draw`` is the
    current draw.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        plan: CallPlan,
        named: Mapping[str, torch.Tensor],
        initial: Mapping[str, Sequence[torch.Tensor]],
    ) -> None:
        self.draw = 0
        self._model = model
        self._plan = plan
        self._parameters = [named[name] for name in plan.parameters]
        self._buffers = [(named[name], initial[name]) for name in plan.buffers]

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """The outputs of one call on forward's arguments followed by the hidden inputs.

        Raises:
            TypeError: forward returned something that is no dense tensor, or fewer outputs than gradients flow from.
        """
        import torch

        plan = self._plan
        visible = len(arguments) - plan.hidden
        inputs, hidden = list(arguments[:visible]), arguments[visible:]
        if self._buffers:
            with torch.no_grad():
                for tensor, values in self._buffers:
                    torch.Tensor.copy_(tensor, values[self.draw])  # the tensor's own copy_ could notice the moment
        if plan.seeded:
            seed = int(hidden[-1])
            torch.default_generator.manual_seed(seed)
            if hidden[-1].is_cuda:
                torch.cuda.default_generators[hidden[-1].device.index].manual_seed(seed)
        if plan.gradients is None:
            outputs = flatten_outputs(self._model(*inputs))
        else:
            outputs = self._with_gradients(inputs, hidden[: len(plan.cotangents)])
        return (*outputs, *(inputs[i] for i in plan.written), *(tensor for tensor, _ in self._buffers))

    def _with_gradients(self, inputs: list[Any], cotangents: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        import torch

        plan = self._plan
        assert plan.gradients is not None
        with torch.enable_grad():
            for i in plan.gradients:
                inputs[i] = inputs[i].detach().requires_grad_()
            outputs = flatten_outputs(self._model(*inputs))
            if any(i >= len(outputs) for i in plan.cotangents):
                raise TypeError(f"forward returned {len(outputs)} tensors; the gradient of a later one is asked for")
            leaves = [*(inputs[i] for i in plan.gradients), *self._parameters]
            gradients = torch.autograd.grad(
                [outputs[i] for i in plan.cotangents], leaves, list(cotangents), allow_unused=True
            )
        found = [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, gradients, strict=True)]
        return (*(output.detach() for output in outputs), *found)


def flatten_outputs(result: Any) -> tuple[Any, ...]:
    """The tensors of a result in order: a tensor, or nested tuples, lists and mappings of tensors and of None.

    Raises:
        TypeError: for anything else, including None by itself, and for tensor subclasses (a lazy tensor could compute
            after the clock stopped).
    """
    import torch

    if type(result) in (torch.Tensor, torch.nn.Parameter):
        return (result,)
    if isinstance(result, tuple | list):
        flat = tuple(t for item in result if item is not None for t in flatten_outputs(item))
    elif isinstance(result, Mapping):
        flat = tuple(t for item in result.values() if item is not None for t in flatten_outputs(item))
    else:
        raise TypeError(f"forward returned {type(result).__name__}; a tensor, or a tuple of tensors, is expected")
    if len(flat) > wire.MAX_OUTPUTS:
        raise TypeError(f"forward returned {len(flat)} tensors; at most {wire.MAX_OUTPUTS} are supported")
    return flat


def structure_of(result: Any) -> str:
    """How the tensors of a result are nested: ``tensor``, ``[tensor, [tensor, None]]`` or ``{'key': tensor}``.

    Tuples and lists count as the same, and so do mappings with the same keys in the same order.
    """
    if isinstance(result, tuple | list):
        return f"[{', '.join(map(structure_of, result))}]"
    if isinstance(result, Mapping):
        return f"{{{', '.join(f'{key!r}: {structure_of(item)}' for key, item in result.items())}}}"
    return "None" if result is None else "tensor"


# ------------------------------------------------------------------------------------------------ a module's state


class StateMismatch(Exception):
    """A candidate's parameters do not correspond to the reference's; the message says which and what to do."""


def module_state(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, shared ones once, non-persistent buffers included."""
    return [*model.named_parameters(), *model.named_buffers()]


def state_layout(model: Any) -> list[wire.TensorSpec]:
    """The dense layout of a module's state, in its own order, offsets included."""
    specs = [
        wire.TensorSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            wire.contiguous_stride(tensor.shape),
        )
        for name, tensor in module_state(model)
    ]
    return wire.place(specs)[0]


def match_state(
    theirs: Sequence[wire.TensorSpec],
    own: Sequence[wire.TensorSpec],
    required: Sequence[str],
    state_map: dict[str, str] | None,
) -> list[str | None]:
    """Own names for the reference's tensors: by name, through ``STATE_MAP`` (reference name: own name), else by order.

    The ``required`` tensors of ``theirs`` must correspond. A buffer that the candidate does without (a mask that it
    computes) is None. A wrong correspondence shows in the results.

    Raises:
        StateMismatch: neither names nor the sequence of shapes correspond.
    """
    shapes = {spec.name: (spec.dtype, spec.shape) for spec in own}
    wanted = [(state_map or {}).get(spec.name, spec.name) for spec in theirs]
    found = [n if shapes.get(n) == (s.dtype, s.shape) else None for n, s in zip(wanted, theirs, strict=True)]
    missing = [s for n, s in zip(found, theirs, strict=True) if n is None and s.name in required]
    if not missing:
        return found
    if [(s.dtype, s.shape) for s in theirs] == [(s.dtype, s.shape) for s in own]:
        return [spec.name for spec in own]
    names = ", ".join(f"{s.name}{list(s.shape)}" for s in missing[:5])
    raise StateMismatch(
        f"ModelNew's parameters do not correspond to Model's: no {names}; "
        "use the same names and shapes, or declare STATE_MAP = {reference name: own name}"
    )


def renamed(
    theirs: Sequence[wire.TensorSpec], names: Sequence[str | None], state_map: dict[str, str] | None
) -> list[tuple[str, str]]:
    """Pairs of names of the reference and of the candidate that correspond by their order alone."""
    wanted = [(state_map or {}).get(spec.name, spec.name) for spec in theirs]
    pairs = zip(theirs, wanted, names, strict=True)
    return [(spec.name, name) for spec, asked, name in pairs if name is not None and name != asked]
