"""Builds candidates in this process: the problems of these tests are trusted."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.codegen import Generated, Graph, generate
from kernelwright.codegen._capture import capture_entry
from kernelwright.datasets.runtime import (
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    randomise_parameters,
)

Compared = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

PRELUDE = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def problem(
    forward: str, inputs: str, *, init: str = "", init_inputs: str = "", constants: str = "", variants: Any = ()
) -> str:
    """The text of a problem file around a ``forward`` body."""
    body = "\n".join("        " + line for line in forward.strip().splitlines())
    parameters = forward.split("\n", 1)[0] if forward.startswith("#") else "# x"
    names = ", ".join(parameters.lstrip("# ").split())
    setup = "\n".join("        " + line for line in init.strip().splitlines())
    arguments = f", {init_inputs}" if init_inputs else ""
    return (
        f"{PRELUDE}{constants}\nPROBLEM = {{'variants': {{'cpu': {list(variants)!r}}}}}\n"
        f"class Model(nn.Module):\n    def __init__(self{arguments}):\n        super().__init__()\n{setup}\n"
        f"    def forward(self, {names}):\n{body}\n"
        f"def get_inputs():\n    return [{inputs}]\n"
        f"def get_init_inputs():\n    return [{init_inputs}]\n"
    )


class Built:
    """A problem with its graph and a candidate, ready to be compared."""

    backend = "cpp"

    def __init__(
        self, source: str, schedule: Mapping[str, Any], variants: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        payload: dict[str, Any] = {"source": source, "variant": (variants or [{}])[0], "mode": "eval"}
        if variants is not None:
            payload["variants"] = list(variants)
        reply = capture_entry(payload)
        assert reply["ok"], reply
        self.graph = Graph.from_json(json.loads(json.dumps(reply)))
        self.source = source
        self.generated: Generated = generate(self.graph, schedule, backend=self.backend)
        self.module = self.load()

    def load(self) -> types.ModuleType:
        """The candidate as a module."""
        module = types.ModuleType("candidate")
        sys.modules[module.__name__] = module  # a dataclass of the file looks its annotations up there
        exec(compile(self.generated.source, "candidate.py", "exec"), module.__dict__)
        return module

    def models(self, variant: Mapping[str, Any], seed: int = 3) -> tuple[torch.nn.Module, torch.nn.Module, list[Any]]:
        """The reference, the candidate with its weights, and inputs."""
        reference_module = load_reference(self.source, dict(variant))
        init = make_init_inputs(reference_module, 0)
        reference = make_model(reference_module, init).eval()
        randomise_parameters(reference, seed)
        candidate = self.module.ModelNew(*init).eval()
        candidate.load_state_dict(reference.state_dict())
        return reference, candidate, make_inputs(reference_module, seed)

    def check(
        self, variant: Mapping[str, Any] = {}, inputs: Sequence[Any] | None = None, slack: float = 4.0, draws: int = 1
    ) -> None:
        """Compare with the reference in float64: the error may be ``slack`` times float32's own.

        Of a single number, float32's own error is a matter of luck: there, several draws of inputs are compared
        together. Outputs of more numbers are compared in the first draw.
        """
        compared = [self._compare(variant, seed, inputs) for seed in range(3, 3 + draws)]
        for found in zip(*compared, strict=True):
            if found[0][2].numel() > 1:
                assert_close(*found[0], slack)
                continue
            assert all(mine.shape == eager.shape for mine, eager, _ in found)
            mine, eager, true = (torch.cat([one[place].flatten() for one in found]) for place in range(3))
            assert_close(mine, eager, true, slack)

    def check_halves(self, variant: Mapping[str, Any] = {}, slack: float = 1.05, floor: float = 1e-6) -> None:
        """Compare outputs of half types with float64: the error may be ``slack`` times eager's. Others are eager's."""
        reference, candidate, inputs = self.models(variant)
        exact = _flat(reference(*(i.double() for i in inputs)))
        for got, eager, true in zip(_flat(candidate(*inputs)), _flat(reference(*inputs)), exact, strict=True):
            assert (got.shape, got.dtype) == (eager.shape, eager.dtype)
            if not got.is_floating_point():
                assert torch.equal(got, eager)
                continue
            error, allowed = ((one.double() - true).norm() for one in (got, eager))
            assert error <= slack * allowed + floor * true.norm(), (variant, error, allowed)

    def _compare(self, variant: Mapping[str, Any], seed: int, inputs: Sequence[Any] | None) -> list[Compared]:
        """The candidate's outputs, the reference's, and the reference's in float64."""
        reference, candidate, made = self.models(variant, seed)
        inputs = made if inputs is None else list(inputs)
        with torch.no_grad():
            before = [i.clone() if isinstance(i, torch.Tensor) else i for i in inputs]
            got = _flat(candidate(*inputs))
            low = _flat(reference(*inputs))
            doubles = [i.double() if isinstance(i, torch.Tensor) and i.is_floating_point() else i for i in inputs]
            exact = _flat(reference.double()(*doubles))
        for kept, now in zip(before, inputs, strict=True):
            assert not isinstance(kept, torch.Tensor) or torch.equal(kept, now) or kept.isnan().any(), (
                "an input was changed"
            )
        return list(zip(got, low, exact, strict=True))


def assert_close(mine: torch.Tensor, eager: torch.Tensor, true: torch.Tensor, slack: float = 4.0) -> None:
    """Same shape and dtype; NaN and infinities where eager has them; the error within a few of eager's."""
    assert mine.shape == eager.shape
    assert mine.dtype == eager.dtype
    if not mine.is_floating_point():
        assert torch.equal(mine, eager)
        return
    assert torch.equal(mine.isnan(), eager.isnan())
    infinite = eager.isinf()
    assert torch.equal(mine[infinite], eager[infinite])
    finite = eager.isfinite() & true.isfinite()
    error = (mine.double() - true)[finite].norm().item()
    allowed = (eager.double() - true)[finite].norm().item()
    roundoff = 2.0**-24 * true[finite].norm().item()
    assert error <= slack * allowed + 3 * roundoff + 1e-37, (
        error / max(roundoff, 1e-300),
        allowed / max(roundoff, 1e-300),
    )


def _flat(outputs: Any) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


@pytest.fixture(scope="session", autouse=True)
def _own_build_cache(run_cache: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_cache / "codegen"))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture
def build() -> Callable[..., Built]:
    """``build(forward, inputs, schedule=..., variants=..., init=...)``: a problem from a forward body."""

    def make(forward: str, inputs: str, *, schedule: Mapping[str, Any] | None = None, **more: Any) -> Built:
        return Built(problem(forward, inputs, **more), schedule or {})

    return make


@pytest.fixture
def build_source() -> Callable[..., Built]:
    """``build_source(source, schedule, variants)``: a whole problem file."""
    return lambda source, schedule=None, variants=None: Built(source, schedule or {}, variants)
