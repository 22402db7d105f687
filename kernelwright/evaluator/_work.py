"""How much arithmetic a reference does: floating-point operations by operator, for placing a kernel on the roofline.

Runs in the oracle's sandbox. Products and convolutions are counted by torch's own formulas
(``torch.utils.flop_counter``); any other operator that rounds counts one operation for each element of its largest
tensor, so an exponential counts as one as well: a convention, not a measurement.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from kernelwright.evaluator._operators import is_exact


class WorkCount(TorchDispatchMode):  # type: ignore[misc]
    """Adds up ``flops`` over the operators that are dispatched inside."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports torch._dynamo, one second, just to be skipped by it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        name = str(func._schema.name).split("::")[-1].rstrip("_")
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=result))
        elif not is_exact(name) and not any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns):
            tensors = [
                t for t in (*args, *(result if isinstance(result, tuple) else (result,))) if isinstance(t, Tensor)
            ]
            self.flops += max((t.numel() for t in tensors if t.is_floating_point()), default=0)
        return result
